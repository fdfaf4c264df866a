"""Evidence is collected on whatever is there: complete, anonymous, and with a reason for everything that is missing."""

import io
import json
import os
import re
import socket
from dataclasses import replace

import pytest
from rich.console import Console
from toy_course import make_course

from grader import evidence, provenance
from grader.doctor import Diagnosis
from grader.evidence import attempt, collect
from grader.evidence_parts import Failed, Part, Skipped, judge_tests
from grader.findings import Finding

NO_GPU = "no NVIDIA GPU found"
NO_SANDBOX = "bubblewrap is not installed"


@pytest.fixture(scope="module")
def machine():
    from threeloops.hardware.capability import probe

    return replace(probe(), gpus=(), driver=None)


@pytest.fixture(scope="module")
def examined(machine):
    """A diagnosis of this machine as one without a GPU and without a sandbox."""
    found = [("platform", "ok", ""), ("interpreter", "ok", ""), ("sandbox", "missing", NO_SANDBOX)]
    found.append(("gpu", "missing", NO_GPU))
    return Diagnosis(tuple(Finding(*f) for f in found), {}, machine, (), 0.1)


def quiet():
    return Console(file=io.StringIO(), width=200)


@pytest.fixture(scope="module")
def toy_evidence(tmp_path_factory, examined):
    """Evidence of a toy course in a folder that is no checkout, on a machine without git, one benchmark broken.

    The exit code, the text that was written, and the folder in which all this happened.
    """
    folder = tmp_path_factory.mktemp("toy")
    course, empty = folder / "course", folder / "bin"
    course.mkdir(), empty.mkdir()
    make_course(course)
    real = evidence.benchmark

    def benchmark(name, *rest):
        return Part(f"benchmark {name}", 10, crash) if name == "roofline" else real(name, *rest)

    def crash(seconds):
        raise ZeroDivisionError("float division by zero")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THREELOOPS_ROOT", str(course))
        patch.setenv("PATH", str(empty))
        patch.setattr(evidence, "diagnose", lambda seconds: examined)
        patch.setattr(evidence, "benchmark", benchmark)
        code = collect("auto", folder / "evidence", quiet())
    (path,) = (folder / "evidence").glob("*/evidence.json")
    return code, path.read_text(encoding="utf-8"), folder


def test_a_machine_without_gpu_git_or_sandbox_still_gives_evidence(toy_evidence):
    code, text, _ = toy_evidence
    found = json.loads(text)
    parts = {p["name"]: p for p in found["parts"]}
    assert found["complete"]
    assert {name: p["status"] for name, p in parts.items()} == {
        "doctor": "ok",
        "GPU tests": "SKIPPED",
        "benchmark roofline": "failed",
        "lab 90_toy": "ok",
        "benchmark grading": "SKIPPED",
    }
    assert code == 1, "a part failed, and the exit code must say so"
    assert parts["GPU tests"]["reason"] == NO_GPU
    assert parts["benchmark grading"]["reason"] == NO_SANDBOX
    assert parts["benchmark roofline"]["reason"] == "ZeroDivisionError: float division by zero"
    assert parts["lab 90_toy"]["result"]["seconds"] > 0

    about = found["provenance"]
    assert about["commit"] is None and about["modified"] is None
    assert about["device"] == "cpu" and about["verified_on"] == "cpu" and about["driver"] is None
    assert re.fullmatch("[0-9a-f]{64}", about["sources_sha256"])
    assert about["versions"]["python"] and about["versions"]["torch"]


def test_evidence_names_neither_host_nor_folder(toy_evidence):
    _, text, folder = toy_evidence
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
    assert str(folder) not in text
    assert os.path.expanduser("~/") not in text


def test_host_user_and_paths_are_taken_out_of_any_text(monkeypatch, tmp_path):
    monkeypatch.setattr(socket, "gethostname", lambda: "dgx-07.lab.example.org")
    monkeypatch.setattr(provenance.getpass, "getuser", lambda: "ada")
    monkeypatch.setenv("THREELOOPS_ROOT", str(tmp_path))
    said = {"why": [f"ada@dgx-07: {tmp_path}/solutions: denied on dgx-07.lab.example.org", "/home/ada/x", 3, None]}
    assert provenance.anonymous(said) == {
        "why": ["<user>@<host>: <course>/solutions: denied on <host>", "<home>/x", 3, None]
    }


def test_the_hash_follows_the_sources_and_nothing_else(tmp_path, monkeypatch):
    lab = make_course(tmp_path)
    monkeypatch.setenv("THREELOOPS_ROOT", str(tmp_path))
    before = provenance.sources_sha256()
    (lab.folder / "__pycache__").mkdir()
    (lab.folder / "__pycache__" / "x.pyc").write_bytes(b"\0")
    lab.solution_notebook.write_text("{}")
    (tmp_path / "labs").mkdir()
    assert provenance.sources_sha256() == before
    lab.source.write_text(lab.source.read_text() + "\n")
    edited = provenance.sources_sha256()
    assert edited != before
    (lab.data / "more.txt").write_text("")
    assert provenance.sources_sha256() != edited


def test_asking_for_a_gpu_that_is_not_there_is_an_error_and_writes_nothing(tmp_path, monkeypatch, examined):
    monkeypatch.setattr(evidence, "diagnose", lambda seconds: examined)
    console = quiet()
    assert collect("cuda", tmp_path / "out", console) == 2
    assert NO_GPU in console.file.getvalue() and "--device cpu" in console.file.getvalue()
    assert not (tmp_path / "out").exists()


def test_what_was_measured_is_on_disk_before_the_next_part_begins(tmp_path, monkeypatch, examined):
    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(evidence, "diagnose", lambda seconds: examined)
    monkeypatch.setattr(evidence, "plan", lambda *_: [Part("one", 9, lambda s: 1), Part("two", 9, interrupted)])
    with pytest.raises(KeyboardInterrupt):
        collect("cpu", tmp_path, quiet())
    (path,) = tmp_path.glob("*/evidence.json")
    found = json.loads(path.read_text())
    assert [p["name"] for p in found["parts"]] == ["doctor", "one"] and not found["complete"]
    assert not list(path.parent.glob(".*")), "half a file was left"


def test_parts_share_the_time_that_is_left():
    given = []
    part = Part("slow", 100, lambda seconds: given.append(seconds))
    attempt(part, 1000), attempt(part, 30)
    assert given == [100, 30]
    late = attempt(part, 1)
    assert late.status == "SKIPPED" and "used up" in late.reason and len(given) == 2


@pytest.mark.parametrize(("error", "status"), [(Skipped("no x"), "SKIPPED"), (Failed("no x"), "failed")])
def test_a_part_says_why_it_has_no_result(error, status):
    def run(seconds):
        raise error

    outcome = attempt(Part("p", 9, run), 100)
    assert (outcome.status, outcome.reason, outcome.result) == (status, "no x", None)


def junit(*cases):
    return f'<testsuites><testsuite hostname="secret-host">{"".join(cases)}</testsuite></testsuites>'


PASSED = '<testcase classname="t" name="test_copy"/>'
SKIPPED = '<testcase classname="t" name="test_tf32"><skipped message="needs sm_80"/></testcase>'
BROKEN = '<testcase classname="t" name="test_matmul"><failure message="off by 3">long</failure></testcase>'


def test_gpu_tests_that_were_all_skipped_have_shown_nothing():
    with pytest.raises(Skipped, match="needs sm_80"):
        judge_tests(junit(SKIPPED))
    with pytest.raises(Skipped, match="selected none"):
        judge_tests(junit())


def test_one_failed_gpu_test_fails_the_part_and_is_named():
    with pytest.raises(Failed, match="1 of 3 GPU tests failed: test_matmul: off by 3"):
        judge_tests(junit(PASSED, SKIPPED, BROKEN))


def test_passed_gpu_tests_are_listed_beside_the_skipped_ones():
    found = judge_tests(junit(PASSED, SKIPPED))
    assert [(t["name"], t["outcome"]) for t in found["tests"]] == [("test_copy", "passed"), ("test_tf32", "skipped")]
    assert "secret-host" not in json.dumps(found)


def test_devices_have_folders_of_their_own(machine):
    cpu = provenance.provenance(machine, "cpu")
    assert re.fullmatch(r"cpu-[a-z0-9-]+-\d+-cores", cpu.slug)
    gpu = replace(cpu, device="cuda", name="NVIDIA H100 80GB HBM3")
    assert gpu.slug == "nvidia-h100-80gb-hbm3" and gpu.verified_on == "cuda:NVIDIA H100 80GB HBM3"
