"""The library can be adopted in parts: each extra of pyproject.toml, alone in an empty environment, is enough for what
docs/library.md promises of it.

The environment has no network. Its packages are links to those installed here, in the versions of requirements.txt.
The backend that pip calls writes its record of the course from pyproject.toml. So pip can say whether the environment
holds all that the extra needs.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from offline_machine import make_machine, offline_environment
from packaging.requirements import Requirement
from threeloops_grader.machine.installed import closure

ROOT = Path(__file__).parents[1]
SECONDS = 120
ROW = re.compile(r"^\| (none|`\w+`) \| .+ \| `(.+)` \|$", re.MULTILINE)
PROMISED = {extra.strip("`"): command for extra, command in ROW.findall((ROOT / "docs/library.md").read_text())}
"""What each extra is tried with."""


def required(extra: str) -> set[str]:
    """The requirements of pyproject.toml with one extra, and with those that it names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = set(project["dependencies"])
    waiting = [extra] if extra != "none" else []
    while waiting:
        for line in project["optional-dependencies"][waiting.pop()]:
            own = Requirement(line).name == "threeloops"
            waiting += Requirement(line).extras if own else []
            lines |= set() if own else {line}
    return lines


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """The folder `threeloops-….dist-info`, as pip's backend writes it."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for folder in ("lib/threeloops", "grader/threeloops_grader"):
        (source / folder).mkdir(parents=True)
    write = "from setuptools.build_meta import prepare_metadata_for_build_wheel as write; print(write('.'))"
    done = subprocess.run([sys.executable, "-c", write], cwd=source, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return source / done.stdout.split()[-1]


class Environment:
    """A virtual environment with the course, its core packages and one extra."""

    def __init__(self, folder: Path, record: Path, extra: str):
        self.folder = folder
        self.python = make_machine(folder, closure(required(extra)))
        (site,) = folder.glob("lib/python*/site-packages")
        shutil.copytree(record, site / record.name)
        (site / "threeloops.pth").write_text(f"{ROOT / 'lib'}\n{ROOT / 'grader'}\n")
        (target,) = re.findall(r"^threeloops = ([\w.]+):main$", (record / "entry_points.txt").read_text(), re.MULTILINE)
        program = self.python.with_name("threeloops")
        program.write_text(f"#!{self.python}\nfrom {target} import main\nmain()\n")
        program.chmod(0o755)
        (folder / "work").mkdir()
        (folder / "examples").symlink_to(ROOT / "examples")

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.python.parent), os.defpath])
        variables = offline_environment(self.folder) | {"PATH": path, "COLUMNS": "100"}
        words = ["bash", "-c", command]
        return subprocess.run(
            words, cwd=self.folder, env=variables, capture_output=True, text=True, timeout=SECONDS, check=False
        )

    def lacks(self, extra: str) -> list[str]:
        """What pip would fetch to install the course with this extra."""
        wanted = "threeloops" if extra == "none" else f"threeloops[{extra}]"
        pip = f"{sys.executable} -m pip --python {self.python} install --no-index --dry-run --no-color {wanted}"
        done = self.run(pip)
        missing = re.findall(r"No matching distribution found for (.+)", done.stderr)
        assert bool(done.returncode) == bool(missing), f"pip failed in another way: {done.stdout}{done.stderr}"
        return missing


@pytest.fixture(scope="module", params=PROMISED)
def installed(request, record, tmp_path_factory):
    return request.param, Environment(tmp_path_factory.mktemp(request.param), record, request.param)


def test_every_extra_is_promised_something():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert list(PROMISED) == ["none", *extras]


@pytest.mark.parametrize("extra", ["none", "serve", "grade"])
def test_pip_finds_all_that_an_extra_needs(record, tmp_path, extra):
    assert Environment(tmp_path, record, extra).lacks(extra) == []


def test_an_extra_alone_is_enough_for_what_it_promises(installed):
    extra, environment = installed
    done = environment.run(PROMISED[extra])
    assert done.returncode == 0, done.stdout + done.stderr
    if extra == "labs":
        checked = environment.run("threeloops check 00")
        assert checked.returncode == 1 and "is not written yet" in checked.stdout, checked.stdout + checked.stderr


@pytest.fixture(scope="module")
def core(record, tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("core"), record, "none")


def test_the_core_alone_has_the_commands_of_the_library_and_names_what_brings_the_others(core):
    done = core.run("threeloops --help")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"│ (\w+) ", done.stdout) == ["serve", "plan", "cluster"]
    assert 'pip install "threeloops[labs]"' in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("threeloops serve", "serve"),
        ("threeloops plan 7b_finetuning --output plan --formats docx", "plan"),
        ("threeloops cluster --gantt run.svg examples/meter_a_kernel.py", "pictures"),
    ],
)
def test_a_command_without_its_extra_names_it_in_one_sentence(core, command, extra):
    done = core.run(command)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert re.fullmatch(
        rf"threeloops: No module named '\w+', which threeloops\.[\w.]+ needs: pip install \"threeloops\[{extra}\]\"",
        " ".join(done.stderr.split()),
    ), done.stderr


def test_a_module_without_its_extra_names_it(core):
    done = core.run("python -c 'import threeloops.product.service'; python -c 'import threeloops.product.service.app'")
    assert done.stderr.count("Traceback") == 1, "the package itself can be imported"
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: No module named 'fastapi', which threeloops.product.service.app needs: "
        'pip install "threeloops[serve]"'
    )


IMPORT_ALL = """
import importlib, pkgutil, threeloops
for _, name, _ in pkgutil.walk_packages(threeloops.__path__, "threeloops.", onerror=lambda name: None):
    if not name.endswith("__main__"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            print(name, str(error).partition("threeloops[")[2].partition("]")[0])
"""
NEEDS = {
    "threeloops.capstone.documents.formats": "plan",
    "threeloops.product.fleet.real": "serve",
    "threeloops.product.service": "serve",
}
"""Packages with modules that only an extra lets import."""


def test_the_core_imports_all_of_the_library_but_the_service_and_the_formats_of_documents(core):
    (core.folder / "all.py").write_text(IMPORT_ALL)
    done = core.run("python all.py")
    assert done.returncode == 0, done.stderr
    failed = dict(line.split(" ") for line in done.stdout.splitlines())
    needs = {module: extra for module in failed for package, extra in NEEDS.items() if module.startswith(package)}
    assert failed and failed == needs


def test_other_libraries_may_look_whether_a_package_of_an_extra_is_there(core):
    look = "import threeloops, importlib.util; print([importlib.util.find_spec(name) for name in ('docx', 'fastapi')])"
    assert core.run(f'python -c "{look}"').stdout.strip() == "[None, None]"
    (core.folder / "other.py").write_text(
        "import threeloops\ntry:\n    import docx\nexcept ImportError as e: print(e)\n"
    )
    assert core.run("python other.py").stdout.strip() == "No module named 'docx'"
