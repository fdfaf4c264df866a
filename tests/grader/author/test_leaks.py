"""`threeloops leaks` finds answers that can be copied from what a student sees, or from the library."""

import functools
import os
import select
import signal
import subprocess

import pytest
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.proposals import search
from threeloops_grader.proposals.faults import faults
from threeloops_grader.proposals.library import from_library
from threeloops_grader.proposals.released import Released
from threeloops_grader.proposals.search import find_leaks
from threeloops_grader.proposals.trial import Bench, Patience

from tests.support.toy_course import SOURCE, make_course

CASE = '    check.close(mean(SAMPLES), 3.0, what="mean of the samples", hint="the sum was not divided by the count")\n'
"""The visible case of the toy lab, in place of which each leak is planted."""

PLANTED = {
    "the expected value": """\
    values = [float(x) for x in check.rng(1).normal(size=9)]
    expected = sum(values) / len(values)
    check.close(mean(values), expected)
""",
    "an argument of a comparison": """\
    numbers = list(SAMPLES)
    total = 0.0
    for each in numbers:
        total += each
    assert abs(mean(numbers) - total / len(numbers)) < 1e-9
""",
    "a right value among slips": """\
    def judges(values):
        total, count = sum(values), len(values)
        slips = {"the sum": total, "a slip": total / (count + 1), "right": total / count}
        got = mean(list(values))
        check.true(got not in (slips["the sum"], slips["a slip"]), "this is a slip")

    judges(SAMPLES)
""",
    "a helper of the test": """\
    def averaged(values):
        return sum(values) / len(values)

    check.close(mean(SAMPLES), 3.0)
    assert averaged(SAMPLES) == 3.0
""",
    "a check with the function as an argument": """\
    samples = [1.0, 2.5]
    check.returns(sum(samples) / 2.0 if len(samples) == 2 else sum(samples) / len(samples), mean, samples)
""",
    "a helper that gets the function": """\
    def agrees(function, numbers):
        check.close(function(numbers), sum(numbers) / len(numbers))

    agrees(mean, SAMPLES)
""",
    "a formula with the numbers of the call": """\
    check.close(mean([17.5, 24.25]), sum([17.5, 24.25]) / len([17.5, 24.25]))
""",
}


def lab_with(tmp_path, case, setup="", header=""):
    source = SOURCE.replace(CASE, case).replace("SAMPLES = [", f"{setup}SAMPLES = [")
    return make_course(tmp_path, source.replace("#     minutes: 5\n", f"#     minutes: 5\n{header}"))


def leaks_of(lab, **options):
    return find_leaks(lab, **options)[1]


def leaking(lab, **options):
    return {leak.exercise: leak.points for leak in leaks_of(lab, **options)}


@pytest.mark.parametrize("case", PLANTED.values(), ids=PLANTED.keys())
def test_an_answer_that_a_visible_test_spells_is_found(tmp_path, case):
    assert leaking(lab_with(tmp_path, case)) == {"mean": 40}


def test_a_function_of_a_setup_cell_is_found(tmp_path):
    setup = "def average(values):\n    return sum(values) / len(values)\n\n\n"
    assert leaking(lab_with(tmp_path, CASE, setup)) == {"mean": 40}


def test_cases_with_numbers_leak_nothing(tmp_path):
    assert leaking(make_course(tmp_path)) == {}


def test_hidden_tests_are_not_read(tmp_path):
    lab = make_course(tmp_path)
    assert "np.mean(values)" in lab.source.read_text()  # the formula, in the hidden part
    assert leaking(lab) == {}


def test_a_function_of_the_library_is_found_unless_it_is_withheld(tmp_path, monkeypatch):
    package = tmp_path / "threeloops"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "averages.py").write_text("def average(numbers):\n    return sum(numbers) / len(numbers)\n")
    use_library(monkeypatch, package)
    assert leaking(make_course(tmp_path / "open"), source="library") == {"mean": 40}
    (package / "averages.py").write_text(
        "from threeloops import roofs\n\n\ndef average(numbers):\n    return roofs.of(numbers)\n"
    )
    (package / "roofs.py").write_text("def of(numbers, extra):\n    return sum(numbers) / len(numbers)\n")
    use_library(monkeypatch, package)
    source = SOURCE.replace("threeloops.inner.roofline", "threeloops.roofs")
    assert leaking(make_course(tmp_path / "withheld", source), source="library") == {}


def test_a_withheld_module_that_can_be_pasted_is_found(tmp_path, monkeypatch):
    package = tmp_path / "threeloops"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "averages.py").write_text(
        "import math\n\n\ndef average(numbers):\n    return math.fsum(numbers) / len(numbers)\n"
    )
    use_library(monkeypatch, package)
    lab = make_course(tmp_path / "course", SOURCE.replace("threeloops.inner.roofline", "threeloops.averages"))
    (leak,) = leaks_of(lab, source="library")
    assert (leak.exercise, leak.points) == ("mean", 40)
    assert "math.fsum" in leak.text  # its text, because a graded run cannot import it


def test_functions_whose_annotations_rule_them_out_are_not_tried(tmp_path, monkeypatch):
    package = tmp_path / "threeloops"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "averages.py").write_text(
        "def by_list(numbers: list[float]) -> float: ...\n\n\ndef by_anything(numbers): ...\n\n\n"
        "def of_a_file(path: str) -> float: ...\n\n\ndef draws(numbers: list[float]) -> None: ...\n\n\n"
        "def by_two(numbers: list[float], weights: list[float]) -> float: ...\n\n\ndef constant(): ...\n"
    )
    use_library(monkeypatch, package)
    source = SOURCE.replace("def mean(values):", "def mean(values: list[float]) -> float:")
    lab = Released.read(make_course(tmp_path / "course", source))
    tried = [each.text for each in from_library(lab, lab.exercises[0], kernels=False)]
    assert [text.split("import ")[1].split(" as")[0] for text in tried] == ["by_list", "by_anything"]


def test_a_field_of_a_result_is_found(tmp_path, monkeypatch):
    package = tmp_path / "threeloops"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "averages.py").write_text(
        "class Summary:\n    mean: float\n\n\n"
        "def summary(numbers) -> Summary:\n    found = Summary()\n    found.mean = sum(numbers) / len(numbers)\n"
        "    return found\n"
    )
    use_library(monkeypatch, package)
    (leak,) = leaks_of(make_course(tmp_path / "course"), source="library")
    assert leak.points == 40 and "return taken.mean" in leak.text


def test_the_import_of_a_module_does_not_count_as_the_time_of_an_answer(tmp_path, monkeypatch):
    package = tmp_path / "threeloops"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "averages.py").write_text(
        "import time\n\nBEGUN = time.process_time()\nwhile time.process_time() < BEGUN + 2:\n    pass\n\n\n"
        "def average(numbers):\n    return sum(numbers) / len(numbers)\n"
    )
    use_library(monkeypatch, package)
    monkeypatch.setattr(search, "_OF_LIBRARY", Patience(cpu_seconds=1, seconds=60))
    assert leaking(make_course(tmp_path / "course"), source="library") == {"mean": 40}


def test_a_module_that_can_be_neither_imported_nor_pasted_is_no_leak(tmp_path, monkeypatch):
    package = tmp_path / "threeloops"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "roofs.py").touch()
    (package / "middle.py").write_text("from threeloops import roofs\n")
    (package / "averages.py").write_text(
        "from threeloops import middle\n\n\ndef average(numbers):\n    return sum(numbers) / len(numbers)\n"
    )
    use_library(monkeypatch, package)
    source = SOURCE.replace("threeloops.inner.roofline", "threeloops.roofs")
    assert leaking(make_course(tmp_path / "course", source), source="library") == {}


def use_library(monkeypatch, package):
    """Take the modules in `package` for the library's, and make those that it has importable."""
    import importlib
    import sys

    import threeloops
    from threeloops_grader.proposals import library

    monkeypatch.setattr(library, "LIBRARY", package)
    monkeypatch.setattr(threeloops, "__path__", [*threeloops.__path__, str(package)])
    for name in ("modules", "_gone", "_fields"):  # what they know of the real library stays for other tests
        monkeypatch.setattr(library, name, functools.cache(getattr(library, name).__wrapped__))
    for name in ("averages", "middle", "roofs"):
        sys.modules.pop(f"threeloops.{name}", None)
    importlib.invalidate_caches()


HOSTILE = {
    "computes for ever": "def mean(values):\n    while True:\n        pass\n",
    "computes for ever in an import": "while True:\n    pass\n",
    "waits for ever": "import threading\n\ndef mean(values):\n    threading.Event().wait()\n",
    "catches everything": (
        "def mean(values):\n    while True:\n        try:\n            while True:\n                pass\n"
        "        except BaseException:\n            pass\n"
    ),
    "ends the process": "import os\n\ndef mean(values):\n    os._exit(0)\n",
    "ends the process like Python": "def mean(values):\n    raise SystemExit\n",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_proposal_that_does_not_end_is_ended_and_the_next_one_is_tried(tmp_path, text):
    trusted = manifest(make_course(tmp_path))
    right = "def mean(values):\n    return sum(values) / len(values)\n"
    with Bench(trusted, Patience(cpu_seconds=0.3, seconds=2.0)) as bench:
        passed = [each.passed for each in bench.earned(trusted.exercise("mean"), [text, right])]
    assert passed == [frozenset(), {"mean_test"}]


def test_a_proposal_that_writes_to_small_descriptors_earns_nothing(tmp_path):
    """A function that sends bytes to a file may be called with counts of ranks."""
    trusted = manifest(make_course(tmp_path))
    of_the_tests = {int(number) for number in os.listdir("/proc/self/fd")}
    text = (
        f"import contextlib, os\n\ndef mean(values):\n    for number in {{*range(3, 200)}} - {of_the_tests}:\n"
        "        with contextlib.suppress(OSError):\n            os.write(number, bytes([255] * 9))\n"
    )
    with Bench(trusted) as bench:
        assert [each.passed for each in bench.earned(trusted.exercise("mean"), [text] * 2)] == [frozenset()] * 2


def test_a_function_of_the_library_reaches_no_other_process_and_no_file_of_the_course(tmp_path):
    lab = make_course(tmp_path)
    trusted, bystander = manifest(lab), subprocess.Popen(["sleep", "60"])
    killing = (
        f"import os\n\ntry:\n    os.kill({bystander.pid}, 9)\nexcept ProcessLookupError:\n    GONE = True\n\n"
        "def mean(values):\n    assert GONE\n    return sum(values) / len(values)\n"
    )
    writing = (
        "try:\n    open('written', 'w').close()\nexcept OSError:\n    REFUSED = True\n\n"
        "def mean(values):\n    assert REFUSED\n    return sum(values) / len(values)\n"
    )
    try:
        with Bench(trusted, alone=True) as bench:
            passed = [each.passed for each in bench.earned(trusted.exercise("mean"), [killing, writing])]
        assert passed == [{"mean_test"}] * 2 and bystander.poll() is None and not (lab.folder / "written").exists()
    finally:
        bystander.kill()
        bystander.wait()


def test_a_proposal_ends_with_the_process_that_tries_it(tmp_path):
    trusted = manifest(make_course(tmp_path))
    reading, writing = os.pipe()
    text = f"import os, threading\n\ndef mean(values):\n    os.write({writing}, b'x')\n    threading.Event().wait(60)\n"
    trying = os.fork()
    if not trying:
        try:
            with Bench(trusted, Patience(seconds=60)) as bench:
                list(bench.earned(trusted.exercise("mean"), [text]))
        finally:
            os._exit(0)
    os.close(writing)
    assert os.read(reading, 1) == b"x"
    os.kill(trying, signal.SIGKILL)
    os.waitpid(trying, 0)
    closed, _, _ = select.select([reading], [], [], 20)
    assert closed and os.read(reading, 1) == b"", "the proposal is still there, and holds the pipe open"
    os.close(reading)


def test_a_leak_is_a_fault_with_its_answer(tmp_path):
    lab = lab_with(tmp_path, PLANTED["the expected value"])
    (fault,) = faults(lab, leaks_of(lab), "notebook")
    assert "90_toy, mean: this answer is copied from the notebook, and earns 40 of 40 points. Show cases" in fault
    assert "expected = sum(values) / len(values)" in fault


def test_an_answer_tried_on_ranks_is_said_to_come_from_the_notebook(tmp_path):
    lab = lab_with(tmp_path, PLANTED["the expected value"])
    (fault,) = faults(lab, leaks_of(lab), "ranks")
    assert "copied from the notebook" in fault and "Show cases with numbers" in fault


def test_an_exercise_whose_answer_is_handed_out_is_no_fault(tmp_path):
    header = '#     handed_out: {mean: "the lesson is when to use it"}\n'
    lab = lab_with(tmp_path, PLANTED["the expected value"], header=header)
    assert list(faults(lab, leaks_of(lab), "notebook")) == []


@pytest.mark.parametrize(
    ("handed_out", "words"),
    [("{mean: ' '}", "each with a reason"), ("{median: because}", "names median"), ("[mean]", "each with a reason")],
)
def test_what_is_handed_out_needs_a_reason(tmp_path, handed_out, words):
    lab = lab_with(tmp_path, CASE, header=f"#     handed_out: {handed_out}\n")
    with pytest.raises(LabError, match=words):
        list(faults(lab, [], "notebook"))
