"""Where a learner's copies are: one rule for all commands, for a checkout, an editable install and a wheel alike."""

import shutil

import pytest
from threeloops_grader import cli
from threeloops_grader.authoring import labs
from threeloops_grader.authoring.labs import LABS, find_lab, work_folder
from threeloops_grader.learner import open_lab
from threeloops_grader.release.release import release
from toy_course import make_course
from typer.testing import CliRunner


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    lab = make_course(tmp_path_factory.mktemp("course"))
    (lab.root / "nbgrader_config.py").touch()
    release([lab])
    return lab


@pytest.fixture(params=["editable", "wheel"])
def installed(request, released, tmp_path, monkeypatch):
    """The package as it is installed: in a checkout, or with the released labs inside it and no checkout."""
    monkeypatch.delenv("THREELOOPS_ROOT", raising=False)
    monkeypatch.setenv("THREELOOPS_HOME", str(tmp_path / "home"))
    if request.param == "wheel":
        monkeypatch.setattr(labs, "_IN_WHEEL", released.root / LABS)
        monkeypatch.setattr(labs, "_own_course", lambda: None)
    else:
        monkeypatch.setattr(labs, "_own_course", lambda: released.root)
    yield request.param
    shutil.rmtree(released.root / "work", ignore_errors=True)


@pytest.fixture
def threeloops(monkeypatch):
    """The command, run in a folder."""

    def call(folder, *words):
        monkeypatch.chdir(folder)
        return CliRunner(env={"COLUMNS": "200"}).invoke(cli._app, words, prog_name="threeloops")

    return call


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine" / "notes").mkdir(parents=True)
    return tmp_path / "mine"


def test_start_writes_into_the_folder_one_stands_in_and_every_command_finds_it(
    installed, threeloops, mine, monkeypatch
):
    copy = mine / "work" / "90_toy" / "90_toy.ipynb"
    started = threeloops(mine, "start", "90")
    assert started.exit_code == 0 and str(copy) in started.stdout and copy.is_file()
    for folder in (mine, mine / "notes", copy.parent):
        checked = threeloops(folder, "check", "90")
        assert checked.exit_code == 1 and "is not written yet" in checked.stdout, checked.output
        assert f"Your copies are in {mine / 'work'}" in threeloops(folder, "status").stdout
        assert f"{copy} is up to date" in threeloops(folder, "update", "90").stdout
        assert "nothing was changed" in threeloops(folder, "reset", "mean").stdout
        assert str(mine / "work" / "90_toy.zip") in threeloops(folder, "submit", "90").stdout
        again = threeloops(folder, "start", "90")
        assert f"your copy is {copy} and was not touched" in again.stdout
        assert f"--ServerApp.root_dir={mine / 'work'}" in open_lab._jupyter_lab(find_lab("90"))
    assert sorted(path.name for path in mine.iterdir()) == ["notes", "work"]


def test_a_lab_that_is_not_started_names_the_place_where_it_was_looked_for(installed, threeloops, mine):
    checked = threeloops(mine, "check", "90")
    assert checked.exit_code == 2 and f"no file {mine / 'work' / '90_toy' / '90_toy.ipynb'}" in checked.stderr


@pytest.mark.parametrize("installed", ["editable"], indirect=True)
def test_in_a_checkout_the_copies_are_in_its_own_work(installed, released, threeloops, monkeypatch):
    for folder in (released.root, released.root / "labs"):
        monkeypatch.chdir(folder)
        assert work_folder() == work_folder(starting=True) == released.root / "work"
        assert find_lab("90") == released
    assert threeloops(released.root / "labs", "start", "90").exit_code == 0
    assert released.work.is_file()


@pytest.mark.parametrize("installed", ["editable"], indirect=True)
def test_outside_a_checkout_copies_that_were_started_in_it_are_found_until_there_are_nearer_ones(
    installed, released, threeloops, mine
):
    threeloops(released.root, "start", "90")
    assert f"Your copies are in {released.root / 'work'}" in threeloops(mine, "status").stdout
    assert threeloops(mine, "start", "90").exit_code == 0
    assert (mine / "work" / "90_toy" / "90_toy.ipynb").is_file()
    assert f"Your copies are in {mine / 'work'}" in threeloops(mine, "status").stdout


@pytest.mark.parametrize("installed", ["editable"], indirect=True)
def test_a_folder_inside_a_course_does_not_lend_its_own_notebooks(installed, released, threeloops, monkeypatch):
    """`check` runs a learner's notebook without a sandbox: standing in a submission must not make it the learner's."""
    submitted = released.root / "submitted" / "mallory"
    (submitted / "work" / ".base").mkdir(parents=True)
    monkeypatch.chdir(submitted)
    assert work_folder() == released.root / "work"


def test_help_says_where_the_copies_are(threeloops, mine):
    text = " ".join(threeloops(mine, "--help").stdout.replace("│", " ").split())
    assert "work/ of the nearest folder" in text
