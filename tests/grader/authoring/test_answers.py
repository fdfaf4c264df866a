"""The rules of right and wrong answers: every one is graded, or lint says why not."""

import pytest
from threeloops_grader.authoring.answers import right_answers, wrong_answers
from threeloops_grader.authoring.lint import lint
from toy_course import BY_STATISTICS, add_answers, remove_answer, whole

ANOTHER = "TINY, rescale = 0.0, lambda values, top: values\n"
"""A wrong answer to `rescale` that is another program than the reference."""

NO_LONGER_THERE = """
## wrong/rescale__odd
- expect: the peak
```diff
-    peak = np.abs(values).max(initial=1.0)
+    peak = 1.0
```
"""


def section(name, *keys, removed="    peak = np.abs(values).max(initial=0.0)", added="    peak = 1.0"):
    return "\n".join([f"## {name}", *keys, "```diff", f"-{removed}", f"+{added}", "```", ""])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("median__sorts", "def mean(values): return 0.0\n", "wrong/median__sorts: expected wrong/<exercise>__"),
        ("mean", "def mean(values): return 0.0\n", "expected wrong/<exercise>__<what_is_wrong>"),
        (
            "mean__broken",
            "\ndef mean(values) return 0.0\n",
            "wrong/mean__broken is not Python: line 2 of its text: ",
        ),
        ("rescale__lost", "def rescale(values, top): return values\n", "does not define TINY"),
    ],
)
def test_a_wrong_answer_that_could_not_grade_the_grader_is_named(toy, name, text, message):
    line = add_answers(toy, whole(f"wrong/{name}", text, "- expect: x"))
    (fault,) = lint(toy)
    assert fault.startswith(f"90_toy, answers.md:{line}, wrong/{name}") and message in fault


def test_a_wrong_answer_says_which_words_it_must_earn(toy):
    line = add_answers(toy, whole("wrong/mean__says_nothing", "def mean(values): return 0.0\n"))
    assert lint(toy) == [
        f"90_toy, answers.md:{line}, wrong/mean__says_nothing: "
        "'- expect: <words of the failing check's message>' is missing below its heading"
    ]


def test_each_exercise_needs_three_wrong_answers(toy):
    remove_answer(toy, "wrong/mean__accepts_an_empty_list")
    assert lint(toy) == ["90_toy, cell mean has 2 known-wrong answers, expected 3"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "mean__broken",
            "def mean(values) return 0.0\n",
            "right/mean__broken is not Python: line 1 of its text: ",
        ),
        (
            "maen__by_hand",
            BY_STATISTICS,
            "right/maen__by_hand: expected right/<exercise>__<how> (two underscores), where the",
        ),
        ("mean_by_hand", BY_STATISTICS, "the exercises are mean, rescale; rename it, or no command grades it"),
        ("mean__", BY_STATISTICS, "right/mean__: expected right/<exercise>__<how>"),
        ("mean__renamed", "def average(values): ...\n", "does not define mean, which the tests of mean use"),
    ],
)
def test_a_right_answer_that_would_not_be_graded_is_named(toy, name, text, message):
    line = add_answers(toy, whole(f"right/{name}", text))
    (fault,) = lint(toy)
    assert fault.startswith(f"90_toy, answers.md:{line}, right/{name}") and message in fault


@pytest.mark.parametrize("side", ["right", "wrong"])
def test_a_folder_of_answers_is_named_because_no_command_reads_it(toy, side):
    (toy.folder / side).mkdir()
    assert lint(toy) == [
        f"90_toy, {side}/: no command reads this folder; move its answers to answers.md, and remove it"
    ]


def test_a_right_answer_may_do_without_a_helper_of_the_reference(toy):
    add_answers(toy, whole("right/rescale__without_tiny", "def rescale(values, top): ...\n"))
    assert lint(toy) == []


def test_a_change_is_graded_as_the_whole_text_of_its_cell(toy):
    add_answers(
        toy, section("right/rescale__a_larger_peak", added="    peak = max(0.0, np.abs(values).max(initial=0.0))")
    )
    (answer,) = (answer for answer in right_answers(toy) if answer.exercise == "rescale")
    assert answer.text == (
        "TINY = 0.0\n\n\ndef rescale(values, top):\n"
        '    """Scale an array to a largest magnitude of `top`."""\n'
        "    values = np.asarray(values, dtype=np.float64)\n"
        "    peak = max(0.0, np.abs(values).max(initial=0.0))\n"
        "    return values * (top / peak) if peak > TINY else values.copy()\n"
    )
    assert lint(toy) == []


def test_a_whole_text_is_graded_as_it_stands(toy):
    text = "def rescale(values, top):\n\n    # `#` and `##` begin no heading here\n    return values\n"
    add_answers(toy, whole("right/rescale__odd", text))
    assert next(answer.text for answer in right_answers(toy) if answer.exercise == "rescale") == text


def test_changes_and_whole_texts_are_the_answers_of_a_lab_in_the_order_of_their_names(toy):
    known = {answer.name: answer.place for answer in wrong_answers(toy)}
    assert list(known) == sorted(known)
    assert len(known) == 6
    assert known["mean__accepts_an_empty_list"] == "answers.md:42, wrong/mean__accepts_an_empty_list"
    assert known["mean__forgets_to_divide"] == "answers.md:3, wrong/mean__forgets_to_divide"


def test_a_reference_that_no_longer_has_the_lines_of_a_change_is_named(toy):
    toy.source.write_text(toy.source.read_text().replace("np.abs(values).max(initial=0.0)", "abs(values).max()"))
    faults = lint(toy)
    assert len(faults) == 2
    assert faults[0] == (
        "90_toy, answers.md:17, wrong/rescale__divides_by_the_sum, line 20: "
        "the reference does not have these lines, one after the other:\n"
        "        peak = np.abs(values).max(initial=0.0)\n"
        "        return values * (top / peak) if peak > TINY else values.copy()"
    )
    with pytest.raises(ValueError, match="rescale__divides_by_the_sum, line 20"):
        wrong_answers(toy)


def test_a_whole_text_that_repeats_the_reference_is_refused_with_the_change_to_write_instead(toy):
    reference = next(cell.source for cell in toy.master().cells if cell.id == "rescale")
    text = "\n".join(line for line in reference.splitlines() if "###" not in line).replace("np.abs(values)", "values")
    line = add_answers(toy, whole("wrong/rescale__odd", text, "- expect: the peak", "- fails: values"))
    (fault,) = lint(toy)
    said, _, change = fault.partition("\n")
    assert said == f"90_toy, answers.md:{line}, wrong/rescale__odd repeats the reference: replace it by its change:"
    remove_answer(toy, "wrong/rescale__odd")
    add_answers(toy, change)
    assert lint(toy) == []
    assert next(answer.text for answer in wrong_answers(toy) if answer.name == "rescale__odd") == f"{text}\n"


def test_two_answers_of_one_name_are_named(toy):
    line = add_answers(toy, whole("wrong/rescale__divides_by_zero", ANOTHER, "- expect: the peak"))
    (fault,) = lint(toy)
    assert fault.endswith(
        f"answers.md:33, wrong/rescale__divides_by_zero and answers.md:{line}, wrong/rescale__divides_by_zero "
        "have the same name; rename or remove one"
    )


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("rescale", "fails: value", "'fails: value': rescale has no part 'value'; the parts are values, zeros"),
        ("rescale", "fails: values, zero", "rescale has no part 'zero'; the parts are values, zeros"),
        ("mean", "fails: values", "mean has no part 'values'; it has no parts: take the line out"),
        ("rescale", "fail: values", "'fail: values': no such key; the keys are expect, fails, caught"),
        ("rescale", "Fails: values", "'Fails: values': no such key"),
        ("rescale", "failed: values", "'failed: values': no such key"),
        ("rescale", "cought: hidden", "'cought: hidden': no such key"),
        ("rescale", "caught: visible", "'caught: visible': expected hidden, or no such line"),
    ],
)
def test_a_key_that_names_no_part_or_is_none_is_named(toy, name, line, message):
    removed = (
        {} if name == "rescale" else {"removed": "    return sum(values) / len(values)", "added": "    return 0.0"}
    )
    text = section(f"wrong/{name}__odd", "Why: as in the lecture", "- expect: x", f"- {line}", **removed)
    number = add_answers(toy, text)
    (fault,) = lint(toy)
    assert fault.startswith(f"90_toy, answers.md:{number}, wrong/{name}__odd: ") and message in fault
