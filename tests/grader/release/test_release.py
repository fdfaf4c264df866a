"""`release` turns a source into what students get, and nothing that students must not get."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from threeloops.lab.course import loops
from threeloops_grader.authoring.answers import wrong_answers
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.authoring.regions import regions
from threeloops_grader.release.leaks import leaks
from threeloops_grader.release.preprocessors import CheckCells, content_hash
from threeloops_grader.release.release import not_on_the_map, release, stale
from toy_course import BY_STATISTICS, DIVES, SOURCE, add_data, add_dives, make_course, read

REPOSITORY = Path(__file__).parents[3]


def released_files(lab):
    folder = lab.released.parent
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_students_get_the_notebook_and_its_data_and_nothing_else(toy):
    assert release([toy]) == [toy.released]
    assert released_files(toy) == {"90_toy.ipynb", "data/samples.txt", "data/MANIFEST.json"}


def test_no_released_byte_holds_a_solution_a_hidden_test_or_a_wrong_answer(toy):
    release([toy])
    everything = "\n".join((toy.released.parent / name).read_text() for name in released_files(toy))
    for secret in ("BEGIN", "return sum(values) / len(values)", "a median is not a mean", "follows its outliers"):
        assert secret not in everything
    for answer in wrong_answers(toy):
        assert answer.text.splitlines()[-1] not in everything
    assert "expect:" not in everything
    assert "statistics.fmean" not in everything


def test_a_released_answer_cell_raises_until_it_is_written(toy):
    release([toy])
    mean = next(cell for cell in read(toy.released).cells if cell.id == "mean")
    assert '"""The arithmetic mean."""' in mean.source
    namespace = {}
    exec(mean.source, namespace)
    with pytest.raises(NotImplementedError):
        namespace["mean"]([1.0])


def test_visible_checks_setup_and_tags_reach_the_student(toy):
    release([toy])
    cells = {cell.id: cell for cell in read(toy.released).cells}
    assert "mean of the samples" in cells["mean_test"].source
    assert cells["mean_test"].metadata.nbgrader.points == 40
    assert cells["setup"].metadata.tags == ["setup"] and not cells["setup"].metadata.editable
    assert cells["reflection"].source == "YOUR ANSWER HERE"
    assert [c.metadata.tags for c in cells.values() if c.cell_type == "code" and "nbgrader" not in c.metadata] == [
        ["demo"],
        ["demo"],
    ]


def test_the_notebook_names_its_lab_and_release_and_keeps_no_trace_of_the_rest_of_the_header(toy):
    release([toy])
    metadata = read(toy.released).metadata
    assert set(metadata) == {"kernelspec", "threeloops"}
    assert metadata.threeloops == {"lab": "90_toy", "minutes": 5, "release": content_hash(read(toy.released))}


def test_cell_ids_are_those_of_the_source_so_that_an_added_paragraph_changes_no_other(toy):
    release([toy])
    before = [cell.id for cell in read(toy.released).cells]
    assert before == [cell.id for cell in toy.master().cells]
    toy.source.write_text(
        SOURCE.replace(
            "# %% [markdown]\n# ## Exercise 2",
            "# %% [markdown]\n# A new paragraph.\n\n# %% [markdown]\n# ## Exercise 2",
        )
    )
    release([toy])
    after = [cell.id for cell in read(toy.released).cells]
    assert [name for name in after if name in before] == before and len(after) == len(before) + 1


def test_two_releases_of_one_source_are_byte_for_byte_the_same(toy, tmp_path_factory):
    release([toy])
    twin = make_course(tmp_path_factory.mktemp("twin"))
    release([twin])
    for name in released_files(toy):
        assert (toy.released.parent / name).read_bytes() == (twin.released.parent / name).read_bytes()


def test_releasing_again_touches_no_file(toy):
    release([toy])
    before = {name: (toy.released.parent / name).stat().st_mtime_ns for name in released_files(toy)}
    release([toy])
    assert before == {name: (toy.released.parent / name).stat().st_mtime_ns for name in released_files(toy)}


def test_a_lab_on_the_map_of_which_the_outline_says_nothing_is_named(toy, monkeypatch):
    toy_lab = loops.Lab(90, "toy", "The toy", "What is a mean?", "start")
    monkeypatch.setattr(loops, "_LABS", (*loops.labs(), toy_lab))
    with pytest.raises(LabError, match="outline.json says nothing of 90_toy: add what each needs and measures"):
        release([toy])


def test_releasing_makes_no_gradebook_and_leaves_no_scratch(toy):
    release([toy])
    assert sorted(p.name for p in toy.root.iterdir()) == ["labs", "solutions"]
    assert sorted(p.name for p in (toy.root / "labs").iterdir()) == ["90_toy", "course.md", "glossary.md"]


def test_the_readme_gets_the_table_of_the_labs_that_there_are(tmp_path):
    lab = make_course(tmp_path)
    readme = tmp_path / "README.md"
    start, end = "<!-- the labs, written by `threeloops release` -->", "<!-- end of the labs -->"
    readme.write_text(f"before\n\n{start}\n\nsomething old\n{end}\n\nafter\n")
    assert "README.md differs from what the library says of the course" in stale([lab])
    assert not_on_the_map([lab]) == ["90_toy"]
    release([lab])
    assert stale([lab]) == []
    text = readme.read_text()
    assert "something old" not in text and "| lab | question | hours | needs |" in text
    assert text.startswith(f"before\n\n{start}\n\n|") and text.endswith(f"|\n\n{end}\n\nafter\n")


def test_a_readme_without_a_place_for_the_table_stays_as_it_is(tmp_path):
    lab = make_course(tmp_path)
    (tmp_path / "README.md").write_text("my course\n")
    release([lab])
    assert (tmp_path / "README.md").read_text() == "my course\n" and stale([lab]) == []


def test_the_release_hash_moves_with_what_students_see_and_not_with_hidden_tests(toy):
    def hash_of(source):
        toy.source.write_text(source)
        release([toy])
        return read(toy.released).metadata.threeloops.release

    first = hash_of(SOURCE)
    assert hash_of(SOURCE.replace("a median is not a mean", "neither median nor mode")) == first
    assert hash_of(SOURCE.replace("Add them up.", "Sum them.")) != first
    assert hash_of(SOURCE.replace('"points": 40', '"points": 45').replace('"points": 15', '"points": 10')) != first


def test_stale_names_each_file_that_is_not_what_the_sources_generate(toy):
    assert stale([toy]) == [
        "labs/90_toy/90_toy.ipynb is missing",
        "labs/90_toy/data/MANIFEST.json is missing",
        "labs/90_toy/data/samples.txt is missing",
        "labs/glossary.md differs from what the library says of the course",
        "labs/course.md differs from what the library says of the course",
    ]
    release([toy])
    assert stale([toy]) == []
    toy.source.write_text(SOURCE.replace("Add them up.", "Sum them."))
    (toy.released.parent / "notes.txt").write_text("mine")
    (toy.root / "labs" / "91_gone").mkdir()
    assert stale([toy]) == [
        "labs/90_toy/90_toy.ipynb differs",
        "labs/90_toy/notes.txt is not part of the release",
        "labs/91_gone has no source in solutions/",
    ]


def test_a_lab_executed_in_place_is_stale_and_released_anew(toy):
    release([toy])
    notebook = read(toy.released)
    notebook.cells[1].execution_count = 3
    nbformat.write(notebook, toy.released)
    assert stale([toy]) == ["labs/90_toy/90_toy.ipynb differs"]
    release([toy])
    assert stale([toy]) == []


def test_the_solution_notebook_is_the_source_with_its_header_and_answers(toy):
    release([toy])
    notebook = read(toy.solution_notebook)
    assert notebook.metadata.threeloops.withholds == ["threeloops.inner.roofline"]
    assert [cell.source for cell in notebook.cells] == [cell.source for cell in toy.master().cells]


def test_an_executed_but_unedited_solution_notebook_keeps_its_outputs(toy):
    release([toy])
    notebook = read(toy.solution_notebook)
    notebook.cells[1].execution_count = 7
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, toy.solution_notebook)
    release([toy])
    assert read(toy.solution_notebook).cells[1].execution_count == 7


def test_a_changed_source_replaces_an_unedited_solution_notebook(toy):
    release([toy])
    toy.source.write_text(SOURCE.replace("Add them up.", "Sum them."))
    release([toy])
    assert "Sum them." in toy.solution_notebook.read_text()


@pytest.mark.parametrize("edit", ["text", "points", "cell"])
def test_a_solution_notebook_edited_by_hand_is_never_overwritten(toy, edit):
    release([toy])
    notebook = read(toy.solution_notebook)
    if edit == "text":
        notebook.cells[0].source += "\n\nA paragraph typed in JupyterLab."
    elif edit == "points":
        next(c for c in notebook.cells if c.id == "mean_test").metadata.nbgrader.points = 35
    else:
        notebook.cells.insert(1, nbformat.v4.new_code_cell("1 + 1", metadata={"tags": ["demo"]}))
    nbformat.write(notebook, toy.solution_notebook)
    edited = toy.solution_notebook.read_bytes()
    command = "jupytext --to py:percent --output solutions/90_toy/90_toy.py solutions/90_toy/90_toy.ipynb"
    with pytest.raises(LabError, match="was edited after it was generated") as refusal:
        release([toy])
    assert command in str(refusal.value)
    assert toy.solution_notebook.read_bytes() == edited


def test_the_command_that_the_refusal_names_brings_the_edit_back_into_the_source(toy):
    shutil.copy(REPOSITORY / "pyproject.toml", toy.root)
    release([toy])
    notebook = read(toy.solution_notebook)
    notebook.cells[0].source += "\n\nA paragraph typed in JupyterLab."
    nbformat.write(notebook, toy.solution_notebook)
    with pytest.raises(LabError) as refusal:
        release([toy])
    command = next(line.split() for line in str(refusal.value).splitlines() if line.strip().startswith("jupytext"))
    subprocess.run([sys.executable, "-m", *command], cwd=toy.root, check=True, capture_output=True)
    release([toy])
    assert "A paragraph typed in JupyterLab." in toy.released.read_text()
    assert toy.withholds == ["threeloops.inner.roofline"] and toy.title == "A toy with two exercises"
    assert "generated" not in toy.source.read_text()


def test_a_damaged_solution_notebook_is_reported_and_kept(toy):
    toy.solution_notebook.write_text("{")
    with pytest.raises(LabError, match="cannot be read as a notebook"):
        release([toy])
    assert toy.solution_notebook.read_text() == "{"


def test_a_fault_in_one_lab_leaves_every_released_lab_as_it_was(toy):
    release([toy])
    before = toy.released.read_bytes()
    toy.source.write_text(SOURCE.replace('"points": 45', '"points": 35'))
    with pytest.raises(LabError, match="give 90 together, expected 100"):
        release([toy])
    assert toy.released.read_bytes() == before


def test_a_move_that_fails_puts_the_old_lab_back(toy, monkeypatch):
    release([toy])
    before = toy.released.read_bytes()
    toy.source.write_text(SOURCE.replace("Add them up.", "Sum them."))
    rename = Path.rename

    def full_disk(path, target):
        if Path(target) == toy.released.parent and path.parent.name == "labs":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", full_disk)
    with pytest.raises(OSError, match="No space left"):
        release([toy])
    assert toy.released.read_bytes() == before


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda lab: (lab.data / "extra.csv").write_text("1"), "extra.csv is not listed in MANIFEST.json"),
        (lambda lab: (lab.data / "samples.txt").write_text("1.0\n2.0\n7.0\n"), "samples.txt has sha256"),
        (
            lambda lab: (lab.data / "samples.txt").write_text("1.0\n"),
            "samples.txt holds 4 bytes, MANIFEST.json says 12",
        ),
        (lambda lab: (lab.data / "samples.txt").unlink(), "lists samples.txt, which is not there"),
        (lambda lab: (lab.data / "MANIFEST.json").write_text("["), "MANIFEST.json is not JSON"),
        (lambda lab: (lab.data / "MANIFEST.json").unlink(), "there is no MANIFEST.json"),
        (lambda lab: (lab.data / "MANIFEST.json").write_text('[{"file": "samples.txt"}]'), "bytes, sha256, source"),
        (lambda lab: os.symlink("/etc/hostname", lab.data / "link"), "link is a symbolic link"),
        (lambda lab: add_data(lab, "big.bin", bytes(3 * 1024 * 1024)), "a lab may ship 2097152"),
    ],
)
def test_a_data_file_that_the_manifest_does_not_vouch_for_is_refused(toy, spoil, message):
    spoil(toy)
    with pytest.raises(LabError, match=message):
        release([toy])


def test_data_may_lie_in_folders(toy):
    (toy.data / "traces").mkdir()
    add_data(toy, "traces/run.json", b"{}")
    release([toy])
    assert "data/traces/run.json" in released_files(toy)


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text,
        lambda text: "#!/usr/bin/env python\n" + text.replace("\n", "\r\n"),
        lambda text: text.replace("# What is the middle", "# ---\n#\n# What is the middle"),
        lambda text: text.partition("# ---\n\n")[2],
        lambda text: text.partition("# ---\n\n")[2].replace(
            "# In your own words", "# ---\n#\n# ---\n#\n# In your words"
        ),
    ],
    ids=["as it is", "with a first line before it", "rule in the prose", "none", "two rules and none"],
)
def test_the_header_read_alone_says_what_it_says_before_the_cells(toy, edit):
    toy.source.write_bytes(edit(SOURCE).encode())
    assert toy.settings == toy.master().metadata.get("threeloops", {})


def test_leaks_finds_an_answer_wherever_it_was_left(toy):
    release([toy])
    assert leaks(toy, toy.released.parent) == []
    notebook = read(toy.released)
    answer = next(cell for cell in toy.master().cells if cell.id == "mean").source
    notebook.cells[0].source += "\n\n" + regions(answer, "SOLUTION")[0]
    hidden = next(cell for cell in toy.master().cells if cell.id == "rescale_test_values").source
    next(c for c in notebook.cells if c.id == "rescale_test_values").source = hidden
    nbformat.write(notebook, toy.released)
    (toy.released.parent / "notes.txt").write_text(wrong_answers(toy)[-1].text)
    (toy.released.parent / "more.txt").write_text(BY_STATISTICS)
    (toy.released.parent / "answers.md").write_text("")
    (toy.released.parent / "helper.py").write_text("")
    found = "\n".join(leaks(toy, toy.released.parent))
    for leak in (
        "holds the solution of mean",
        "holds the words 'BEGIN HIDDEN TESTS'",
        "holds the hidden tests of rescale_test_values",
        "notes.txt holds the wrong answer rescale__ignores_the_sign",
        "more.txt holds the right answer mean__by_statistics",
        "answers.md: sources, wrong answers and right answers are never released",
        "helper.py: sources, wrong answers and right answers are never released",
    ):
        assert leak in found


def test_nbgrader_accepts_a_written_answer_without_points_and_still_refuses_a_duplicate(toy):
    notebook = toy.master()
    CheckCells().preprocess(notebook, {})
    notebook.cells.append(notebook.cells[4])
    with pytest.raises(Exception, match="Duplicate grade id: mean"):
        CheckCells().preprocess(notebook, {})


def test_stock_nbgrader_on_the_courses_configuration_releases_the_same_bytes(toy):
    release([toy])
    ours = {name: (toy.released.parent / name).read_bytes() for name in released_files(toy)}
    shutil.rmtree(toy.root / "labs")
    (toy.folder / "__pycache__").mkdir()
    (toy.folder / "__pycache__" / "answers.pyc").write_bytes(b"\0")
    shutil.copy(REPOSITORY / "nbgrader_config.py", toy.root)
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", "90_toy"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # nbgrader calls alembic by name
    done = subprocess.run(command, cwd=toy.root, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {name: (toy.released.parent / name).read_bytes() for name in released_files(toy)} == ours
    assert (toy.root / "gradebook.db").is_file()


def test_deep_dives_are_released_beside_the_core(toy):
    dives = add_dives(toy)
    release([toy])
    notebook = read(dives.released)
    assert notebook.metadata.threeloops.lab == "90_toy" and [c.cell_type for c in notebook.cells] == [
        "markdown",
        "code",
    ]
    assert not dives.solution_notebook.exists(), "nbgrader would take it for part of the assignment"
    assert stale([toy]) == []
    add_dives(toy, DIVES.replace("What does", "How does"))
    assert stale([toy]) == ["labs/90_toy/90_toy_dives.ipynb differs"]
