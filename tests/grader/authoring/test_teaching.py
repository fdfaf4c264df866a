# ruff: noqa: E501 (one edit and its message stand on one line)
"""The rules of a lab of the second edition: a lab that keeps them passes, and each broken one is named."""

import pytest
from threeloops_grader.authoring.lint import lint
from threeloops_grader.authoring.teaching import _FOLDED_NOTE
from toy_course import BY_STATISTICS, DIVES, SOURCE, add_answers, add_dives, make_course, remove_answer, whole

FOLDED = 'jupyter={"source_hidden": true}'
ENDING = f"""\
# %% tags=["demo", "opening"] {FOLDED}
from threeloops.lab import animate, calibration, debrief, figure, predict, show

plot, axes = figure()
show.figure(plot, "three bars")

# %% tags=["demo"] {FOLDED}
debrief("mean", "The sum is shared out.")
debrief("rescale", "One division.", parts=("values", "zeros"))
animate(lambda frame: figure()[0], range(2))
calibration()

# %% [markdown]
# In your own words"""


def second_edition():
    text = SOURCE.replace("#     minutes: 5\n", "#     minutes: 5\n#     edition: 2\n")
    text = text.replace("one scale?\n", "one scale?\n#\n# ![three bars](attachment:opening.png)\n")
    text = text.replace("# %% nbgrader={", f"# %% {FOLDED} nbgrader={{").replace(
        "# %% [markdown]\n# In your own words", ENDING
    )
    first_folded = f'\n# %% {FOLDED} nbgrader={{"grade": false, "grade_id": "mean"'
    text = text.replace(first_folded, f"#\n# {_FOLDED_NOTE}\n{first_folded}")
    for exercise, title, part in (
        ("mean", "the mean of a list", ""),
        ("rescale", "an array on a new scale", "values"),
        ("rescale", "an array of zeros", "zeros"),
    ):
        said = f', part="{part}"' if part else ""
        text = text.replace(
            f'check("{exercise}", "{title}")', f'check("{exercise}", "{title}"{said}, hidden="other sizes")'
        )
    return text


@pytest.fixture
def second(tmp_path):
    lab = make_course(tmp_path, second_edition())
    for name in ("mean__in_a_loop", "mean__by_hand"):
        add_answers(lab, whole(f"right/{name}", BY_STATISTICS))
    for name in ("rescale__a", "rescale__b", "rescale__c"):
        add_answers(lab, whole(f"right/{name}", "def rescale(values, top): ...\n"))
    return lab


def test_a_lab_of_the_second_edition_is_sound(second):
    assert lint(second) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (f'# %% {FOLDED} nbgrader={{"grade": true, "grade_id": "mean_test"', '# %% nbgrader={"grade": true, "grade_id": "mean_test"', "cell mean_test (a test) shows its code"),
        (f'# %% tags=["demo", "opening"] {FOLDED}', '# %% tags=["demo", "opening"]', "(figure) shows its code"),
        ('["demo", "opening"]', '["demo"]', "shows attachment:opening.png, and no cell draws it"),
        (f'["demo"] {FOLDED}\ndebrief', f'["demo", "opening"] {FOLDED}\ndebrief', "has 2 cells tagged 'opening'"),
        ("![three bars](attachment:opening.png)", "Three bars", "the title shows no picture"),
        ('debrief("mean", "The sum is shared out.")\n', "", "cell mean: no debrief('mean', …)"),
        ('parts=("values", "zeros")', 'parts=("values",)', "its debrief opens after parts=('values',), expected ('values', 'zeros')"),
        ('part="zeros"', 'part="values"', "cell rescale_test_zeros: its check says part='values', expected 'zeros'"),
        ('list", hidden="other sizes"', 'list"', "cell mean_test: its check says hidden=… exactly where"),
        ('check("mean", ', 'check("median", ', "cell mean_test: its check must name the exercise 'mean'"),
        (_FOLDED_NOTE, "", "the text before the first folded cell must end with the line *Grey bars"),
        ('"three bars")', '"three *bars*")', "shows *bars* with its asterisks, in figure(…): drop them"),
        ('"three bars")', 'f"**three** {plot}")', "shows **three** with its asterisks, in figure(…): drop them"),
        ("animate(lambda frame: figure()[0], range(2))\n", "", "shows no animation"),
        ("calibration()\n", "", "asks for predictions and never shows"),
        ("# A mean follows", "#" + " word" * 2500 + "\n# A mean follows", "words of prose, expected at most 2500"),
        ("# %% [markdown]\n# In your own words", 46 * '# %% [markdown]\n# A cell.\n\n' + "# %% [markdown]\n# In your own words", "cells, expected at most 45"),
        ("SAMPLES = [", 151 * "LINE = 1\n" + "SAMPLES = [", "lines of code outside exercises that are not folded, expected at most 150"),
    ],
)  # fmt: skip
def test_each_broken_rule_is_named(second, old, new, message):
    text = second.source.read_text()
    assert old in text
    second.source.write_text(text.replace(old, new, 1))
    assert any(message in found for found in lint(second)), lint(second)


def test_the_dives_say_how_a_folded_cell_is_run(second):
    add_dives(second, DIVES.replace('# %% tags=["demo"]', f'# %% tags=["demo"] {FOLDED}', 1))
    (found,) = lint(second)
    assert found.startswith("90_toy, dives: the text before the first folded cell must end with")


def test_three_other_right_answers_show_that_an_unusual_one_passes(second):
    remove_answer(second, "right/mean__by_hand")
    assert lint(second) == ["90_toy, cell mean has 2 other right answers, expected 3"]


def test_a_lab_of_the_first_edition_is_not_held_to_them(toy):
    assert lint(toy) == []
