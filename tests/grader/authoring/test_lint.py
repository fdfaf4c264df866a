# ruff: noqa: E501 (one edit and its message stand on one line)
"""The rules of a lab's source: a sound lab passes, and each broken rule is named with its lab and its cell."""

import pytest
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.authoring.lint import lint, require_sound
from threeloops_grader.authoring.names import bound, imported_modules, used
from threeloops_grader.authoring.regions import regions, without
from toy_course import DIVES, SOURCE, add_dives

TEST = '"locked": true, "points": 45, "schema_version": 3, "solution": false, "task": false}'


def edited(lab, old, new):
    """The lab with one edit of its source; the edit must apply."""
    assert old in SOURCE, f"the toy's source no longer holds {old!r}"
    lab.source.write_text(SOURCE.replace(old, new, 1))
    return lint(lab)


def test_the_toy_is_sound(toy):
    assert lint(toy) == []
    require_sound(toy)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"points": 40', '"points": 30', "points: the test cells give 90 together, expected 100"),
        ('"points": 40', '"points": 0', "cell mean_test: points = 0, expected more than 0"),
        ('"grade_id": "mean_test"', '"grade_id": "test_mean"', "there is no solution 'test_mean'"),
        ('"grade_id": "mean_test"', '"grade_id": "test_mean"', "cell mean has 0 test cells (none): expected 1 to 4"),
        ('"grade_id": "rescale"', '"grade_id": "mean"', "cell mean: 2 cells have this grade_id"),
        ('# %% tags=["demo"] jupyter={"source_hidden": true}\nhint', "# %%\nhint", "is code and neither setup, demo, solution nor test"),
        ('"grade_id": "mean_test"', '"grade_id": "rescale_test"', "cell rescale_test: where an exercise has several tests, each names its part"),
        ('"grade_id": "setup", "locked": true', '"grade_id": "setup", "locked": false', "it needs a grade_id and locked"),
        ('"grade_id": "mean", "locked": false', '"grade_id": "mean", "locked": true', "locked must be false"),
        (TEST, TEST.replace("true", "false", 1), "cell rescale_test_values is graded: it must be code and locked"),
        (TEST, TEST.replace("3", "2"), "cell rescale_test_values: schema_version is 2, expected 3"),
        ("#     title: A toy with two exercises\n", "", "header: threeloops.title is missing"),
        ("#     withholds: [threeloops.inner.roofline]\n", "", "header: threeloops.withholds must list the modules"),
        ("threeloops.inner.roofline", "threeloops.inner.rooflin", "withholds threeloops.inner.rooflin, but there is no"),
        ("threeloops.inner.roofline", "threeloops.outer.roofline", "withholds threeloops.outer.roofline, but there is no"),
        ("cell_seconds: 120", "cell_minutes: 2", "limits.cell_minutes is unknown"),
        ("import numpy as np\n", "import numpy as np\nfrom threeloops.inner import roofline\n", "cell setup imports threeloops.inner.roofline, which is withheld"),
        ("    for n in (1, 2, 127)", "    import threeloops.inner.roofline\n    for n in (1, 2, 127)", "cell mean_test imports threeloops.inner.roofline"),
        ("TINY = 0.0", "from threeloops.inner.roofline import Work", "cell rescale imports threeloops.inner.roofline"),
        ("SAMPLES = [", "middle = mean([1.0])\nSAMPLES = [", "cell setup depends on mean, which an exercise asks for"),
        ("SAMPLES = [", "def draw(f=None):\n    return (f or mean)([1.0])\n\nSAMPLES = [", "cell setup depends on mean"),
        ("SAMPLES = [", "try:\n    mean\nexcept NameError:\n    pass\nSAMPLES = [", "cell setup depends on mean"),
        ("SAMPLES = [", "mine = globals().get('mean')\nSAMPLES = [", "cell setup depends on mean"),
        ("SAMPLES = [", "mean = np.mean\nSAMPLES = [", "cell setup defines mean, as a solution cell does"),
        ("SAMPLES = [", "mean = mean\nSAMPLES = [", "cell setup defines mean, as a solution cell does"),
        ("SAMPLES = [", "print(later)\nSAMPLES = [", "cell setup uses later: neither a builtin, nor from a setup cell above"),
        ("TINY = 0.0", "print('hello')", "cell rescale, line 1: a solution defines functions, classes and constants only"),
        ("TINY = 0.0", "sum = 0.0", "cell rescale defines sum, which is a builtin"),
        ("mean(SAMPLES)", "mean(DATA)", "cell mean_test uses DATA: neither a builtin, nor from setup"),
        ("    ### END HIDDEN TESTS\n", "    ### END HIDDEN TESTS\n    check.true(values, '')\n", "cell mean_test (visible part) uses values"),
        ("mean(SAMPLES), 3.0", "median(SAMPLES), 3.0", "cell mean_test uses median"),
        ("mean(SAMPLES), 3.0", "mean(rescale(SAMPLES)), 3.0", "cell mean_test uses rescale, which another exercise asks for"),
        ("mean(SAMPLES), 3.0", "mean(globals()['rescale'](SAMPLES)), 3.0", "cell mean_test uses rescale, which another exercise asks for"),
        ("    return sum(values)", "    return sum(values", "cell mean is not plain Python"),
        ("    values = np.asarray", "    %timeit 1\n    values = np.asarray", "cell rescale is not plain Python"),
        ("    ### END SOLUTION\n\n# %% tags", "\n# %% tags", "cell mean: a SOLUTION region is opened and never closed"),
        ("    ### BEGIN SOLUTION\n    if not", "    if not", "cell mean: line 6 closes a SOLUTION region that was never"),
        ("### BEGIN SOLUTION\n    if not", "pass ### BEGIN SOLUTION\n    if not", "is not a marker"),
        ("### END SOLUTION\n\n# %% tags", "### END SOLUTIONS\n\n# %% tags", "line 7, '### END SOLUTIONS', is not a marker: expected '### END SOLUTION' on a line of its own"),
        ("    ### BEGIN HIDDEN TESTS\n    for n", "    for n", "closes a HIDDEN TESTS region that was never opened"),
        ('hint("mean", "Add them up."', '### BEGIN SOLUTION\n### END SOLUTION\nhint("mean", "x"', "only solution cells may"),
        ('# %% tags=["demo"] jupyter={"source_hidden": true}\nhint', '# %% tags=["demo"]\nhint', "shows its hints"),
        ('"grade_id": "reflection"', '"grade_id": "thoughts"', "has the written answers thoughts: expected exactly one"),
        ("# In your own words: when is a mean a poor summary?\n\n# %% [markdown]", "#", "has the written answers none"),
    ],
)  # fmt: skip
def test_each_broken_rule_is_named(toy, old, new, message):
    assert any(message in found for found in edited(toy, old, new)), lint(toy)


@pytest.mark.parametrize(
    ("named", "kind", "expected"),
    [
        ("mean", "5 ('def mean(values):') is a solution cell", "<exercise>"),
        ("mean_test", '7 (\'with check("mean", "the mean of a list")\') is a test cell', "<exercise>_test"),
        ("reflection", "13 ('A mean follows its outliers.') is a reflection cell", "reflection"),
    ],
)
def test_a_graded_cell_without_a_grade_id_is_named_and_nothing_that_follows_from_it(toy, named, kind, expected):
    assert edited(toy, f'"grade_id": "{named}", ', "") == [
        f'90_toy, cell {kind} without a name: add "grade_id": "{expected}" to its nbgrader metadata'
    ]


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        ("![bars](attachment:opening.png)", "cell 1 ('# A toy with two exercises') shows attachment:opening.png, and no cell draws it"),
        ("![bars](attachment:queue.png)", "shows attachment:queue.png, which the released lab would not have: put the file into data/"),
        ("![a queue](pictures/queue.png)", "shows pictures/queue.png, which the released lab would not have"),
        ('<img alt="a queue" src="pictures/queue.png">', "shows pictures/queue.png, which the released lab would not have"),
        ("![a queue](data/queue.png)", "list it in data/MANIFEST.json, and show data/queue.png"),
        ("![a queue](<data/../samples.txt>)", "shows data/../samples.txt"),
    ],
)  # fmt: skip
def test_a_picture_that_students_would_not_get_is_named(toy, picture, message):
    found = edited(toy, "# What is the middle", f"# {picture}\n#\n# What is the middle")
    assert len(found) == 1 and message in found[0], found
    toy.source.write_text(SOURCE)
    add_dives(toy, DIVES.replace("# What does", f"# {picture}\n#\n# What does"))
    found = lint(toy)
    assert len(found) == 1 and found[0].startswith("90_toy, dives: cell 1 ('# Deep dives') shows "), found


@pytest.mark.parametrize(
    "picture",
    ["![three](./data/samples.txt 'numbers')", "![b](data:image/png;base64,AAAA)", "![b](https://example.org/b.png)"],
)
def test_a_picture_that_lies_in_data_or_in_the_text_is_none_of_them(toy, picture):
    assert edited(toy, "# What is the middle", f"# {picture}\n#\n# What is the middle") == []


def demo(text):
    return f'# %% tags=["demo"]\n{text}\n\n# %% [markdown]\n# In your own words'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("print(mean(SAMPLES))", "cell 12 ('print(mean(SAMPLES))') uses mean, which an exercise asks for, and catches nothing"),
        ("def draw():\n    return rescale(SAMPLES, 1.0)\nprint(draw())", "uses rescale, which an exercise asks for"),
        ("print(SAMPLE)", "cell 12 ('print(SAMPLE)') uses SAMPLE: neither a builtin, nor defined by a cell above it"),
        ("try:\n    print(mean(SAMPLES))\nexcept NotImplementedError:\n    print('The mean appears here.')", ""),
        ("display(SAMPLES, get_ipython(), nbformat)", ""),
        ("%timeit sum(SAMPLES)", ""),
    ],
)  # fmt: skip
def test_a_demonstration_that_would_fail_in_an_untouched_lab_is_named(toy, text, message):
    found = edited(toy, "# %% [markdown]\n# In your own words", demo(text))
    assert [message in each for each in found] == [True] * bool(message), found


def test_a_demonstration_above_the_exercise_that_it_shows_is_named(toy):
    found = edited(
        toy, "# %% [markdown]\n# ## Exercise 1", '# %% tags=["demo"]\nmean([1.0])\n\n# %% [markdown]\n# ## Exercise 1'
    )
    assert found == ["90_toy, cell 4 ('mean([1.0])') uses mean: neither a builtin, nor defined by a cell above it"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title: A toy", "title: A: toy", "line 7: the header, between the lines `# ---`, is not YAML: mapping values are"),
        ("threeloops.inner.roofline]", "threeloops.inner.roofline", "is not YAML: expected ',' or ']'"),
        ("#   threeloops:\n", "#   threeloops: A toy\n#   more:\n", "the header's threeloops is 'A toy', expected lines"),
    ],
)  # fmt: skip
def test_a_header_that_cannot_be_read_is_one_sentence_with_the_file(toy, old, new, message):
    with pytest.raises(LabError) as refusal:
        edited(toy, old, new)
    assert message in str(refusal.value) and str(refusal.value).startswith(str(toy.source))


@pytest.mark.parametrize("text", ['{"file": "samples.txt"}', '["samples.txt"]', "3"])
def test_a_manifest_of_another_shape_is_named(toy, text):
    (toy.data / "MANIFEST.json").write_text(text)
    (found,) = lint(toy)
    assert found.startswith("90_toy, data/: MANIFEST.json must be a list with an object for each file")


@pytest.mark.parametrize(
    "harmless",
    [
        "def twice(mean):\n    return 2 * mean([1.0])",
        "WORDS = {'mean': 'the middle'}",
        "np.mean([1.0])",
        "def draw(*, mean): ...",
    ],
)
def test_a_setup_cell_may_take_an_answer_as_an_argument_and_have_its_name_in_a_text(toy, harmless):
    assert edited(toy, "SAMPLES = [", f"{harmless}\nSAMPLES = [") == []


def test_a_test_without_a_hidden_part_or_a_solution_without_a_region_would_be_released_whole(toy):
    for kind in ("SOLUTION", "HIDDEN TESTS"):
        text = SOURCE
        for side in ("BEGIN", "END"):
            text = text.replace(f"    ### {side} {kind}\n", "", 1)
        toy.source.write_text(text)
        assert any(f"has no {kind} region" in found for found in lint(toy))


def test_a_visible_part_that_checks_nothing_is_named(toy):
    first = (
        '    check.close(mean(SAMPLES), 3.0, what="mean of the samples", hint="the sum was not divided by the count")\n'
    )
    assert any("(visible part)" not in f and "without its HIDDEN TESTS region" in f for f in edited(toy, first, ""))
    found = edited(toy, 'with check("mean", "the mean of a list"):\n' + first, "if True:\n    mean(SAMPLES)\n")
    assert "90_toy, cell mean_test: its visible part checks nothing" in found


def test_a_test_that_calls_no_answer_is_named(toy):
    toy.source.write_text(SOURCE.replace("rescale(", "np.array(").replace("def np.array(", "def rescale("))
    assert any("cell rescale_test_values uses no name that a solution cell defines" in found for found in lint(toy))


def test_a_lab_without_exercises_is_named(toy):
    toy.source.write_text(SOURCE[: SOURCE.index("# %% [markdown]\n# ## Exercise 1")])
    assert any("has 0 exercises: a lab has between 1 and 8" in found for found in lint(toy))


def test_an_unlisted_data_file_is_named(toy):
    (toy.data / "extra.csv").write_text("1")
    assert lint(toy) == ["90_toy, data/: extra.csv is not listed in MANIFEST.json: add it with its source and licence, or remove it"]  # fmt: skip


def test_every_message_names_the_lab_and_all_faults_are_told_at_once(toy):
    toy.source.write_text(
        SOURCE.replace('"points": 40', '"points": 30').replace("#     minutes", "#     title:\n#     m")
    )
    with pytest.raises(LabError) as refusal:
        require_sound(toy)
    lines = str(refusal.value).splitlines()
    assert len(lines) == 2 and all(line.startswith("90_toy, ") for line in lines)


def test_used_names_follow_pythons_scopes():
    text = "import a\nfor i in range(n):\n    def f(x, *, y=k):\n        z = x\n        return [z + w for w in q if w] + a.b\n"
    assert used(text) == {"n", "k", "q"}
    assert used("with check('x') as c:\n    c(lambda u: u + v)\n") == {"check", "v"}
    assert used("class A(B):\n    size = depth\n    def g(self): return A, size\n") == {"B", "depth", "size"}
    assert used("total = total + 1\ndel other\n") == set()


def test_bound_names_are_those_of_the_top_level():
    text = "import os.path, numpy as np\nfrom math import pi as π\ndef f():\n    inner = 1\nfor i in (): pass\nX: int = 1\n"
    assert bound(text) == {"os", "np", "π", "f", "i", "X"}
    assert bound(text, imports=False) == {"f", "i", "X"}


def test_imported_modules_are_found_at_any_depth_and_in_both_spellings():
    text = "import a.b as c\ndef f():\n    from d.e import g, h\nfrom . import here\n"
    assert imported_modules(text) == {"a.b", "d.e", "d.e.g", "d.e.h"}


def test_a_region_becomes_nbgraders_stub_or_nothing():
    text = "def f():\n    a = 1\n    ### BEGIN SOLUTION\n    return a\n    ### END SOLUTION"
    assert regions(text, "SOLUTION") == ["    return a"]
    assert without(text, "SOLUTION") == "def f():\n    a = 1\n    # YOUR CODE HERE\n    raise NotImplementedError()"
    assert without(text, "HIDDEN TESTS") == text
    with pytest.raises(ValueError, match="line 2 opens a HIDDEN TESTS region inside another one"):
        regions("### BEGIN HIDDEN TESTS\n### BEGIN HIDDEN TESTS\n", "HIDDEN TESTS")


def test_deep_dives_hold_nothing_to_answer(toy):
    add_dives(toy)
    assert lint(toy) == []
    solution = SOURCE[SOURCE.index("# %% nbgrader") : SOURCE.index('# %% tags=["demo"] jupyter')]
    add_dives(toy, DIVES.replace("#     title: A toy with two exercises, deeper\n", "") + "\n" + solution)
    assert lint(toy) == [
        "90_toy, dives: header: threeloops.title is missing",
        "90_toy, dives: cell mean is a solution cell: only the core notebook is graded",
    ]
