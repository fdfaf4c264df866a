"""The rules of right and wrong answers: every one is graded, or lint says why not."""

import pytest
from threeloops_grader.authoring.answers import right_answers, wrong_answers
from threeloops_grader.authoring.lint import lint
from toy_course import RIGHT

ANOTHER = """\
# expect: the peak
TINY, rescale = 0.0, lambda values, top: values
"""
"""A wrong answer to `rescale` that is another program than the reference."""

NO_LONGER_THERE = """
## wrong/rescale__odd
- expect: the peak
```diff
-    peak = np.abs(values).max(initial=1.0)
+    peak = 1.0
```
"""


def add(toy, *changes):
    """Add sections to `answers.md`; return the line of the last one."""
    path = toy.folder / "answers.md"
    path.write_text("\n".join([path.read_text(), *changes]))
    return max(number for number, line in enumerate(path.read_text().splitlines(), 1) if line.startswith("## "))


def section(name, *keys, removed="    peak = np.abs(values).max(initial=0.0)", added="    peak = 1.0"):
    return "\n".join([f"## {name}", *keys, "```diff", f"-{removed}", f"+{added}", "```", ""])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mean__says_nothing", "def mean(values): return 0.0\n", "'expect: <words of the failing check's message>' is"),
        (
            "median__sorts",
            "# expect: x\ndef mean(values): return 0.0\n",
            "wrong/median__sorts.py: expected wrong/<exercise>__",
        ),
        ("mean", "# expect: x\ndef mean(values): return 0.0\n", "expected wrong/<exercise>__<what_is_wrong>"),
        ("mean__broken", "# expect: x\ndef mean(values) return 0.0\n", "wrong/mean__broken.py is not Python: line 2"),
        ("rescale__lost", "# expect: x\ndef rescale(values, top): return values\n", "does not define TINY"),
    ],
)
def test_a_wrong_answer_that_could_not_grade_the_grader_is_named(toy, name, text, message):
    (toy.folder / "wrong" / f"{name}.py").write_text(text)
    (fault,) = lint(toy)
    assert fault.startswith(f"90_toy, wrong/{name}.py") and message in fault


def test_each_exercise_needs_three_wrong_answers(toy):
    (toy.folder / "wrong" / "mean__accepts_an_empty_list.py").unlink()
    assert lint(toy) == ["90_toy, cell mean has 2 known-wrong answers, expected 3"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mean__broken.py", "def mean(values) return 0.0\n", "right/mean__broken.py is not Python: line 1"),
        (
            "maen__by_hand.py",
            "",
            "right/maen__by_hand.py: expected right/<exercise>__<how> (two underscores), where the",
        ),
        ("mean_by_hand.py", "", "the exercises are mean, rescale; rename it, or no command grades it"),
        ("mean__by_hand.txt", "", "right/mean__by_hand.txt: expected right/<exercise>__<how>"),
        ("mean__.py", "", "right/mean__.py: expected right/<exercise>__<how>"),
        ("mean__renamed.py", "def average(values): ...\n", "does not define mean, which the tests of mean use"),
    ],
)
def test_a_right_answer_that_would_not_be_graded_is_named(toy, name, text, message):
    (toy.folder / "right" / name).write_text(text or RIGHT["mean__by_statistics"])
    (found,) = lint(toy)
    assert found.startswith(f"90_toy, right/{name}") and message in found


def test_a_right_answer_may_do_without_a_helper_of_the_reference_and_leave_files_of_editors(toy):
    (toy.folder / "right" / "rescale__without_tiny.py").write_text("def rescale(values, top): ...\n")
    (toy.folder / "right" / ".mean__by_hand.py.swp").write_text("")
    (toy.folder / "right" / "__pycache__").mkdir()
    assert lint(toy) == []


def test_a_change_is_graded_as_the_whole_text_of_its_cell(toy):
    add(toy, section("right/rescale__a_larger_peak", added="    peak = max(0.0, np.abs(values).max(initial=0.0))"))
    (answer,) = (answer for answer in right_answers(toy) if answer.exercise == "rescale")
    assert answer.text == (
        "TINY = 0.0\n\n\ndef rescale(values, top):\n"
        '    """Scale an array to a largest magnitude of `top`."""\n'
        "    values = np.asarray(values, dtype=np.float64)\n"
        "    peak = max(0.0, np.abs(values).max(initial=0.0))\n"
        "    return values * (top / peak) if peak > TINY else values.copy()\n"
    )
    assert lint(toy) == []


def test_changes_and_whole_files_are_the_answers_of_a_lab_in_the_order_of_their_names(toy):
    known = {answer.name: answer.place for answer in wrong_answers(toy)}
    assert list(known) == sorted(known)
    assert len(known) == 6
    assert known["mean__accepts_an_empty_list"] == "wrong/mean__accepts_an_empty_list.py"
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


def test_a_whole_file_that_repeats_the_reference_is_refused_with_the_change_to_write_instead(toy):
    reference = next(cell.source for cell in toy.master().cells if cell.id == "rescale")
    text = "\n".join(line for line in reference.splitlines() if "###" not in line).replace("np.abs(values)", "values")
    (toy.folder / "wrong" / "rescale__odd.py").write_text(f"# expect: the peak\n# fails: values\n{text}\n")
    (fault,) = lint(toy)
    said, _, change = fault.partition("\n")
    assert said == "90_toy, wrong/rescale__odd.py repeats the reference: remove it, and add to answers.md:"
    (toy.folder / "wrong" / "rescale__odd.py").unlink()
    add(toy, change)
    assert lint(toy) == []
    assert next(answer.text for answer in wrong_answers(toy) if answer.name == "rescale__odd") == f"{text}\n"


def test_an_answer_in_a_file_and_in_a_section_is_named(toy):
    (toy.folder / "wrong" / "rescale__divides_by_zero.py").write_text(ANOTHER)
    (fault,) = lint(toy)
    assert fault.endswith(
        "wrong/rescale__divides_by_zero.py and answers.md:33, wrong/rescale__divides_by_zero have the same name; "
        "rename or remove one"
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
    text = ANOTHER if name == "rescale" else "# expect: x\ndef mean(values): return 0.0\n"
    first, _, rest = text.partition("\n")
    (toy.folder / "wrong" / f"{name}__odd.py").write_text(f"{first}\n# Why: as in the lecture\n\n# {line}\n{rest}")
    (of_file,) = lint(toy)
    assert of_file.startswith(f"90_toy, wrong/{name}__odd.py: ") and message in of_file
    (toy.folder / "wrong" / f"{name}__odd.py").unlink()
    removed = (
        {} if name == "rescale" else {"removed": "    return sum(values) / len(values)", "added": "    return 0.0"}
    )
    number = add(toy, section(f"wrong/{name}__odd", "Why: as in the lecture", "- expect: x", f"- {line}", **removed))
    (of_section,) = lint(toy)
    assert of_section.startswith(f"90_toy, answers.md:{number}, wrong/{name}__odd: ") and message in of_section


def test_ordinary_comments_are_no_keys_and_hide_none(toy):
    (toy.folder / "wrong" / "rescale__odd.py").write_text(
        "# expect: the peak\n# Why: nobody looks at zeros.\n# note: as in the lecture\n#fails:zeros\n"
        "TINY = 0  # caught: x\n"
    )
    known = next(answer for answer in wrong_answers(toy) if answer.name == "rescale__odd")
    assert (known.expect, known.fails, known.only_hidden) == ("the peak", ("zeros",), False)
