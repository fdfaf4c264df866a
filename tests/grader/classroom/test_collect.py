"""What students leave at the exchange is collected as plain files, under their own names, and holds up nobody else."""

import logging
import os
import pwd
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

import nbformat
import pytest
from grading import REPOSITORY, nbgrader, sandbox_words
from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange import ExchangeError
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.classroom.exchange import collect
from threeloops_grader.classroom.exchange.attempts import attempts_of, place
from threeloops_grader.classroom.exchange.collect import GuardedCollect
from threeloops_grader.classroom.exchange.folder import is_open_to_all, require_exchange, shared
from threeloops_grader.classroom.register import settings
from threeloops_grader.classroom.register.settings import Settings
from threeloops_grader.course.course import submissions
from threeloops_grader.release.release import release
from toy_course import make_course
from traitlets.config import Config

LAB = "90_toy"
FIRST, LATER = "2030-01-31 10:00:00.5 UTC", "2030-01-31 11:00:00.0 UTC"
ME = pwd.getpwuid(os.getuid()).pw_name


class Exchange:
    """An exchange and what was collected from it."""

    def __init__(self, folder: Path):
        self.root, self.inbound = folder / "course", folder / "exchange/three_loops/inbound"
        self.inbound.mkdir(parents=True)
        self.root.mkdir()

    def leave(self, student: str, time: str = FIRST, text: str = "{}", **files: str) -> Path:
        folder = self.inbound / f"{student}+{LAB}+{time}+cmFuZG9t"
        folder.mkdir()
        for name, content in {f"{LAB}.ipynb": text, **files}.items():
            (folder / name).write_text(content)
        return folder

    def collect(self, **options: bool) -> None:
        directory = CourseDirectory(
            root=str(self.root),
            course_id="three_loops",
            db_url=f"sqlite:///{self.root}/gradebook.db",
            assignment_id=LAB,
        )
        config = Config({"Exchange": {"root": str(self.inbound.parents[1])}})
        GuardedCollect(coursedir=directory, config=config, **{"update": True, **options}).start()

    def collected(self) -> dict[str, str]:
        """The notebooks' texts by student; what else there is does not begin with a dot."""
        found = sorted((self.root / "submitted").glob("*/*"))
        assert [path.name for path in found] == [LAB] * len(found)
        return {path.parent.name: (path / f"{LAB}.ipynb").read_text() for path in found}

    def time(self, student: str) -> str:
        return (self.root / f"submitted/{student}/{LAB}/timestamp.txt").read_text()


@pytest.fixture(scope="module")
def no_class(tmp_path_factory):
    """The gradebook of a class of nobody. nbgrader starts a process, alembic, to make one."""
    path = tmp_path_factory.mktemp("nobody") / "gradebook.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # nbgrader calls alembic by name
        Gradebook(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def exchange(tmp_path, monkeypatch, no_class):
    monkeypatch.setattr(logging.getLogger("traitlets"), "propagate", True)
    exchange = Exchange(tmp_path)
    shutil.copy(no_class, exchange.root)
    return exchange


def link_to_a_file(folder, secret):
    (folder / f"{LAB}.ipynb").unlink()
    (folder / f"{LAB}.ipynb").symlink_to(secret)


def link_to_a_folder(folder, secret):
    (folder / "data").symlink_to(secret.parent)


def link_in_place_of_the_submission(folder, secret):
    shutil.rmtree(folder)
    folder.symlink_to(secret.parent)


def link_below(folder, secret):
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/c").symlink_to(secret)


def pipe(folder, secret):
    os.mkfifo(folder / "pipe")


def folders_in_each_other(folder, secret):
    (folder / "/".join("a" * 900)).mkdir(parents=True)


def many_files(folder, secret):
    for number in range(1001):
        (folder / str(number)).touch()


def large_file(folder, secret):
    with (folder / "large").open("wb") as file:
        file.truncate(101 << 20)


SPOIL = (
    link_to_a_file,
    link_to_a_folder,
    link_in_place_of_the_submission,
    link_below,
    pipe,
    folders_in_each_other,
    many_files,
    large_file,
)


@pytest.mark.parametrize("spoil", SPOIL, ids=lambda function: function.__name__)
def test_what_is_no_plain_folder_is_named_and_left_and_what_was_there_before_stays(exchange, tmp_path, spoil, caplog):
    secret = tmp_path / "solutions" / f"{LAB}.ipynb"
    secret.parent.mkdir()
    secret.write_text("the reference")
    exchange.leave("ada", text="her first")
    exchange.collect()
    spoil(exchange.leave("ada", LATER, "her second"), secret)
    exchange.leave("zoë", text="hers")
    with pytest.raises(ExchangeError, match=rf"ada\+{LAB}\+{LATER}"):
        exchange.collect()
    assert exchange.collected() == {"ada": "her first", "zoë": "hers"}
    assert "is not collected: " in caplog.text


@pytest.mark.parametrize(
    "name", ["x+y", "eve+{}+garbage+x", "eve+{}", "+{}+2030-01-31 10:00:00 UTC+x", "a..b+{}+2030-01-31 10:00:00 UTC+x"]
)
def test_a_name_that_nbgrader_does_not_give_holds_up_nobody(exchange, name):
    (exchange.inbound / name.format(LAB)).mkdir()
    exchange.leave("ada")
    if f"+{LAB}+" in name.format(LAB):
        with pytest.raises(ExchangeError, match="not collected"):
            exchange.collect()
    else:
        exchange.collect()
    assert exchange.collected() == {"ada": "{}"}


def test_a_folder_of_somebody_elses_is_not_the_students(exchange, monkeypatch, caplog):
    monkeypatch.setattr(collect.os, "geteuid", lambda: os.getuid() + 1)  # the one who collects is another user
    exchange.leave(ME, text="mine")
    exchange.leave("ada", text="also mine")
    with pytest.raises(ExchangeError, match="ada"):
        exchange.collect()
    assert exchange.collected() == {ME: "mine"}
    assert f"it says that it is ada's and belongs to {ME}" in caplog.text
    exchange.collect(check_owner=False)
    assert exchange.collected() == {ME: "mine", "ada": "also mine"}


@pytest.mark.parametrize("stamp", [None, "2020-01-01 00:00:00 UTC", "not a time"])
def test_the_time_is_that_of_the_folder_and_of_no_file_in_it(exchange, stamp):
    exchange.leave("ada", text="her first", **({"timestamp.txt": stamp} if stamp else {}))
    exchange.collect()
    assert exchange.time("ada") == "2030-01-31 10:00:00.500000 UTC"
    exchange.leave("ada", "2030-01-31 12:00:00 +0100", text="her second")
    exchange.collect(update=False)
    assert exchange.collected() == {"ada": "her first"}
    exchange.collect()
    assert exchange.collected() == {"ada": "her second"}
    assert exchange.time("ada") == "2030-01-31 11:00:00.000000 UTC"


def test_a_folder_that_is_written_to_after_its_time_is_named(exchange, caplog):
    exchange.leave("ada", f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f} UTC")
    exchange.collect()
    assert "written to at" not in caplog.text
    exchange.leave("eve", "2020-01-01 00:00:00.0 UTC")
    exchange.collect()
    assert "eve: handed in at 2020-01-01 00:00 by its name, and written to at" in caplog.text


def test_nobody_can_take_the_place_of_the_courses_folder(tmp_path):
    shared(tmp_path / "new/exchange")
    assert (tmp_path / "new/exchange").is_dir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    shared(tmp_path / "open")
    assert (tmp_path / "open").stat().st_mode & 0o7777 == 0o1777
    shared(Path("/proc/no/such/folder"))  # nbgrader says so where it needs one


def test_who_can_read_a_checkout_is_known(tmp_path):
    folder = tmp_path / "a/b"
    folder.mkdir(parents=True)
    for mode in (0o755, 0o750, 0o711):
        folder.chmod(mode)
        assert not is_open_to_all(folder) or mode == 0o755


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    lab = make_course(tmp_path_factory.mktemp("course"))
    shutil.copy(REPOSITORY / "nbgrader_config.py", lab.root)
    release([lab])
    return lab


def test_a_configuration_that_fails_ends_nbgrader_which_would_go_on_without_the_wall(course):
    config = course.root / "nbgrader_config.py"
    text = config.read_text()
    config.write_text(
        text.replace("threeloops_grader.classroom.configuration", "threeloops_grader.classroom.is_not_there")
    )
    done = nbgrader(course.root, "autograde", LAB)
    assert done.returncode not in (0, None) and "nbgrader_config.py failed" in done.stderr
    assert not (course.root / "gradebook.db").exists()
    config.write_text(text)


def test_an_exchange_that_cannot_be_made_stops_what_needs_one_and_nothing_else(course, monkeypatch):
    away = {"THREELOOPS_EXCHANGE": "/proc/no/exchange"}
    done = nbgrader(course.root, "generate_assignment", LAB, "--force", **away)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv(*next(iter(away.items())))
    with pytest.raises(LabError, match="/proc/no/exchange is not there and cannot be made; set THREELOOPS_EXCHANGE"):
        require_exchange(course.root)


def test_a_submission_in_the_place_of_a_graded_one_is_graded_whatever_its_time(course):
    """Its time, too, is forgotten with it: a penalty for lateness is not left to the next submission."""
    folder = course.root / f"submitted/ada/{LAB}"
    folder.mkdir(parents=True)
    found = {}
    for kind, stamp in (("untouched", "2030-02-02 10:00:00 UTC"), ("reference", ""), ("reference", LATER)):
        nbformat.write(submissions(course)[kind][0], folder / f"{LAB}.ipynb")
        (folder / "timestamp.txt").unlink(missing_ok=True)
        if stamp:
            (folder / "timestamp.txt").write_text(stamp)
        done = nbgrader(course.root, "autograde", LAB, *sandbox_words())
        assert done.returncode == 0, done.stderr
        with Gradebook(f"sqlite:///{course.root}/gradebook.db", "three_loops") as book:
            graded = book.find_submission(LAB, "ada")
            found[kind, stamp] = (graded.score, graded.timestamp and graded.timestamp.hour)
    assert list(found.values()) == [(0.0, 10), (100.0, None), (100.0, 11)]
    assert "Skipping existing assignment" in nbgrader(course.root, "autograde", LAB, *sandbox_words()).stderr


def rule(exchange, text):
    settings.save(Settings(attempts=text), exchange.root)


def test_of_several_attempts_the_rule_of_the_class_chooses(exchange):
    """`first 2` is the second one however many follow; `best` keeps all of them to be graded."""
    for hour, text in enumerate(("one", "two", "three"), 10):
        exchange.leave("ada", f"2030-01-31 {hour}:00:00.0 UTC", text=text)
    rule(exchange, "first 2")
    for _ in range(2):
        exchange.collect()
        assert exchange.collected() == {"ada": "two"}
    rule(exchange, "last")
    exchange.collect()
    assert exchange.collected() == {"ada": "three"}
    rule(exchange, "best")
    for _ in range(2):
        exchange.collect()
        assert [a.folder.joinpath(f"{LAB}.ipynb").read_text() for a in attempts_of(exchange.root, LAB, "ada")] == [
            "one", "two", "three",
        ]  # fmt: skip
    place(exchange.root, LAB, attempts_of(exchange.root, LAB, "ada")[0])
    exchange.collect()
    assert exchange.collected() == {"ada": "one"}, "the best one stays, until there is a newer attempt"
    exchange.leave("ada", "2030-01-31 13:00:00.0 UTC", text="four")
    exchange.collect()
    assert exchange.collected() == {"ada": "four"}
    assert len(attempts_of(exchange.root, LAB, "ada")) == 4
