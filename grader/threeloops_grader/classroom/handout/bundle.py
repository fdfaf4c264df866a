"""The student bundle: released labs, the library and the harness, without anything from `solutions/`."""

from collections.abc import Sequence
from pathlib import Path

from threeloops_grader.authoring.labs import LABS, Lab, LabError
from threeloops_grader.classroom.handout.archive import write_zip
from threeloops_grader.release.files import files_below
from threeloops_grader.release.leaks import leaks

__all__ = ["course_files", "write_bundle"]

_COURSE = ("lib/threeloops", "grader", "scripts")
"""Folders that a course needs to run. Each is taken whole, without Python's compiled files."""
_FILES = ("AGENTS.md", "LICENSE", "Makefile", "nbgrader_config.py", "pyproject.toml", "environment.yml")
_TOP = "three_loops"

_README = """# Three Loops

```sh
make lab LAB={number:02d}                   # JupyterLab on your own copy of lab {number:02d}, in work/
.venv/bin/threeloops check {number:02d}     # all visible checks of lab {number:02d}
.venv/bin/threeloops submit {number:02d}    # work/{slug}.zip, to hand in
```

You need Linux or WSL2, Python 3.11 to 3.14 with `venv`, and make. A later bundle may be unpacked over this
folder: `work/` is yours, and `threeloops update {number:02d}` brings a newer release of a lab into your copy.

If you hand in through nbgrader's exchange, your instructor names its folder:

```sh
export THREELOOPS_EXCHANGE=/srv/exchange
.venv/bin/threeloops submit {number:02d} --exchange
.venv/bin/nbgrader fetch_feedback {slug}    # later: work/{slug}/feedback/
```

On a JupyterHub the course is installed and the folder is set: write `threeloops` and `nbgrader` without `.venv/bin/`,
and `threeloops start {number:02d}` in place of `make lab`; then open `work/{slug}/{slug}.ipynb`.
"""


def course_files(root: Path) -> dict[str, Path | bytes]:
    """Return the library, the harness and the pins, by their names below `root`."""
    names = [name for name in _FILES if (root / name).is_file()]
    names += [path.name for path in root.glob("requirements*.txt") if "peers" not in path.name]
    for folder in _COURSE:
        below = files_below(root / folder)
        names += [f"{folder}/{name}" for name in below if "__pycache__" not in name and not name.endswith(".tmp")]
    return {name: root / name for name in names}


def write_bundle(path: Path, labs: Sequence[Lab]) -> None:
    """Write the bundle with `labs`, the last of which the README names. The library is complete. Later labs use code
    that students write in earlier ones, so the library holds its own implementations, as the public repository does.

    Raises LabError: a lab was not released, or its release holds an answer.
    """
    root = labs[-1].root
    files = course_files(root)
    for lab in labs:
        folder = lab.released.parent
        if not lab.released.is_file():
            raise LabError(f"{lab.released} is missing; run `threeloops release {lab.number:02d}` first")
        if leaked := leaks(lab, folder):
            raise LabError(f"lab {lab.slug} would be given out with answers:\n" + "\n".join(leaked))
        files |= {f"{LABS}/{lab.slug}/{name}": folder / name for name in files_below(folder)}
    glossary = root / LABS / "glossary.md"
    files |= {f"{LABS}/{glossary.name}": glossary} if glossary.is_file() else {}
    files["README.md"] = _README.format(number=labs[-1].number, slug=labs[-1].slug).encode()
    write_zip(path, {f"{_TOP}/{name}": content for name, content in files.items()})
