"""The rules of `right/` and `wrong/`: every file is graded, or lint says why not."""

import pytest
from toy_course import RIGHT, WRONG

from grader.authoring.answers import KnownWrong
from grader.authoring.lint import lint


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mean__says_nothing", "def mean(values): return 0.0\n", "line 1 must be '# expect:"),
        (
            "median__sorts",
            "# expect: x\ndef mean(values): return 0.0\n",
            "wrong/median__sorts.py: expected <exercise>__",
        ),
        ("mean", "# expect: x\ndef mean(values): return 0.0\n", "wrong/mean.py: expected <exercise>__<what_is_wrong>"),
        ("mean__broken", "# expect: x\ndef mean(values) return 0.0\n", "wrong/mean__broken.py is not Python"),
        ("rescale__lost", "# expect: x\ndef rescale(values, top): return values\n", "does not define TINY"),
    ],
)
def test_a_wrong_answer_that_could_not_grade_the_grader_is_named(toy, name, text, message):
    (toy.wrong / f"{name}.py").write_text(text)
    assert any(message in found for found in lint(toy))


def test_each_exercise_needs_three_wrong_answers(toy):
    (toy.wrong / f"{next(n for n in WRONG if n.startswith('mean'))}.py").unlink()
    assert lint(toy) == ["90_toy, cell mean has 2 known-wrong answers in wrong/, expected 3"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mean__broken.py", "def mean(values) return 0.0\n", "right/mean__broken.py is not Python: line 1"),
        ("maen__by_hand.py", "", "right/maen__by_hand.py: expected <exercise>__<how>.py (two underscores), where the"),
        ("mean_by_hand.py", "", "the exercises are mean, rescale; rename it, or no command grades it"),
        ("mean__by_hand.txt", "", "right/mean__by_hand.txt: expected <exercise>__<how>.py"),
        ("mean__.py", "", "right/mean__.py: expected <exercise>__<how>.py"),
        ("mean__renamed.py", "def average(values): ...\n", "does not define mean, which the tests of mean use"),
    ],
)
def test_a_right_answer_that_would_not_be_graded_is_named(toy, name, text, message):
    (toy.right / name).write_text(text or RIGHT["mean__by_statistics"])
    (found,) = lint(toy)
    assert found.startswith(f"90_toy, right/{name}") and message in found


def test_a_right_answer_may_do_without_a_helper_of_the_reference_and_leave_files_of_editors(toy):
    (toy.right / "rescale__without_tiny.py").write_text("def rescale(values, top): ...\n")
    (toy.right / ".mean__by_hand.py.swp").write_text("")
    (toy.right / "__pycache__").mkdir()
    assert lint(toy) == []


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("rescale", "fails: value", "'# fails: value': rescale has no part 'value'; the parts are values, zeros"),
        ("rescale", "fails: values, zero", "rescale has no part 'zero'; the parts are values, zeros"),
        ("mean", "fails: values", "mean has no part 'values'; it has no parts: take the line out"),
        ("rescale", "fail: values", "'# fail: values': no such key; the keys are expect, fails, caught"),
        ("rescale", "Fails: values", "'# Fails: values': no such key"),
        ("rescale", "failed: values", "'# failed: values': no such key"),
        ("rescale", "why\n\n# cought: hidden", "'# cought: hidden': no such key"),
    ],
)
def test_a_header_that_names_no_part_or_no_key_is_named(toy, name, line, message):
    text = WRONG["mean__forgets_to_divide" if name == "mean" else "rescale__divides_by_the_sum"]
    first, _, rest = text.partition("\n")
    (toy.wrong / f"{name}__odd.py").write_text(f"{first}\n# {line}\n{rest}")
    assert [found.startswith(f"90_toy, wrong/{name}__odd.py: ") and message in found for found in lint(toy)] == [True]


def test_ordinary_comments_are_no_keys_and_hide_none(toy):
    path = toy.wrong / "rescale__odd.py"
    path.write_text(
        "# expect: the peak\n# Why: nobody looks at zeros.\n# note: as in the lecture\n#fails:zeros\n"
        "TINY = 0  # caught: x\n"
    )
    known = KnownWrong.read(path)
    assert (known.expect, known.fails, known.only_hidden) == ("the peak", ("zeros",), False)
