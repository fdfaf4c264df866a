"""What a student reads of a failed test: the same card in the notebook, from `threeloops check` and after grading."""

import linecache

import pytest
from grading import QUICK, fresh_course, needs, points, said, submission
from threeloops.lab import CheckFailed
from threeloops.lab.course.lab_cells import OF_LAB
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.grading.grade import Options, execute, grade_notebook
from threeloops_grader.grading.scoring import Report

CALL = "in         rescale(values=a numpy array of shape (3,), float64, top=1.0)"
CARDS = {
    "an exception": (
        "def rescale(values, top):\n    return values * (1.0 / (top - 1.0))",
        [
            "raised     ZeroDivisionError: float division by zero",
            CALL,
            "at         your cell, line 2: return values * (1.0 / (top - 1.0))",
        ],
    ),
    "an exception in a helper": (
        "import math\ndef log(x):\n    return math.log(x)\n\ndef rescale(values, top):\n    return log(top - 2.0)",
        [
            "raised     ValueError: math domain error",
            CALL,
            "at         your cell, line 6: return log(top - 2.0)",
            "at         your cell, line 3: return math.log(x)",
        ],
    ),
    "an exception in a library": (
        "def rescale(values, top):\n    return np.linalg.inv(values)",
        [
            "raised     LinAlgError: 1-dimensional array given. Array must be at least two-dimensional",
            CALL,
            "at         your cell, line 2: return np.linalg.inv(values)",
        ],
    ),
    "memory": (
        "def rescale(values, top):\n    return bytearray(1 << 60)",
        ["raised     MemoryError", CALL, "at         your cell, line 2: return bytearray(1 << 60)"],
    ),
    "a wrong type": (
        "def rescale(values, top):\n    return 'large'",
        [
            "quantity   rescaled",
            "value      'large'",
            "expected   [0.25, 0.5, 1.0]",
            "hint       divide by the peak",
        ],
    ),
}
"""Answers to an exercise after the first hidden test of the lab, and the lines of the card below its title."""
FAILING_CELLS = {
    "a syntax error": (
        "def rescale(values, top):\n    return (values",
        "SyntaxError: line 2: a bracket or a text is not closed\n    return (values\n    ",
    ),
    "an error of the cell": ("LIMIT = NOWHERE + 1", "NameError: name 'NOWHERE' is not defined (your cell, line 1)"),
}
"""Answers whose cells fail, and what the test that misses them says of it."""
SECRET = "34558"
"""The first digits of the number of the first hidden test, `check.rng(1).normal(size=1)`."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with fresh_course(tmp_path_factory.mktemp("messages")) as lab:
        yield lab


def card_in_notebook(lab, answer: str) -> str:
    """The text of the card after Run All, without a front end."""
    trusted = manifest(lab, visible=True)
    space = {"__name__": "__main__"}
    for name, file in (("setup", f"{OF_LAB}1>"), ("rescale", "<cell 2>"), ("rescale_test_values", "<cell 3>")):
        text = trusted.text(name) if name != "rescale" else answer
        text = text.replace('Path("data/', f'Path("{lab.data}/')
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        code = compile(text, file, "exec")
        if name == "rescale_test_values":
            with pytest.raises(CheckFailed) as failed:
                exec(code, space)
            return str(failed.value)
        exec(code, space)
    raise AssertionError


def verdict(lab, answer: str, how: Options) -> str:
    record = grade_notebook(submission(lab, rescale=answer), lab, "student", how)
    assert points(record)["mean"] == 40.0
    return next(test.output for test in record.tests if test.name == "rescale_test_values")


@pytest.mark.parametrize("kind", CARDS)
def test_all_routes_show_the_card_of_the_notebook(lab, kind):
    needs("bwrap")
    answer, lines = CARDS[kind]
    card = "\n  ".join(["an array on a new scale", *lines])
    assert card_in_notebook(lab, answer) == card
    assert verdict(lab, answer, Options("none", visible=True)) == card
    assert verdict(lab, answer, Options("bwrap", limits=QUICK)) == card  # a hidden test has run before
    executed = execute(submission(lab, rescale=answer), lab, Options("bwrap", limits=QUICK), Report())
    (cell,) = [cell for cell in executed.cells if cell.id == "rescale_test_values"]
    assert cell.outputs[-1].traceback == [card]  # which feedback pages show


@pytest.mark.parametrize("kind", FAILING_CELLS)
def test_a_cell_that_fails_is_explained_in_full_on_all_routes(lab, kind):
    needs("bwrap")
    answer, reason = FAILING_CELLS[kind]
    for how in (Options("none", visible=True), Options("bwrap", limits=QUICK)):
        assert verdict(lab, answer, how).startswith(f"the cell of the answer failed: {reason}")


def test_a_missing_function_is_named(lab):
    for how in (Options("none", visible=True), Options("none", limits=QUICK)):
        assert "NameError: name 'rescale' is not defined" in verdict(lab, "def rescaled(values, top): pass", how)


def test_the_second_run_tells_nothing_that_the_first_has_seen(lab):
    """The answer keeps the inputs of a hidden test, in its memory and in files, and raises them in a visible test."""
    needs("bwrap")
    mean = """
def mean(values):
    if not values:
        raise ValueError("values is empty")
    for folder in ("/tmp", "/dev/shm", ".", "/var/tmp", "data"):
        try:
            with open(f"{folder}/seen", "a") as file:
                file.write(repr(values))
        except OSError:
            pass
    SEEN.append(values)
    return sum(values) / len(values)
SEEN = []
"""
    rescale = """
def rescale(values, top):
    for folder in ("/tmp", "/dev/shm", ".", "/var/tmp", "data"):
        try:
            SEEN.append(open(f"{folder}/seen").read())
        except OSError:
            pass
    raise ValueError(SEEN)
"""
    report = Report()
    executed = execute(submission(lab, mean=mean, rescale=rescale), lab, Options("bwrap", limits=QUICK), report)
    texts = [test.output for test in report.tests] + [repr(cell.get("outputs")) for cell in executed.cells]
    assert "raised     ValueError: []" in texts[1]
    assert not any(SECRET in text for text in texts)
    report = Report()
    execute(submission(lab, mean=mean, rescale=rescale), lab, Options("none", limits=QUICK), report)
    assert report.tests[1].output.startswith("ValueError: [[") and SECRET not in report.tests[1].output
    assert "raised" not in report.tests[1].output


def test_a_line_number_cannot_tell_what_a_hidden_test_gave(lab):
    """The answer raises from a line whose number it takes from its argument, in a function that it names by it."""
    mean = """
def mean(values):
    if not values:
        raise ValueError("values is empty")
    if len(values) == 3:
        return 3.0
    digits = f"{values[0]:.5f}"[2:7]
    space = {"__name__": "__main__"}
    exec(compile("\\n" * (int(digits) - 2) + f"def f{digits}():\\n    raise ValueError()", "<cell 9>", "exec"), space)
    space[f"f{digits}"]()
"""
    record = grade_notebook(submission(lab, mean=mean), lab, "student", Options("none", limits=QUICK))
    assert record.tests[0].output == "ValueError" and record.tests[0].in_hidden
    assert SECRET not in said(record)


def test_without_redaction_it_could(lab, monkeypatch):
    """The control of the test above."""
    from threeloops_grader.grading.redaction import Redactor

    monkeypatch.setattr(Redactor, "redact", lambda self, outcome, hidden_from=None, of_lab=True: outcome)
    with pytest.raises(AssertionError, match=f"line {SECRET}"):
        test_a_line_number_cannot_tell_what_a_hidden_test_gave(lab)
