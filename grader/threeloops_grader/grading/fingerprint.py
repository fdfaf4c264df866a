"""A hash of everything that decides points besides the submission. Two runs with the same fingerprint grade alike."""

import platform
from collections.abc import Iterator
from pathlib import Path

from threeloops_grader.authoring.labs import Lab, LabLimits
from threeloops_grader.machine.child_process import HARNESS, LIBRARY
from threeloops_grader.machine.installed import requirements
from threeloops_grader.machine.provenance import sha256_of

__all__ = ["fingerprint"]


def fingerprint(lab: Lab, limits: LabLimits | None, *options: object) -> str:
    """Return a hash over the grader's and the library's code, the lab's source and data, limits, packages and
    `options`.

    `limits` overrides the lab's own. Takes about 30 ms: compute it once per run.
    """
    versions = [platform.python_version(), *[(r.name, r.installed) for r in requirements()]]
    return sha256_of(_files(lab), repr((lab.slug, limits or lab.limits, versions, options)))


def _files(lab: Lab) -> Iterator[tuple[str, Path]]:
    yield "source", lab.source
    for folder in (HARNESS, LIBRARY, lab.data):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".tmp"):
                yield f"{folder.name}/{path.relative_to(folder).as_posix()}", path
