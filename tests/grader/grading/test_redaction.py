"""What a student's words may repeat once a hidden test has shown them its inputs: nothing, on either route."""

import json
from types import SimpleNamespace

import pytest
from grading import fresh_course, grade, points, said, submission
from nbformat.v4 import new_code_cell
from threeloops_grader.authoring.regions import NOT_SHOWN
from threeloops_grader.grading.grade import Options, execute
from threeloops_grader.grading.records import gradescope
from threeloops_grader.grading.redaction import Redactor
from threeloops_grader.grading.scoring import Report
from threeloops_grader.transport.link import WallError
from threeloops_grader.wall.outcome import Outcome
from threeloops_grader.wall.proxy import Proxy

SECRET = "345584192064786"
"""Digits of the one number of the first hidden test, `check.rng(1).normal(size=1)`."""
HONEST = 'def mean(values):\n    if not values:\n        raise ValueError("values is empty")\n'
LEAKS = {
    "prints its arguments": HONEST + "    print(values)\n    return sum(values) / len(values)",
    "prints past Python": HONEST
    + "    import os\n    os.write(2, repr(values).encode())\n    return sum(values) / len(values)",
    "raises its arguments": HONEST + "    if len(values) == 3: return 3.0\n    raise ValueError(values)",
    "names an exception by them": (
        HONEST + "    if len(values) == 3: return 3.0\n    raise type(repr(values), (Exception,), {})()"
    ),
    "names a file by them": (
        HONEST + "    if len(values) == 3: return 3.0\n    exec(compile('raise ValueError', repr(values), 'exec'))"
    ),
    "keeps them for the message that a check quotes": (
        "SEEN = []\ndef mean(values):\n    SEEN.append(values)\n    if not values: raise ValueError(SEEN)\n"
        "    return sum(values) / len(values)"
    ),
    "hides behind an answer that is not written": (
        HONEST + "    print(values)\n    if len(values) == 3: return 3.0\n    raise NotImplementedError()"
    ),
}
LATER = {
    "prints them later": "print(SEEN)",
    "displays them later": "from IPython.display import display\ndisplay(str(SEEN))",
    "draws them later": "import matplotlib.pyplot as plt\nplt.plot(SEEN[1], SEEN[1])\nplt.show()\nprint(SEEN)",
    "raises them later": "raise ValueError(SEEN)",
    "is called like them": "raise type(repr(SEEN), (Exception,), {})()",
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with fresh_course(tmp_path_factory.mktemp("withheld")) as lab:
        yield lab


def everything(lab, notebook) -> str:
    """All that grading writes about a notebook: the record, Gradescope's form of it, and every output."""
    record = grade(lab, notebook, "none")
    executed = execute(notebook, lab, Options("none"), Report())
    return "\n".join(
        [said(record), json.dumps(gradescope(record)), json.dumps([c.get("outputs") for c in executed.cells])]
    )


def test_the_secret_is_one(lab):
    import numpy as np

    assert str(np.random.default_rng(1).normal(size=1)[0]) == f"0.{SECRET}"


@pytest.mark.parametrize("name", LEAKS)
def test_an_answer_cannot_tell_what_a_hidden_test_gave_it(lab, name):
    assert SECRET not in everything(lab, submission(lab, mean=LEAKS[name]))


@pytest.mark.parametrize("name", LATER)
def test_no_later_cell_can_tell_it_either(lab, name):
    answer = "SEEN = []\n" + HONEST + "    SEEN.append(values)\n    return sum(values) / len(values)"
    notebook = submission(lab, mean=answer)
    place = next(i for i, c in enumerate(notebook.cells) if c.id == "mean_test")
    notebook.cells.insert(place + 1, new_code_cell(LATER[name]))
    text = everything(lab, notebook)
    assert SECRET not in text
    assert "image/png" not in text


def test_the_name_of_a_results_class_counts_as_the_students_words():
    """A test that computes with a result, and does not leave it to a check, meets the refusal that quotes this name."""
    with pytest.raises(WallError, match=SECRET) as refused:
        float(Proxy(SimpleNamespace(garbage=[]), [1, "object", SECRET]))
    assert refused.value.__student_words__ == SECRET


def test_without_redactor_they_would_tell(lab, monkeypatch):
    """The control: what the tests above look for is there where nothing is withheld."""
    monkeypatch.setattr(Redactor, "redact", lambda self, outcome, hidden_from=None, of_lab=True: outcome)
    telling = {name for name in LEAKS if SECRET in everything(lab, submission(lab, mean=LEAKS[name]))}
    assert telling == set(LEAKS)


def test_a_record_says_that_something_is_missing_and_what_class_it_had(lab):
    record = grade(lab, submission(lab, mean=LEAKS["raises its arguments"]), "none")
    assert points(record) == {"mean": 0.0, "rescale": 60.0}
    assert record.tests[0].output == "ValueError: [[hidden]]"


def test_what_came_before_the_first_hidden_line_is_shown_in_full(lab):
    record = grade(
        lab, submission(lab, 'print("early")', mean='def mean(values):\n    raise ValueError("about 3")'), "none"
    )
    assert "ValueError: about 3" in record.tests[0].output
    executed = execute(submission(lab, 'print("early")'), lab, Options("none"), Report())
    assert executed.cells[0].outputs[0].text == "early\n"


def test_a_students_own_check_shows_everything(lab):
    """It has no hidden tests."""
    report = Report()
    execute(submission(lab, mean=LEAKS["prints its arguments"]), lab, Options("none", visible=True), report)
    texts = [o.get("text", "") for c in report.notebook.cells for o in c.get("outputs", [])]
    assert any("[1.0, 2.0, 6.0]" in text for text in texts)


def test_what_a_check_says_stays():
    failed = Outcome(error="CheckFailed", message="mean of 2 numbers\n  value 3", line=9)
    assert Redactor().redact(failed, hidden_from=4) == failed


def test_redactor_begins_at_the_hidden_line_and_does_not_end():
    redactor = Redactor()
    early = Outcome(error="ValueError", message="3", quoted="3", unquoted=NOT_SHOWN, line=3)
    assert redactor.redact(early, hidden_from=4) == early
    assert redactor.redact(Outcome(ok=True, student_printed="x"), hidden_from=4).student_printed == f"{NOT_SHOWN}\n"
    assert redactor.redact(Outcome(ok=True, student_printed="x")).student_printed == f"{NOT_SHOWN}\n"
    assert redactor.redact(early, hidden_from=4).message == "[hidden]"
    assert redactor.redact(early, of_lab=False).message == NOT_SHOWN


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("division by zero", "division by zero"),
        ("byte 512: bad checksum", "byte 512: bad checksum"),
        ("byte 513: bad checksum", "byte [hidden]: bad checksum"),
        ("byte 512.5: bad checksum", "byte [hidden]: bad checksum"),
        ("all_reduce (f, line 7) was called 3 times", "all_reduce (f) was called [hidden] times"),
        ("no file secret.tar here", "no file [hidden].tar here"),
        ("[ 3.25 -1e-05]", "[ [hidden]]"),
        ("x" * 200, "x" * 200),
        ("x" * 100 + "y" * 101, "x" * 60 + " … " + "x" * 39 + "y" * 101),
    ],
)
def test_of_a_message_stays_what_helps_an_honest_student(words, shown):
    redactor = Redactor(known=frozenset({"512", "tar"}), hidden=frozenset({"secret", "tar"}), begun=True)
    failed = Outcome(error="ValueError", message=words, quoted=words, unquoted=NOT_SHOWN, line=9)
    assert redactor.redact(failed, hidden_from=4).message == shown


def test_a_check_that_quotes_a_message_does_so_without_its_numbers():
    said = f"a title\n  value      f(3) raised ValueError: {NOT_SHOWN}\n  expected   a message that contains 'x'"
    failed = Outcome(error="CheckFailed", quoted="is 77 now", unquoted=said, line=9)
    assert Redactor().redact(failed, hidden_from=4).message == said.replace(NOT_SHOWN, "is [hidden] now")
