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
from threeloops import extra_of
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


def how_to_install(origin: Origin, package: str = "") -> str:
    """Return the step that brings a missing package, or all that labs need, for each origin."""
    return {
        "checkout": "run `make course`: it installs what requirements.txt pins",
        "bundle": "run `make lab`: it installs what requirements.txt pins",
        "wheel": f'pip install "threeloops[{extra_of(package.partition(".")[0]) or "labs"}]"',
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
    """Return every package that the course needs on this platform, in its order.

    `make` installs all packages into a checkout. A wheel needs those for labs, and others count if they are installed.
    """
    extra = "all" if _pyproject().is_file() else "labs"
    needed = {need.name for need in _with_extra(extra)}
    counted = [need for need in _with_extra("all") if need.name in needed or installed_version(need.name)]
    return [Requirement(need.name, str(need.specifier), installed_version(need.name)) for need in counted]


def _with_extra(extra: str) -> list[Specification]:
    """Return what the course requires here with one of its extras, and with those that this one names in turn."""
    lines = [Specification(line) for line in _project().dependencies]
    own = [line for line in lines if canonicalize_name(line.name) == "threeloops"]
    extras: set[str] = set()
    more = {"", extra}
    while more - extras:
        extras |= more
        more = {named for line in own if _holds(line, extras) for named in line.extras}
    return [line for line in lines if line not in own and _holds(line, extras)]


def _holds(need: Specification, extras: Iterable[str]) -> bool:
    return need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras)


def python_supported(version: str) -> tuple[str, bool]:
    """Return the range of Python versions that the course accepts, and whether `version` is in it."""
    allowed = _project().python
    return allowed, SpecifierSet(allowed).contains(version, prereleases=True)


def closure(needed: Iterable[str]) -> set[str]:
    """Return the installed distributions among `needed`, such as "torch" or "moto[s3]>=5", and all that they need on
    this machine, by normalised name."""
    done: set[tuple[str, str]] = set()
    waiting = [(need.name, extra) for need in map(Specification, needed) for extra in ("", *need.extras)]
    while waiting:
        name, extra = waiting.pop()
        name = canonicalize_name(name)
        if (name, extra) in done or installed_version(name) is None:
            continue
        done.add((name, extra))
        needs = [need for need in map(Specification, requires(name) or []) if _holds(need, [extra])]
        waiting += [(need.name, inner) for need in needs for inner in ("", *need.extras)]
    return {name for name, _ in done}


@dataclass(frozen=True)
class _Project:
    dependencies: tuple[str, ...]
    python: str


@cache
def _project() -> _Project:
    if (file := _pyproject()).is_file():
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        extras = [
            f"{line}{' and' if ';' in line else ';'} extra == '{extra}'"
            for extra, lines in project["optional-dependencies"].items()
            for line in lines
        ]
        return _Project((*project["dependencies"], *extras), project["requires-python"])
    return _Project(tuple(requires("threeloops") or ()), metadata("threeloops")["Requires-Python"])


def _pyproject() -> Path:
    """Return pyproject.toml, which does not exist if this package was installed from a wheel."""
    return CODE / "pyproject.toml"
