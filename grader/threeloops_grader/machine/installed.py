"""How the course was installed, which packages it needs, and which of them exist. This module imports none of them.

A checkout lists its requirements in pyproject.toml, and an installed wheel in its metadata.
"""

import shutil
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import metadata, requires
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement as Specification
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from threeloops.hardware.probe import installed_version

from threeloops_grader.authoring.labs import Lab, LabError, course_root
from threeloops_grader.machine.child_process import CODE

__all__ = [
    "Origin", "Requirement", "as_typed", "closure", "how_to_install", "origin", "python_supported", "require_solutions",
    "requirements",
]  # fmt: skip

Origin = Literal["checkout", "bundle", "wheel"]
"""The kind of installation. A bundle is any folder of it without git, such as a downloaded archive."""


@dataclass(frozen=True)
class Requirement:
    """One package: the versions that the course accepts, and the one installed (None: absent)."""

    name: str
    range: str
    installed: str | None

    @property
    def satisfied(self) -> bool:
        """Whether the installed version is in range; a vendor's suffix ("2.11.0a0+nv25") does not matter."""
        return self.installed is not None and SpecifierSet(self.range).contains(self.installed, prereleases=True)


def origin() -> Origin:
    if not _pyproject().is_file():
        return "wheel"
    return "checkout" if (CODE / ".git").exists() else "bundle"


def how_to_install(origin: Origin) -> str:
    """Return the step that brings missing packages, for each origin."""
    return {
        "checkout": "run `make course`: it installs what requirements.txt pins",
        "bundle": "run `make lab`: it installs what requirements.txt pins",
        "wheel": "install the wheel again with pip: it brings the packages that it needs",
    }[origin]


def as_typed(message: str) -> str:
    """Return the message with its `threeloops …` commands as this shell finds the program.

    `make lab` installs into .venv, which is on no PATH: there a reader has to type .venv/bin/threeloops.
    """
    program = Path(sys.argv[0])
    on_path = shutil.which(program.name)
    if program.name != "threeloops" or (on_path and Path(on_path).resolve() == program.resolve()):
        return message
    here = Path.cwd()
    named = program.absolute().relative_to(here) if program.absolute().is_relative_to(here) else program.absolute()
    return message.replace("`threeloops ", f"`{named} ")


def require_solutions(labs: Sequence[Lab], otherwise: str = "") -> None:
    """Refuse a command that needs answers and hidden tests if there are none. `otherwise` names the alternative.

    Raises:
        LabError: there is no lab, or one has no source here.
    """
    if not labs or not all(lab.has_answers for lab in labs):
        lacks = f"{labs[0].root if labs else course_root()} has no solutions/, as in a student bundle or a wheel"
        raise LabError(f"{lacks}: run this in a checkout of the course{otherwise}")


def requirements() -> list[Requirement]:
    """Return every package that the course names for this platform, in its order."""
    wanted = map(Specification, _project().dependencies)
    here = [requirement for requirement in wanted if requirement.marker is None or requirement.marker.evaluate()]
    return [
        Requirement(requirement.name, str(requirement.specifier), installed_version(requirement.name))
        for requirement in here
    ]


def python_supported(version: str) -> tuple[str, bool]:
    """Return the range of Python versions that the course accepts, and whether `version` is in it."""
    allowed = _project().python
    return allowed, SpecifierSet(allowed).contains(version, prereleases=True)


def closure(names: Iterable[str]) -> set[str]:
    """Return the installed distributions among `names`, and all that they need on this machine, by normalised name."""
    needed: set[str] = set()
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in needed or installed_version(name) is None:
            continue
        needed.add(name)
        needs = map(Specification, requires(name) or [])
        waiting += [
            requirement.name
            for requirement in needs
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ]
    return needed


@dataclass(frozen=True)
class _Project:
    dependencies: tuple[str, ...]
    python: str


@cache
def _project() -> _Project:
    if (file := _pyproject()).is_file():
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        return _Project(tuple(project["dependencies"]), project["requires-python"])
    return _Project(tuple(requires("threeloops") or ()), metadata("threeloops")["Requires-Python"])


def _pyproject() -> Path:
    """Return pyproject.toml, which does not exist if this package was installed from a wheel."""
    return CODE / "pyproject.toml"
