"""The pages of the library: one for each package with public names, written by Sphinx from docstrings."""

import ast
from pathlib import Path

from threeloops_grader.authoring.labs import course_root

__all__ = ["packages", "write"]


def packages() -> list[str]:
    """Return the packages of the library that have public names, in order."""
    library = course_root() / "lib"
    faces = sorted((library / "threeloops").rglob("__init__.py"))
    return [".".join(face.parent.relative_to(library).parts) for face in faces if _names(face)]


def write(source: Path) -> list[str]:
    """Write a page per package into the folder `api` of the sources, and a list of them. Returns the list's place."""
    folder = source / "api"
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in packages() if name != "threeloops"]
    for name in names:
        title = name.removeprefix("threeloops.")
        rule = "=" * len(title)
        text = f"{title}\n{rule}\n\n.. automodule:: {name}\n   :members:\n   :imported-members:\n   :undoc-members:\n"
        (folder / f"{title}.rst").write_text(text, encoding="utf-8")
    listed = "\n".join(f"   {name.removeprefix('threeloops.')}" for name in names)
    title = "The library, package by package"
    about = "Every name here is imported from its package, such as ``from threeloops.inner.meter import meter``."
    contents = f"{title}\n{'=' * len(title)}\n\n{about}\n\n.. toctree::\n   :maxdepth: 1\n\n{listed}\n"
    (folder / "index.rst").write_text(contents, encoding="utf-8")
    return ["api/index"]


def _names(face: Path) -> bool:
    """Return whether a package says which names are public."""
    for node in ast.parse(face.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return bool(ast.literal_eval(node.value))
    return False
