"""The wheel, in an environment like Colab's or Kaggle's: no checkout, no pins, torch and Triton that are there already,
packages that cannot be written, and a user other than the one who installed them."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
import zipfile
from pathlib import Path

import nbformat
import pytest
import yaml
from threeloops_grader.authoring.labs import find_lab

ROOT = Path(__file__).resolve().parents[1]
NOBODY = 65534
SECONDS = 300
SET_UP = ("install", "setup")
"""The cells that a learner on such a machine runs first."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that nothing is left in the checkout; a checkpoint of Jupyter's must not get in."""
    source = tmp_path_factory.mktemp("source")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name.startswith(("grader/", "lib/", "labs/")) or name in (
            "pyproject.toml",
            "setup.py",
            "README.md",
            "LICENSE",
        ):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    (source / "labs/00_start_here/.ipynb_checkpoints").mkdir()
    (source / "labs/00_start_here/.ipynb_checkpoints/00.ipynb").write_text("{}")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        source,
        source,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return next(source.glob("*.whl"))


@pytest.fixture(scope="module")
def machine():
    """A folder that other users may enter: pytest's own may be closed to them."""
    folder = Path(tempfile.mkdtemp(prefix="wheel-"))
    folder.chmod(0o755)
    yield folder
    subprocess.run(["chmod", "-R", "u+w", folder], check=True)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def python(wheel, machine):
    """Their Python: the packages of this one are there before, and pip, offline, finds nothing that it would fetch."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", machine / "theirs"], check=True)
    (site,) = (machine / "theirs/lib").glob("python*/site-packages")
    (site / "there_before.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    theirs = machine / "theirs/bin/python"
    command = [theirs, "-m", "pip", "install", "--no-index", "--ignore-installed", "--no-deps", wheel]
    resolve = [theirs, "-m", "pip", "install", "--no-index", f"threeloops[labs] @ {wheel.as_uri()}"]
    for words in (command, resolve):
        done = subprocess.run(words, env=environment(machine), capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "Requirement already satisfied: torch" in done.stdout and "Collecting" not in done.stdout
    subprocess.run(["chmod", "-R", "a-w", site], check=True)
    return theirs


def environment(machine: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in ("LANG", "LC_ALL", "TMPDIR")}
    return {**kept, "PATH": os.defpath, "HOME": str(machine / "home"), "COLUMNS": "100", "PIP_NO_CACHE_DIR": "1"}


@pytest.fixture
def theirs(python, machine):
    """`python WORDS` in a new folder of another user's; root can become one, anybody else stays who they are."""
    user = NOBODY if os.geteuid() == 0 else os.geteuid()
    if user == NOBODY and not can_run(python, user):
        reason = f"another user cannot run {Path(sys.executable).resolve()}"
        user = os.geteuid()
        warnings.warn(f"NOT tested as another user: {reason}", stacklevel=1)
    for folder in (machine / "home", machine / "folder"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        os.chown(folder, user, -1)

    def run(*words, folder=machine / "folder", **variables):
        return subprocess.run(
            [python, *words],
            cwd=folder,
            env={**environment(machine), **variables},
            user=user,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    return run


def can_run(python: Path, user: int) -> bool:
    try:
        return subprocess.run([python, "-c", ""], user=user, capture_output=True, timeout=SECONDS).returncode == 0
    except PermissionError:
        return False


def test_the_wheel_holds_every_released_file_and_no_answer(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        found = {
            name.removeprefix("threeloops_grader/labs/") for name in names if name.startswith("threeloops_grader/labs/")
        }
        assert archive.read("threeloops_grader/labs/glossary.md") == (ROOT / "labs/glossary.md").read_bytes()
    listed = subprocess.run(["git", "ls-files", "labs"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert found == {name.removeprefix("labs/") for name in listed.splitlines()}
    assert not [name for name in names if name.startswith(("solutions", "tests", "benchmarks")) or "answers.md" in name]


def test_a_lab_is_started_and_checked_where_there_is_no_checkout(theirs, machine):
    started = theirs("-m", "threeloops_grader.cli", "start", "03")
    assert started.returncode == 0, started.stderr
    copy = copy_of(machine, "03_triton_fusion")
    assert copy.read_bytes() == find_lab("03", ROOT).released.read_bytes()
    assert (copy.parent / "03_triton_fusion_dives.ipynb").is_file()
    assert theirs("-m", "threeloops_grader.cli", "start", "00").returncode == 0

    below = copy.parent  # the course is found from inside of a lab, too
    checked = theirs("-m", "threeloops_grader.cli", "check", "00", folder=below)
    assert checked.returncode == 1 and "is not written yet" in checked.stdout, checked.stdout + checked.stderr
    assert "changed" not in checked.stdout, "an untouched copy was said to be changed"
    copy_of(machine, "00_start_here").write_text(nbformat.writes(solved(machine)))
    checked = theirs("-m", "threeloops_grader.cli", "check", "00", folder=below)
    assert "100 of 100 points by the visible checks" in checked.stdout, checked.stdout + checked.stderr
    status = theirs("-m", "threeloops_grader.cli", "status")
    assert "00_start_here" in status.stdout and "100 / 100" in status.stdout and "done" in status.stdout
    ahead, hours = map(int, re.search(r"about (\d+) of (\d+) hours are left", status.stdout).groups())
    assert 0 < ahead < hours, status.stdout

    refused = theirs("-m", "threeloops_grader.cli", "release")
    assert refused.returncode == 2 and "has no solutions/" in " ".join(refused.stderr.split())
    (site,) = (machine / "theirs/lib").glob("python*/site-packages")
    assert not list(site.rglob("work")) and not list(site.rglob("progress.json")), "left among the packages"


def test_a_notebook_of_the_branch_for_colab_sets_itself_up(branch, theirs, machine):
    listed = git(branch, "ls-tree", "--name-only", "colab").split()
    notebooks = [name for name in listed if name.endswith(".ipynb")]
    assert sorted(notebooks) == sorted(path.name for path in (ROOT / "labs").glob("*/*.ipynb"))
    readme = git(branch, "show", "colab:README.md")
    (wheel,) = (name for name in listed if name.endswith(".whl"))
    for name in notebooks:
        notebook = nbformat.reads(git(branch, "show", f"colab:{name}"), as_version=4)
        nbformat.validate(notebook)
        installs = notebook.cells[1].source
        address = f"https://raw.githubusercontent.com/someone/course/colab/{wheel}"
        assert f'%pip install --quiet "threeloops[labs] @ {address}"\n' in installs
        assert f"https://colab.research.google.com/github/someone/course/blob/colab/{name}" in readme
        assert f"src=https://github.com/someone/course/blob/colab/{name}" in readme

    notebook = nbformat.reads(git(branch, "show", "colab:00_start_here.ipynb"), as_version=4)
    install, setup = (cell.source for cell in notebook.cells if cell.cell_type == "code" and cell.id in SET_UP)
    ours = [
        line for line in install.splitlines() if not line.startswith("%pip")
    ]  # installed before, from the same wheel
    ran = theirs(
        *("-m", "IPython", "--no-banner", "-c", "\n".join([*ours, setup, "print(Path.cwd())"])),
        PATH=f"{machine / 'theirs/bin'}:{os.defpath}",
    )
    assert ran.returncode == 0 and "Traceback" not in ran.stdout, ran.stdout + ran.stderr
    assert ran.stdout.rstrip().endswith("work/00_start_here")


@pytest.fixture
def branch(tmp_path):
    """A repository to which the workflow for Colab has pushed, with its steps as they are."""
    checkout, pushed = tmp_path / "course", tmp_path / "pushed.git"
    subprocess.run(["git", "clone", "--quiet", ROOT, checkout], check=True)
    for name in git(ROOT, "ls-files", "-mo", "--exclude-standard").splitlines():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, checkout / name)
    git(tmp_path, "init", "--quiet", "--bare", pushed)
    variables = {
        "GITHUB_REPOSITORY": "someone/course", "GITHUB_SHA": "1234567", "GITHUB_TOKEN": "secret",
        "RUNNER_TEMP": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as "no": without a network, setuptools is the one that is here
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{pushed}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://x-access-token:secret@github.com/someone/course",
    }  # fmt: skip
    workflow = yaml.safe_load((ROOT / ".github/workflows/colab.yml").read_text())
    for step in workflow["jobs"]["branch"]["steps"]:
        if "run" in step:
            done = subprocess.run(
                ["bash", "-e", "-c", step["run"]], cwd=checkout, env=variables, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stdout + done.stderr
    return pushed


def git(folder, *words):
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def copy_of(machine, lab):
    """The learner's own notebook of a lab."""
    return machine / "folder" / "work" / lab / f"{lab}.ipynb"


def solved(machine):
    """A learner's copy with the reference answers in it."""
    copy = copy_of(machine, "00_start_here")
    notebook, master = nbformat.read(copy, as_version=4), find_lab("00", ROOT).master()
    answers = {cell.id: cell.source for cell in master.cells if cell.metadata.get("nbgrader", {}).get("solution")}
    for cell in notebook.cells:
        cell.source = answers.get(cell.id, cell.source)
    return notebook


def test_the_doctor_finds_packages_without_pyproject(theirs):
    done = theirs("-m", "threeloops_grader.cli", "doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = {each["name"]: each for each in json.loads(done.stdout)["findings"]}
    assert found["packages"]["status"] == "ok" and "torch" in found["packages"]["sentence"], found["packages"]
    assert found["home"]["status"] == "ok"
    assert not re.search(r"git pull|`make|requirements\.txt", done.stdout), "advice for a checkout, which is not there"
