"""Evidence is collected on whatever is there: complete, anonymous, and with a reason for everything that is missing."""

import io
import json
import os
import re
import socket
import subprocess
from dataclasses import replace

import pytest
from rich.console import Console
from threeloops_grader.doctor.doctor import Diagnosis
from threeloops_grader.doctor.finding import Finding
from threeloops_grader.evidence import collect as evidence
from threeloops_grader.evidence import result_rows
from threeloops_grader.evidence.collect import _attempt, collect
from threeloops_grader.evidence.counters import _METRICS, _parse, hardware_counters
from threeloops_grader.evidence.gpu_tests import _judge_tests
from threeloops_grader.evidence.parts import Failed, Part, Skipped, Unfinished
from threeloops_grader.machine import provenance
from threeloops_grader.machine.child_process import Finished
from toy_course import make_course

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

    def benchmark(name, *rest, group="record"):
        if name in ("grading", "attention_backward", "sustained"):
            return real(name, *rest, group=group)
        return Part(f"benchmark {name}", 10, crash if name == "roofline" else lambda seconds: None, group)

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
    errors = {f"kernel errors {i + 1} of {evidence._ERROR_SHARES}": "SKIPPED" for i in range(evidence._ERROR_SHARES)}
    assert {name: p["status"] for name, p in parts.items()} == errors | {
        "doctor": "ok",
        "GPU tests": "SKIPPED",
        "lab 90_toy": "ok",
        "benchmark roofline": "failed",
        "kernel times": "SKIPPED",
        "benchmark precision": "ok",
        "hardware counters": "SKIPPED",
        "benchmark attention_backward": "SKIPPED",
        "benchmark sustained": "SKIPPED",
        "benchmark memory": "ok",
        "benchmark grading": "SKIPPED",
        "benchmark kernels": "ok",
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
    before = provenance._sources_sha256()
    (lab.folder / "__pycache__").mkdir()
    (lab.folder / "__pycache__" / "x.pyc").write_bytes(b"\0")
    lab.solution_notebook.write_text("{}")
    (tmp_path / "labs").mkdir()
    assert provenance._sources_sha256() == before
    lab.source.write_text(lab.source.read_text() + "\n")
    edited = provenance._sources_sha256()
    assert edited != before
    (lab.data / "more.txt").write_text("")
    assert provenance._sources_sha256() != edited


def test_what_measuring_writes_is_not_one_of_the_sources(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "CODE", tmp_path)
    monkeypatch.setenv("THREELOOPS_ROOT", str(make_course(tmp_path).root))
    (tmp_path / "benchmarks/evidence/cpu").mkdir(parents=True)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], check=True)
    before = provenance._sources_sha256()
    (tmp_path / "benchmarks/README.md").write_text("a page")
    (tmp_path / "benchmarks/evidence/cpu/memory.json").write_text("{}")
    assert provenance._sources_sha256() == before and provenance._commit(tmp_path)[1] is False
    (tmp_path / "benchmarks/memory.py").write_text("")
    assert provenance._sources_sha256() != before and provenance._commit(tmp_path)[1] is True


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
    monkeypatch.setattr(evidence, "_plan", lambda *_: [Part("one", 9, lambda s: 1), Part("two", 9, interrupted)])
    with pytest.raises(KeyboardInterrupt):
        collect("cpu", tmp_path, quiet())
    (path,) = tmp_path.glob("*/evidence.json")
    found = json.loads(path.read_text())
    assert [p["name"] for p in found["parts"]] == ["doctor", "one"] and not found["complete"]
    assert not list(path.parent.glob(".*")), "half a file was left"


def test_parts_share_the_time_that_is_left():
    given = []
    part = Part("slow", 100, lambda seconds: given.append(seconds))
    _attempt(part, 1000), _attempt(part, 30)
    assert given == [100, 30]
    late = _attempt(part, 1)
    assert late.status == "SKIPPED" and "used up" in late.reason and len(given) == 2


@pytest.mark.parametrize(("error", "status"), [(Skipped("no x"), "SKIPPED"), (Failed("no x"), "failed")])
def test_a_part_says_why_it_has_no_result(error, status):
    def run(seconds):
        raise error

    outcome = _attempt(Part("p", 9, run), 100)
    assert (outcome.status, outcome.reason, outcome.result) == (status, "no x", None)


def outcome_row(name, outcome="passed", reason=""):
    return {"test": name, "outcome": outcome, "reason": reason}


def selected(*names):
    return {"selected": list(names)}


ENDED, KILLED = Finished(1, "", "", 1.0), Finished(None, "", "", 9.0)
PASSED = outcome_row("test_copy")
SKIPPED = outcome_row("test_tf32", "skipped", "needs sm_80")
BROKEN = outcome_row("test_matmul", "failed", "off by 3")
ALL = selected("test_copy", "test_tf32", "test_matmul")


def test_gpu_tests_that_were_all_skipped_have_shown_nothing():
    with pytest.raises(Skipped, match="needs sm_80"):
        _judge_tests([selected("test_tf32"), SKIPPED], ENDED)
    with pytest.raises(Skipped, match="selected none"):
        _judge_tests([selected()], ENDED)


def test_one_failed_gpu_test_fails_the_part_and_is_named():
    with pytest.raises(Failed, match="1 of 3 GPU tests failed: test_matmul: off by 3") as failed:
        _judge_tests([ALL, PASSED, SKIPPED, BROKEN], ENDED)
    assert len(failed.value.result["tests"]) == 3 and not failed.value.again


def test_passed_gpu_tests_are_listed_beside_the_skipped_ones():
    found = _judge_tests([selected("test_copy", "test_tf32"), PASSED, SKIPPED], ENDED)
    assert [(t["name"], t["outcome"]) for t in found["tests"]] == [("test_copy", "passed"), ("test_tf32", "skipped")]


def test_gpu_tests_that_were_killed_leave_what_they_showed_and_are_not_called_failed():
    begun = outcome_row("test_matmul", "begun")
    with pytest.raises(Unfinished, match="2 of 3 GPU tests did not end: no answer within 9 s") as cut_off:
        _judge_tests([ALL, PASSED, begun], KILLED)
    assert [t["name"] for t in cut_off.value.result["tests"] if t["outcome"] == "passed"] == ["test_copy"]
    with pytest.raises(Failed, match="test_matmul: did not end in 2 runs"):
        _judge_tests([ALL, PASSED, SKIPPED, begun, begun], KILLED)
    with pytest.raises(Unfinished, match="collected no test"):
        _judge_tests([], KILLED)


def test_a_process_that_a_gpu_test_takes_down_is_a_failure_and_the_next_call_goes_on():
    crashed = Finished(-11, "", "", 1.0)
    with pytest.raises(Failed, match="1 of 3 GPU tests did not end: signal 11") as failed:
        _judge_tests([ALL, PASSED, SKIPPED, outcome_row("test_matmul", "begun")], crashed)
    assert failed.value.again


def test_a_file_that_cannot_be_imported_fails_unless_a_package_is_missing():
    absent = outcome_row(
        "tests/test_a.py", "not collected", "ModuleNotFoundError: No module named 'no_such_package_zq'"
    )
    found = _judge_tests([absent, selected("test_copy"), PASSED], ENDED)
    assert [file["file"] for file in found["not_collected"]] == ["tests/test_a.py"]
    for reason in ("SyntaxError: invalid syntax", "ModuleNotFoundError: No module named 'threeloops_grader.gone'"):
        with pytest.raises(Failed, match=re.escape(reason)):
            _judge_tests(
                [outcome_row("tests/test_b.py", "not collected", reason), selected("test_copy"), PASSED], ENDED
            )


def test_a_part_that_the_budget_cuts_off_is_skipped_and_tried_again_by_the_next_call(tmp_path, monkeypatch, examined):
    given = []

    def slow(seconds):
        given.append(seconds)
        if len(given) == 1:
            raise Unfinished("no answer within 20 s", {"rows": [1]})
        return {"rows": [1, 2]}

    monkeypatch.setattr(evidence, "diagnose", lambda seconds: examined)
    parts = [Part("quick", 9, lambda seconds: 1), Part("slow", 100, slow)]
    monkeypatch.setattr(evidence, "_plan", lambda *_: parts)
    console = quiet()
    assert collect("cpu", tmp_path, console, budget=20) == 0, "nothing failed"
    (path,) = tmp_path.glob("*/evidence.json")
    found = json.loads(path.read_text())
    cut_off = found["parts"][-1]
    assert cut_off["status"] == "SKIPPED" and "the part may take 100 s" in cut_off["reason"]
    assert cut_off["result"] == {"rows": [1]} and not found["complete"]
    said = console.file.getvalue()
    assert "2 of 2 parts to do" in said and "slow ≤ 100 s" in said and "Left for another call" in said
    console = quiet()
    assert collect("cpu", tmp_path, console, budget=200) == 0
    found = json.loads(path.read_text())
    assert found["complete"] and found["parts"][-1]["result"] == {"rows": [1, 2]}
    assert "1 of 2 parts to do" in console.file.getvalue(), "a finished part was done again"


def test_a_part_that_hangs_for_all_its_time_has_failed():
    def hang(seconds):
        raise Unfinished("no answer within 9 s")

    outcome = _attempt(Part("p", 9, hang), 100)
    assert (outcome.status, outcome.reason, outcome.finished) == ("failed", "no answer within 9 s", True)


def test_earlier_results_count_only_for_the_same_sources(tmp_path, monkeypatch, examined):
    done = []
    monkeypatch.setattr(evidence, "diagnose", lambda seconds: examined)
    late = Part("late", 9, lambda seconds: 1)
    monkeypatch.setattr(evidence, "_plan", lambda *_: [Part("one", 9, lambda seconds: done.append(1)), late])
    collect("cpu", tmp_path, quiet(), wanted=["one"])
    collect("cpu", tmp_path, quiet())
    assert len(done) == 1
    (path,) = tmp_path.glob("*/evidence.json")
    path.write_text(path.read_text().replace('"sources_sha256": "', '"sources_sha256": "0'))
    collect("cpu", tmp_path, quiet())
    assert len(done) == 2


@pytest.mark.parametrize(("changed", "to"), [("sources_sha256", "another"), ("versions", {"torch": "2.11"})])
def test_a_part_keeps_its_outcome_under_other_software_until_it_has_run_again(
    tmp_path, monkeypatch, examined, changed, to
):
    monkeypatch.setattr(evidence, "diagnose", lambda seconds: examined)
    monkeypatch.setattr(evidence, "_plan", lambda *_: [Part(n, 9, lambda seconds, n=n: n) for n in ("one", "two")])
    collect("cpu", tmp_path, quiet())
    (path,) = tmp_path.glob("*/evidence.json")
    first = json.loads(path.read_text())
    first["provenance"][changed] = to
    path.write_text(json.dumps(first))

    for _ in range(2):  # a third call keeps it as well
        collect("cpu", tmp_path, quiet(), wanted=["two"])
        found = json.loads(path.read_text())
        one, two = (next(part for part in found["parts"] if part["name"] == name) for name in ("one", "two"))
        assert one["result"] == "one" and not one["finished"] and one["earlier"][changed] == to
        assert two["result"] == "two" and two["finished"] and two["earlier"] is None
        assert found["provenance"][changed] != to and not found["complete"]

    collect("cpu", tmp_path, quiet())
    found = json.loads(path.read_text())
    assert found["complete"] and all(part["earlier"] is None for part in found["parts"])


def test_nothing_is_kept_from_another_device(tmp_path, monkeypatch, examined):
    monkeypatch.setattr(evidence, "diagnose", lambda seconds: examined)
    monkeypatch.setattr(evidence, "_plan", lambda *_: [Part(n, 9, lambda seconds, n=n: n) for n in ("one", "two")])
    collect("cpu", tmp_path, quiet())
    (path,) = tmp_path.glob("*/evidence.json")
    found = json.loads(path.read_text())
    found["provenance"]["memory_bytes"] = 1
    path.write_text(json.dumps(found))
    collect("cpu", tmp_path, quiet(), wanted=["two"])
    assert "one" not in [part["name"] for part in json.loads(path.read_text())["parts"]]


def test_parts_are_named_by_themselves_or_by_their_group(tmp_path, monkeypatch, examined):
    done = []
    parts = [
        Part(n, 9, lambda s, n=n: done.append(n), g) for n, g in (("a", "faults"), ("b", "record"), ("c", "record"))
    ]
    monkeypatch.setattr(evidence, "diagnose", lambda seconds: examined)
    monkeypatch.setattr(evidence, "_plan", lambda *_: parts)
    collect("cpu", tmp_path, quiet(), wanted=["record"])
    collect("cpu", tmp_path, quiet(), wanted=["b"])
    assert done == ["b", "c", "b"]
    console = quiet()
    assert collect("cpu", tmp_path, console, wanted=["numbers and more"]) == 2
    assert "there is no part 'numbers and more'; the groups and parts are faults, numbers, record, a, b, c" in " ".join(
        console.file.getvalue().split()
    )


def test_what_is_timed_runs_alone_and_the_rest_side_by_side():
    def part(name, alone):
        return Part(name, 9, print, alone=alone)

    order = [part("a", False), part("b", False), part("c", True), part("d", False)]
    assert [[p.name for p in batch] for batch in evidence._batches(order)] == [["a", "b"], ["c"], ["d"]]


def test_a_gpu_that_cannot_be_used_is_not_passed_over_in_silence(tmp_path, monkeypatch, examined):
    slow = Finding("gpu", "broken", "the check of the GPU gave no answer within 14 s")
    found = tuple(slow if finding.name == "gpu" else finding for finding in examined.findings)
    monkeypatch.setattr(evidence, "diagnose", lambda seconds: replace(examined, findings=found))
    monkeypatch.setattr(evidence, "_plan", lambda *_: [Part("one", 9, lambda seconds: 1)])
    console = quiet()
    collect("auto", tmp_path, console)
    assert "The CPU is measured, since the GPU cannot be used: the check of the GPU" in console.file.getvalue()


def test_parts_that_run_side_by_side_all_have_their_outcome(tmp_path):
    def fail(seconds):
        raise Failed("broken")

    parts = [Part("a", 9, lambda seconds: 1, rows=tmp_path / "a.jsonl"), Part("b", 9, fail), Part("c", 9, print)]
    found = {o.name: o.status for o in evidence._attempts(parts, float("inf"), 3, "here")}
    assert found == {"a": "ok", "b": "failed", "c": "ok"}
    assert result_rows.read(tmp_path / "a.jsonl") == []


def test_devices_have_folders_of_their_own(machine):
    cpu = provenance.provenance(machine, "cpu")
    assert re.fullmatch(r"cpu-[a-z0-9-]+-\d+-cores", cpu.slug)
    gpu = replace(cpu, device="cuda", name="NVIDIA H100 80GB HBM3")
    assert gpu.slug == "nvidia-h100-80gb-hbm3" and gpu.verified_on == "cuda:NVIDIA H100 80GB HBM3"


def test_the_counters_of_a_profiler_are_read_from_among_what_the_program_prints():
    printed = "\n".join(
        [
            "==PROF== Connected to process 7",
            '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"',
            '"0","saxpy_kernel","dram__bytes_read.sum","byte","268,435,456"',
            "==PROF== Disconnected",
        ]
    )
    (row,) = _parse(printed)
    assert row["Kernel Name"] == "saxpy_kernel" and row["Metric Value"] == "268,435,456"
    assert _parse("==ERROR== ERR_NVGPUCTRPERM") == []


def profiler(folder, monkeypatch, *printed):
    """An `ncu` that prints these lines and the arguments it was given."""
    ncu = folder / "ncu"
    ncu.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(printed) + "\nEND\nprintf '==PROF== %s\\n' \"$*\"\n")
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_a_profiler_runs_the_program_of_the_counters_and_its_rows_are_the_result(tmp_path, monkeypatch):
    header = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    profiler(tmp_path, monkeypatch, header, *(f'"0","saxpy_kernel","{metric}","","1"' for metric in _METRICS))
    (found,) = hardware_counters("").run(60).values()
    assert [row["Metric Name"] for row in found] == list(_METRICS)


def test_a_profiler_that_may_not_count_says_why_and_how_it_was_asked(tmp_path, monkeypatch):
    profiler(tmp_path, monkeypatch, "==ERROR== ERR_NVGPUCTRPERM")
    with pytest.raises(Failed, match=r"--clock-control none .*--csv .*-m benchmarks\.hardware_counters$"):
        hardware_counters("").run(60)
