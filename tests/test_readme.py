"""Every code block of the README, CONTRIBUTING and the pages in docs/, executed as it stands and in order, in a fresh
clone. A block of text is what the block before it prints; … stands for what differs from run to run. A `console` block
is a command for another machine, such as one with conda or without Python: it is not run.

The clone lies in a folder whose name has a space and letters beyond ASCII: nothing says where a course is kept.
"""

import csv
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import nbformat
import pytest
import yaml
from markdown_it import MarkdownIt
from threeloops.product.fleet.real.waiting import free_port
from threeloops_grader.authoring.labs import find_lab
from threeloops_grader.course.course import submissions
from threeloops_grader.release.release import stale

ROOT = Path(__file__).resolve().parents[1]
PAGES = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/**/*.md"))]
ALL_DOCUMENTS = ["README.md", "CONTRIBUTING.md", *PAGES]
SLUG = "01_roofline"
EARNED = {pwd.getpwuid(os.getuid()).pw_name: 100.0, "ada": 50.0}
SECONDS = 900
"""Bounds a block; none takes a tenth of it."""

ENVIRONMENT = {
    "PYTHON": "true",  # does not make .venv: the one that runs this test stands in for it (tests/test_make_venv.py)
    "ARGS": "--version",  # what `make test` passes to pytest, and `make lab` to JupyterLab, once all before it is done
}
ONLY_CHECKED = {
    "make course": "make --dry-run course",  # executes every lab, for minutes; .ci/run does
    "jupyter lab": "jupyter lab --version",  # a server does not end; tests/browser starts it
}


@pytest.fixture
def clone(tmp_path):
    """This checkout's last commit and what was changed since, and the environment of this test as its .venv."""
    folder = tmp_path / "Drei Schleifen für alle"
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    for name in git(ROOT, "ls-files", "-z", "--modified", "--others", "--exclude-standard").split("\0")[:-1]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    git(folder, "add", "--all")
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    git(folder, *identity, "commit", "--quiet", "--allow-empty", "--message", "What is not committed yet")
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / ".git/info/exclude").write_text("/.venv\n")
    return folder


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout


def blocks(document: str) -> list[tuple[str, str]]:
    """(language, text) of the fenced blocks of a document."""
    tokens = MarkdownIt().parse((ROOT / document).read_text(encoding="utf-8"))
    return [(token.info, token.content) for token in tokens if token.type == "fence"]


def is_shown(text: str, said: str) -> bool:
    """Whether a block of text is what was printed."""
    return bool(re.fullmatch(re.escape(text.strip()).replace("…", r"[^\s\"]*"), said.strip()))


DOCUMENTS = [name for name in ALL_DOCUMENTS if blocks(name) and name != "docs/examples.md"]  # tests/test_examples.py


def commands(text: str) -> list[str]:
    return [line.partition("#")[0].strip() for line in text.splitlines()]


def environment(clone: Path) -> dict[str, str]:
    # .venv is not its own: nothing in it may lead to the checkout that it was made for.
    variables = {
        "PATH": os.pathsep.join([str(clone / ".venv/bin"), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(clone / "grader"), str(clone / "lib")]),
        "THREELOOPS_HOME": str(clone.parent / "home"),
        "PRE_COMMIT_HOME": str(clone.parent / "pre-commit"),
        "COLUMNS": "200",
    }
    # What a make above this test was given (ARGS=…) would else reach the make that a document calls.
    foreign = ("THREELOOPS_", "PYTEST_", "TRITON_", "GIT_", "MAKE", "MFLAGS")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    return clean | ENVIRONMENT | variables


def execute(clone: Path, language: str, text: str) -> subprocess.CompletedProcess[str]:
    lines = [ONLY_CHECKED.get(command, line) for command, line in zip(commands(text), text.splitlines(), strict=True)]
    shell = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [".venv/bin/python", "-c"]}[language]
    return subprocess.run(
        [*shell, "\n".join(lines)],
        cwd=clone,
        env=environment(clone),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )


SERVES = "threeloops serve"
"""A block that ends only when it is stopped: those after it ask what it serves."""


@contextmanager
def serving(clone: Path, text: str, port: int) -> Iterator[None]:
    server = subprocess.Popen(
        ["bash", "-c", f"exec {text.strip()}"],
        cwd=clone,
        env=environment(clone) | {"THREELOOPS_SERVE_PORT": str(port)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert f"http://127.0.0.1:{port}" in server.stdout.readline()
        end = time.monotonic() + SECONDS
        while httpx.get(f"http://127.0.0.1:{port}/ready").status_code != 200 and time.monotonic() < end:
            time.sleep(0.05)
        yield
        server.terminate()
        assert server.wait(SECONDS) == 0
    finally:
        server.kill()
        server.communicate()


def put(clone: Path, kind: str, folder: str) -> None:
    """Write one of the three submissions that `make course` grades where a student's notebook belongs."""
    path = clone / folder / SLUG / f"{SLUG}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(submissions(find_lab(SLUG, clone))[kind][0], path)


def edit(clone: Path) -> None:
    assert execute(clone, "sh", ".venv/bin/threeloops release 01").returncode == 0
    path = clone / f"solutions/{SLUG}/{SLUG}.ipynb"
    path.write_text(path.read_text().replace("arithmetic intensity", "arithmetic density"))


def send_the_roster(clone: Path) -> None:
    (clone / "roster.csv").write_text("student_id,first_name,last_name,email\nada,Ada,Lovelace,ada@example.org\n")


def two_terms_hand_in(clone: Path) -> None:
    for student in ("submitted/ada", "submitted/ben", "../2029/submitted/old"):
        put(clone, "reference", student)


BEFORE = {
    "threeloops class init": send_the_roster,
    "threeloops check": lambda clone: put(clone, "reference", "work"),
    "nbgrader submit": lambda clone: put(clone, "reference", "work"),
    "nbgrader collect": lambda clone: put(clone, "half_done", "submitted/ada"),
    "jupytext --to": edit,
    "threeloops class similar": two_terms_hand_in,
}
"""What people do between the blocks: a student solves a lab, another one's notebook comes by mail, an author edits."""


def labs_were_started(clone: Path, said: str) -> None:
    names = ["00"] + ["01"] * (clone / "work/01_roofline").is_dir()
    expected = {notebook.work for name in names for notebook in find_lab(name, clone).notebooks}
    assert set(clone.glob("work/[0-9]*/*.ipynb")) == expected


def all_checks_pass(clone: Path, said: str) -> None:
    points = re.findall(r"^✓ .+  (\d+) / (\d+)$", said, re.MULTILINE)
    assert sum(int(most) for _, most in points) == 200  # of all parts, without and with --full
    assert all(earned == most for earned, most in points)
    assert "01_roofline" in said.partition("hours are left")[0]
    assert (clone / f"work/{SLUG}/classify.before-reset.py").is_file()
    assert "What you wrote was kept" in said


def both_students_are_graded(clone: Path, said: str) -> None:
    with (clone / "grades.csv").open() as file:
        rows = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file) if row["assignment"] == SLUG}
    assert rows == EARNED
    for student in EARNED:
        assert "HIDDEN TESTS" not in (clone / "feedback" / student / SLUG / f"{SLUG}.html").read_text()


def both_are_graded_again(clone: Path, said: str) -> None:
    records = json.loads((clone / "grades.json").read_text())["records"]
    assert {record["student"]: record["score"] for record in records} == EARNED


def every_prompt_goes_on(clone: Path, said: str) -> None:
    assert all(begin in said for begin in ("import ", "def main(", "class ")) and len(said) > 3 * 40


def nothing_was_found(clone: Path, said: str) -> None:
    assert "findings: none" in said


def the_kernel_is_compiled(clone: Path, said: str) -> None:
    assert re.search(r"^rmsnorm_kernel +sm_90 ", said, re.MULTILINE)


def the_hook_is_there(clone: Path, said: str) -> None:
    assert "All checks passed!" in said and "Success: no issues found" in said
    assert os.access(clone / ".git/hooks/pre-commit", os.X_OK)


def the_edit_is_in_the_source(clone: Path, said: str) -> None:
    assert "arithmetic density" in (clone / f"solutions/{SLUG}/{SLUG}.py").read_text()
    assert stale([find_lab(SLUG, clone)]) == [f"labs/{SLUG}/{SLUG}.ipynb differs"]
    git(clone, "restore", "solutions")


def the_class_is_there(clone: Path, said: str) -> None:
    assert "01_roofline is due 2030-01-31 23:59 CET" in said
    assert (clone / "class/gradescope_01.zip").is_file()


def the_pairs_are_there(clone: Path, said: str) -> None:
    page = (clone / "class/01_roofline_similar.html").read_text()
    assert "ada and ben, 100%" in page and "ada and ../2029/submitted: old, 100%" in page


def a_new_lab_passes(clone: Path, said: str) -> None:
    assert "7 answers in" in said and "all as expected" in said
    for folder in ("solutions", "labs"):
        shutil.rmtree(clone / folder / "30_my_lab")


def the_wheel_is_there(clone: Path, said: str) -> None:
    assert [path.name for path in (clone / "dist").iterdir()] == ["threeloops-0.1.0-py3-none-any.whl"]


AFTER = {
    "pip wheel": the_wheel_is_there,
    "threeloops class init": the_class_is_there,
    "threeloops class similar": the_pairs_are_there,
    "threeloops new": a_new_lab_passes,
    "make lab": labs_were_started,
    "threeloops check": all_checks_pass,
    "nbgrader collect": both_students_are_graded,
    "threeloops grade": both_are_graded_again,
    "meter(": nothing_was_found,
    "inspect(": the_kernel_is_compiled,
    "engine.run(": every_prompt_goes_on,
    "pre-commit install": the_hook_is_there,
    "jupytext --to": the_edit_is_in_the_source,
}
ENDS_WITH = {"threeloops grade": 1}
"""Exit codes other than 0: one of the two students has fallen short."""


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_does_what_it_says(document, clone):
    port = free_port()  # the document's own may be taken here
    said = ""
    with ExitStack() as servers:
        for language, text in blocks(document):
            if language == "console":
                continue
            if language == "yaml":  # a part of a lab's header
                assert yaml.safe_load(re.sub(r"^#", "", text, flags=re.MULTILINE))
                continue
            if language == "text":
                assert is_shown(text, said), f"shown is\n{text}\nand printed was\n{said}"
                continue
            if SERVES in text:
                servers.enter_context(serving(clone, text, port))
                continue
            for act in of(BEFORE, text):
                act(clone)
            done = execute(clone, language, text.replace(":8000", f":{port}"))
            said = done.stdout
            assert done.returncode == next(of(ENDS_WITH, text), 0), f"{text}\n{said}"
            for check in of(AFTER, text):
                check(clone, said)
            assert git(clone, "status", "--porcelain") == "", text


def of(table: dict[str, Any], text: str) -> Iterator[Any]:
    """The entries of a table for the commands of one block."""
    return (value for command, value in table.items() if command in text)


@pytest.mark.parametrize("table", [BEFORE, AFTER, ENDS_WITH, ONLY_CHECKED], ids=["before", "after", "ends", "checked"])
def test_no_table_names_a_command_that_no_document_has(table):
    written = "\n".join(text for document in DOCUMENTS for _, text in blocks(document))
    assert [command for command in table if command not in written] == []
