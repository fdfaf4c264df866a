"""The doctor tells apart what works, what is absent and what fails, in one sentence each, with the next step."""

import io
import json
import re
import time
from dataclasses import asdict, replace

import msgspec
import pytest
from rich.console import Console
from threeloops.hardware.capability import Gpu, Machine
from threeloops_grader.doctor import doctor, findings, surroundings
from threeloops_grader.doctor.doctor import diagnose, render
from threeloops_grader.machine import installed
from threeloops_grader.machine.child_process import run_child
from threeloops_grader.machine.installed import Requirement, python_supported, requirements
from threeloops_grader.machine.provenance import anonymous

HEALTHY = Machine(
    python="3.12.4",
    platform="linux-x86_64",
    cores=16,
    memory_bytes=128 << 30,
    torch="2.13.0",
    triton="3.7.1",
    numpy="2.4.6",
    torch_cuda="13.0",
    supported_archs=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    driver="580.65.06",
    cxx="g++",
    ptxas=True,
    gloo=True,
)
H100 = Gpu("NVIDIA H100 80GB HBM3", (9, 0), 80 << 30, "GPU-00000000-1111-2222-3333-444444444444")
V100 = Gpu("Tesla V100-SXM2-16GB", (7, 0), 16 << 30, "GPU-55555555-6666-7777-8888-999999999999")


AROUND = {
    "unwritable": [],
    "record": "~/record",
    "git": True,
    "network": True,
    "browser": "chromium",
    "memory_bytes": 8 << 30,
}


def answers(on=HEALTHY, **changed):
    """What the checks answer on a healthy machine, with some of them changed."""
    good = {
        "machine": {"ok": True, "machine": json.loads(json.dumps(asdict(on)))},
        "interpreter": {"ok": True, "wrong": {}},
        "compiler": {"ok": True},
        "cxx": {"ok": True, "compiler": "g++"},
        "ranks": {"ok": True},
        "sandbox": {"ok": True, "why_not": None, "installed": True, "no_groups": None},
        "surroundings": {"ok": True, **AROUND},
        "gpu": {"ok": True},
    }
    return {**good, **changed}


def diagnosis(on=HEALTHY, **changed):
    given = answers(on, **changed)
    return diagnose(ask=lambda check, seconds: given[check])


def failed(error, late=False):
    return {"ok": False, "error": error, "late": late}


def test_a_healthy_machine_without_a_gpu_runs_the_course():
    found = diagnosis()
    assert found.can_run
    assert {f.name: f.status for f in found.findings if f.name not in ("packages", "disk")} == {
        "platform": "ok",
        "interpreter": "ok",
        "compiler": "ok",
        "torch.compile": "ok",
        "ranks": "ok",
        "sandbox": "ok",
        "limits": "ok",
        "gpu": "missing",
        "home": "ok",
        "memory": "ok",
        "git": "ok",
        "network": "ok",
        "browser": "ok",
    }


def test_json_has_the_documented_shape():
    found = json.loads(json.dumps(diagnosis().to_dict()))
    assert found.keys() == {"can_run", "findings", "versions", "machine", "usable_gpus", "seconds"}
    for finding in found["findings"]:
        assert finding.keys() == {"name", "status", "sentence", "next_step"}
        assert finding["status"] in ("ok", "missing", "broken")
        assert finding["sentence"] and "\n" not in finding["sentence"]
    assert {"torch", "triton", "numpy", "jupyterlab", "nbgrader", "papermill"} <= found["versions"].keys()
    assert msgspec.convert(found["machine"], Machine) == HEALTHY


FAULTS = {
    "interpreter": ("interpreter", failed("AttributeError: no attribute 'erf'"), "broken", "no attribute 'erf'"),
    "compiler": ("compiler", failed("PTXASError: exit 255"), "broken", "could not compile for sm_90: PTXASError"),
    "ranks": ("ranks", failed("exit 1: Connection refused"), "broken", "could not add a tensor: exit 1: Connection"),
    "no compiler": ("cxx", {"ok": True, "compiler": None}, "missing", "no C++ compiler"),
    "no headers": ("cxx", failed("Python.h: No such file or directory"), "broken", "Python.h: No such file"),
    "no sandbox": (
        "sandbox",
        {"ok": True, "why_not": "bubblewrap is not installed (apt)", "installed": False, "no_groups": None},
        "missing",
        "bubblewrap is not installed",
    ),
    "no namespaces": (
        "sandbox",
        {
            "ok": True,
            "why_not": "bubblewrap does not work here: setting up uid map",
            "installed": True,
            "no_groups": None,
        },
        "broken",
        "setting up uid map",
    ),
    "late": ("interpreter", failed("no answer within 14 s", late=True), "broken", "no answer within 14 s"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_has_its_sentence_and_its_next_step(fault):
    check, answer, status, words = FAULTS[fault]
    found = diagnosis(**{check: answer})
    finding = found["torch.compile" if check == "cxx" else check]
    assert finding.status == status
    assert words in finding.sentence
    assert finding.next_step
    others = {f.name for f in found.findings if f.status == "broken"} - {"packages", "disk", finding.name}
    assert not others, "one fault was counted as several"


def test_a_machine_without_control_groups_is_told_what_holds_instead():
    answer = {"ok": True, "why_not": None, "installed": True, "no_groups": "this process may not make control groups"}
    found = diagnosis(sandbox=answer)
    assert (found["sandbox"].status, found["limits"].status) == ("ok", "missing")
    assert "may not make control groups: memory, processes and sockets are looked at" in found["limits"].sentence
    assert "Delegate=yes" in found["limits"].next_step


def test_only_the_interpreter_stops_the_course():
    assert not diagnosis(interpreter=failed("it crashed")).can_run
    broken = {name: failed("it crashed") for name in ("compiler", "cxx", "ranks", "sandbox", "surroundings")}
    assert diagnosis(**broken).can_run


def test_a_check_that_was_late_is_to_be_run_again_and_nothing_reinstalled():
    step = diagnosis(interpreter=failed("no answer within 14 s", late=True))["interpreter"].next_step
    assert "again" in step and "make course" not in step


def test_triton_36_with_numpy_24_is_named_as_the_trap_it_is():
    machine = replace(HEALTHY, triton="3.6.0")
    finding = diagnosis(machine, interpreter=failed("TypeError: only 0-dimensional arrays"))["interpreter"]
    assert finding.status == "broken"
    assert "triton 3.6.0" in finding.sentence and "numpy 2.4.6" in finding.sentence
    assert finding.next_step == 'pip install "numpy<2.4"'


def test_what_the_interpreter_gets_wrong_is_said_and_stops_nothing():
    assert "does not" not in diagnosis()["interpreter"].sentence
    found = diagnosis(interpreter={"ok": True, "wrong": {"tl.dot of bfloat16": "0 where 16 is right"}})["interpreter"]
    assert found.status == "ok" and found.sentence.endswith("tl.dot of bfloat16 (0 where 16 is right)")


def with_gpus(*gpus, **changed):
    return replace(HEALTHY, gpus=gpus, **changed)


def test_a_gpu_counts_when_a_kernel_ran_on_it():
    found = diagnosis(with_gpus(H100))
    assert found["gpu"].status == "ok"
    assert found.usable_gpus == (0,)
    assert "H100" in found["gpu"].sentence


def test_a_gpu_on_which_no_kernel_runs_is_broken_whatever_the_driver_lists():
    finding = diagnosis(with_gpus(H100), gpu=failed("RuntimeError: no kernel image"))["gpu"]
    assert finding.status == "broken"
    assert "no kernel image" in finding.sentence and "THREELOOPS_DEVICE=cpu" in finding.next_step


def test_a_gpu_that_this_torch_no_longer_supports_is_named():
    alone = diagnosis(with_gpus(V100))["gpu"]
    assert alone.status == "broken" and "V100-SXM2-16GB (sm_70" in alone.sentence
    beside = diagnosis(with_gpus(V100, H100))
    assert beside["gpu"].status == "ok" and beside.usable_gpus == (1,)
    assert "no longer supported by torch 2.13.0: Tesla V100" in beside["gpu"].sentence


def test_a_hidden_gpu_is_named_with_the_variable_that_hides_it():
    hidden = diagnosis(with_gpus(H100, cuda_visible_devices=""))["gpu"]
    assert hidden.status == "broken" and "CUDA_VISIBLE_DEVICES=''" in hidden.sentence and "unset" in hidden.next_step
    one_of_two = diagnosis(with_gpus(H100, V100, cuda_visible_devices="0"))["gpu"]
    assert one_of_two.status == "ok" and "hidden by CUDA_VISIBLE_DEVICES: Tesla V100" in one_of_two.sentence


def test_without_any_gpu_it_still_says_which_generations_are_gone():
    sentence = diagnosis()["gpu"].sentence
    assert "torch no longer supports Maxwell" in sentence and "Volta (V100)" in sentence
    assert "Triton does not support Turing (T4)" in sentence
    legacy = replace(HEALTHY, supported_archs=("sm_50", "sm_60", "sm_70", "sm_80"))
    assert "no longer" not in findings._unsupported(legacy)


def test_the_gpu_is_not_tried_where_none_can_be_used():
    asked = []
    given = answers()
    diagnose(ask=lambda check, seconds: asked.append(check) or given[check])
    assert "gpu" not in asked


def test_a_probe_that_crashed_is_reported_and_the_rest_is_still_tried():
    found = diagnosis(machine=failed("exit 1: ImportError: libcudart.so.13"))
    assert found["platform"].status == "broken" and "libcudart" in found["platform"].sentence
    assert found["interpreter"].status == "ok"
    assert found.to_dict()["machine"] is None


def test_elsewhere_than_linux_the_devcontainer_is_the_next_step():
    mac = replace(HEALTHY, platform="darwin-arm64", triton=None)
    finding = diagnosis(mac)["platform"]
    assert finding.status == "missing" and "devcontainer" in finding.next_step and "WSL" not in finding.next_step
    windows = diagnosis(replace(HEALTHY, platform="win32-AMD64", triton=None))["platform"]
    assert windows.status == "missing" and windows.next_step.startswith("install WSL 2")


def test_arm_is_as_good_as_x86_and_other_processors_are_named():
    assert diagnosis(replace(HEALTHY, platform="linux-aarch64"))["platform"].status == "ok"
    other = diagnosis(replace(HEALTHY, platform="linux-riscv64"))["platform"]
    assert other.status == "broken" and "no wheels for riscv64" in other.sentence and "aarch64" in other.next_step


AROUND_FAULTS = {
    "home": ({"unwritable": ["Jupyter", "Triton"]}, "broken", "Jupyter (JUPYTER_DATA_DIR): it does not start; Triton"),
    "git": ({"git": False}, "missing", "run without it"),
    "network": ({"network": False}, "missing", "labs, checks and grading need none"),
    "browser": ({"browser": None}, "missing", "labs open in any browser"),
    "memory": ({"memory_bytes": 2 << 30}, "broken", "2.0 GiB for the course: one graded submission may take 3 GiB"),
}


@pytest.mark.parametrize("name", AROUND_FAULTS)
def test_what_the_course_can_do_without_is_said_with_a_next_step_and_stops_nothing(name):
    changed, status, words = AROUND_FAULTS[name]
    found = diagnosis(surroundings={"ok": True, **AROUND, **changed})
    assert found[name].status == status and words in found[name].sentence and found[name].next_step
    assert found.can_run
    assert [f.name for f in found.findings if f.status != "ok" and f.name in AROUND_FAULTS] == [name]


def test_a_folder_that_cannot_be_written_is_found_and_none_is_made(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for cache in surroundings._CACHES:
        monkeypatch.setenv(cache.variable, str(tmp_path / "not there yet" / cache.program))
    assert surroundings.survey()["unwritable"] == []
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert surroundings.survey()["unwritable"] == ["Triton"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_where_the_record_is_and_how_to_move_it_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable, folder in (("THREELOOPS_HOME", "mine"), ("XDG_STATE_HOME", "state/threeloops")):
        with monkeypatch.context() as patch:
            patch.delenv("THREELOOPS_HOME", raising=False)
            patch.setenv(variable, str(tmp_path / folder.partition("/")[0]))
            found = diagnosis(surroundings={"ok": True, **AROUND, "record": surroundings.survey()["record"]})
            assert f"in ~/{folder} (THREELOOPS_HOME" in found["home"].sentence


def test_without_any_home_folder_all_is_unwritable_that_no_variable_names(monkeypatch):
    for cache in surroundings._CACHES:
        monkeypatch.delenv(cache.variable, raising=False)
    monkeypatch.setenv("HOME", "/dev/null")
    assert surroundings.survey()["unwritable"] == [cache.program for cache in surroundings._CACHES]


def test_without_git_and_browser_on_the_path_neither_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    seen = surroundings.survey()
    assert (seen["git"], seen["browser"]) == (False, None) and seen["memory_bytes"] > 0


def package(name, installed, wanted=">=2,<3"):
    return Requirement(name, wanted, installed)


def judged(wanted, free_bytes=50 << 30, origin="checkout", on=HEALTHY, **changed):
    found = findings.judge(answers(**changed), on, doctor.capabilities(on), wanted, free_bytes, origin)
    return {f.name: f for f in found}


BARE = replace(HEALTHY, torch=None, triton=None, platform="darwin-arm64")
FOREIGN = {
    "checkout": r"the wheel|a bundle",
    "bundle": r"the wheel|git|make (course|test)|threeloops (course|release|test)|devcontainer",
    "wheel": r"`make|git|requirements\.txt|scripts/|threeloops (course|release|test)|devcontainer",
}
"""Words of advice that lead nowhere, by what the course was installed from."""


@pytest.mark.parametrize("origin", FOREIGN)
def test_every_step_can_be_taken_in_what_the_course_was_installed_from(origin):
    nothing = {
        "unwritable": ["Jupyter"],
        "record": "",
        "git": False,
        "network": False,
        "browser": None,
        "memory_bytes": 1 << 30,
    }
    crashed = {check: failed("it crashed") for check in answers()}
    no_sandbox = {"ok": True, "why_not": "not installed", "installed": False, "no_groups": "none can be made"}
    for found in (
        judged([], origin=origin),
        judged([package("torch", None)], 0, origin, BARE, surroundings={"ok": True, **nothing}, sandbox=no_sandbox),
        judged([package("torch", "1.0")], 0, origin, **crashed),
        {f.name: f for f in findings.judge(crashed, None, None, [], 0, origin)},
    ):
        for finding in found.values():
            said = f"{finding.sentence}: {finding.next_step}"
            assert not re.search(FOREIGN[origin], said), said
    packages = judged([package("torch", None)], origin=origin)["packages"].next_step
    steps = {"checkout": "make course", "bundle": "make lab", "wheel": 'pip install "threeloops[labs]"'}
    assert steps[origin] in packages


def test_only_a_checkout_has_newer_releases_in_git_and_tests_that_need_a_browser():
    assert "git pull" in judged([])["git"].sentence and "browser" in judged([])
    assert not {"git", "browser"} & (judged([], origin="bundle").keys() | judged([], origin="wheel").keys())


def test_a_folder_of_the_course_is_told_apart_from_a_checkout_and_from_installed_packages(tmp_path, monkeypatch):
    monkeypatch.setattr(installed, "CODE", tmp_path)
    assert installed.origin() == "wheel"
    (tmp_path / "pyproject.toml").touch()
    assert installed.origin() == "bundle"
    (tmp_path / ".git").touch()  # a file in a worktree, a folder in a clone
    assert installed.origin() == "checkout"


def test_packages_absent_and_out_of_range_are_named():
    absent = judged([package("torch", "2.13.0"), package("nbgrader", None)])["packages"]
    assert absent.status == "missing" and "nbgrader" in absent.sentence and "torch" not in absent.sentence
    old = judged([package("torch", "1.13.1")])["packages"]
    assert old.status == "broken" and "torch 1.13.1 (needs <3,>=2)" in old.sentence.replace(">=2,<3", "<3,>=2")


def test_a_build_of_a_vendor_is_in_range():
    assert package("torch", "2.11.0a0+nv25.9", ">=2.11a0,<2.14").satisfied
    assert package("torch", "2.13.0+cpu", ">=2.11,<2.14").satisfied


def test_a_full_disk_is_a_finding():
    assert judged([], free_bytes=10 << 20)["disk"].status == "broken"
    assert judged([], free_bytes=2 << 30)["disk"].status == "ok"


def test_the_pins_are_read_from_the_project():
    assert {"torch", "triton", "nbgrader"} <= {r.name for r in requirements()}
    assert python_supported("3.11.2")[1] and not python_supported("3.9.19")[1]


@pytest.mark.parametrize("width", [80, 120])
def test_rendered_it_fits_a_screen_and_keeps_every_word(width):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    found = diagnosis(interpreter=failed("IndexError: list index [3]"))
    render(found, console)
    text = console.file.getvalue()
    assert len(text.splitlines()) <= 40
    assert "[3]" in text, "square brackets were taken for markup"
    assert "cannot run here" in text
    assert all(f.name in text for f in found.findings)


def test_this_machine_is_diagnosed_without_torch_in_the_process():
    """The real thing, in a process of its own: something that works here, nothing of CUDA in the one that asks."""
    source = (
        "import json, sys; from threeloops_grader.doctor.doctor import diagnose; d = diagnose(seconds=600); "
        "print(json.dumps({'d': d.to_dict(), 'torch': 'torch' in sys.modules}))"
    )
    done = run_child(["-c", source], 900)
    assert done.returncode == 0, done.why
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert not answer["torch"]
    status = {f["name"]: f["status"] for f in answer["d"]["findings"]}
    assert status["interpreter"] == "ok" and answer["d"]["can_run"]
    assert status["ranks"] == "ok"


def test_a_child_that_hangs_is_ended_with_all_that_it_started():
    source = (
        "import subprocess, sys, time; "
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'], start_new_session=True); "
        "print(p.pid, flush=True); time.sleep(3600)"
    )
    done = run_child(["-c", source], 10)
    assert done.returncode is None and "no answer" in done.why
    deadline = time.monotonic() + 300
    while alive(int(done.stdout)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(int(done.stdout))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_crash_says_how_it_ended():
    assert run_child(["-c", "import os; os.abort()"], 300).why.startswith("signal 6")
    assert run_child(["-c", "raise KeyError('gone')"], 300).why == "exit 1: KeyError: 'gone'"


def test_serial_numbers_of_gpus_leave_no_trace():
    hidden = anonymous({"gpus": [asdict(H100)], "note": f"CUDA_VISIBLE_DEVICES={H100.uuid}"})
    assert H100.uuid not in json.dumps(hidden)
    assert hidden["gpus"][0]["name"] == H100.name


def test_the_interpreter_is_tried_with_the_repairs_that_every_lab_installs():
    found = doctor._ask_child("interpreter", 60)
    assert found["ok"], found
    assert found["wrong"] == {}, "Triton's own interpreter was tried, without the course's repairs"
