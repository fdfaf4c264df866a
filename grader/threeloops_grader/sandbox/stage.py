"""The only files of the course that a graded submission can see.

These are a copy of the library (with a stub in place of each withheld module), the student's end of the wall, and the
lab's data. They do not include solutions, hidden tests, the gradebook or other submissions.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from threeloops_grader.machine.child_process import HARNESS, LIBRARY

__all__ = ["stage"]

_STUDENT_END = (
    "__init__.py",
    "transport/__init__.py",
    "transport/errors.py",
    "transport/link.py",
    "transport/tensors.py",
    "transport/wire.py",
    "wall/__init__.py",
    "wall/student.py",
    "witness/__init__.py",
    "witness/calls.py",
    "witness/folders.py",
    "witness/plain.py",
    "processes/__init__.py",
    "processes/rank_processes.py",
    "processes/student_process.py",
    "sandbox/__init__.py",
    "sandbox/confine.py",
    "sandbox/seccomp.py",
    "sandbox/warmup.py",
)

_STUB = '''"""Withheld in graded runs."""

raise ImportError(
    "{module} is withheld in graded runs: it holds the answer to an exercise of this lab. "
    "Write the answer in the notebook; outside of grading the module is there to be read."
)
'''


def stage(folder: Path, withholds: Sequence[str], data: Path | None) -> Path:
    """Fill a new `folder` with the files that the student's side may see, and return it.

    `withholds` are dotted names of library modules that hold answers. Raises ValueError for one that does not exist,
    because nothing would be withheld. `data` is the lab's data folder, if it has one.
    """
    shutil.copytree(LIBRARY, folder / "threeloops", ignore=shutil.ignore_patterns("__pycache__"))
    for module in withholds:
        path = folder.joinpath(*module.split("."))
        if path.is_dir():
            shutil.rmtree(path)
        elif not path.with_suffix(".py").is_file():
            raise ValueError(f"withholds: {module} is not a module of the library; correct the lab's header")
        path.with_suffix(".py").write_text(_STUB.format(module=module), encoding="utf-8")
    for name in _STUDENT_END:
        target = folder / HARNESS.name / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(HARNESS / name, target)
    (folder / "data").mkdir()
    if data is not None and data.is_dir():
        shutil.copytree(data, folder / "data", dirs_exist_ok=True)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder
