"""A dry run of the evidence: the commands that its parts would run, and whether everything that they name exists.

It needs no GPU and measures nothing, so a module or a name that has moved is found before time on a GPU is spent.
"""

import ast
import importlib.util
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from threeloops_grader.evidence.parts import NotDone, Part, rehearsing
from threeloops_grader.machine.child_process import CODE

__all__ = ["Rehearsed", "rehearse"]

_OURS = ("benchmarks", "threeloops", "threeloops_grader")
_SECONDS = 60.0
_WRITTEN = ("--rows", "--out")
"""Options that name the output of a command."""

Rehearsed = tuple[str, list[str]]
"""A line about a part or one of its commands, and its faults."""


def rehearse(part: Part) -> Iterator[Rehearsed]:
    """Yield each command that `part` would run, with the missing modules and files that it names, or the reason why the
    part would run none."""
    if part.unavailable:
        yield f"{part.name}: skipped, {part.unavailable}", []
        return
    with rehearsing() as commands:
        try:
            part.run(_SECONDS)
        except NotDone as reason:
            if not commands:
                yield f"{part.name}: skipped, {reason}", []
    for command in commands:
        words = [word if len(word) < 80 else f"{word[:60]}…" for word in command]
        yield f"{part.name}: python {shlex.join(words)}", list(_missing(command))


def _missing(command: Sequence[str]) -> Iterator[str]:
    """Yield what is missing among the modules after -m and -p, the files of the project, and their imports."""
    files: set[Path] = set()
    for option, value in zip(command, command[1:], strict=False):
        if option == "-m" and value != "gpu" or option == "-p" and not value.startswith("no:"):
            if (path := _source(value)) is None:
                yield f"there is no module {value}"
            elif value.startswith("benchmarks"):
                files.update((CODE / "benchmarks").rglob("*.py"))  # which name one another in strings
            elif value.partition(".")[0] in _OURS:
                files.add(path)
    if command[:2] == ["-m", "benchmarks"] and _source(f"benchmarks.{command[2]}") is None:
        yield f"there is no module benchmarks.{command[2]}"
    for option, word in zip(("", *command), command, strict=False):
        if re.fullmatch(r"\d\d_\w+", word):
            files.update((CODE / "solutions" / word).glob(f"{word}*.py"))
        if word.startswith(f"{CODE}/") and option not in _WRITTEN:
            if not (place := Path(word)).exists():
                yield f"there is no file {place.relative_to(CODE)}"
            files.update(path for path in place.rglob("test_*.py") if "mark.gpu" in path.read_text("utf-8"))
    yield from _broken_imports(files)


def _broken_imports(files: set[Path]) -> Iterator[str]:
    """Find imports of the project's own modules that fail, in these files and in all modules that they import."""
    seen: set[Path] = set()
    while files - seen:
        seen.add(path := min(files - seen))
        place = path.relative_to(CODE) if path.is_relative_to(CODE) else path
        try:
            imports = _imports(path)
        except SyntaxError as error:
            yield f"{place}:{error.lineno}: {error.msg}"
            continue
        for line, module, name in imports:
            source = _source(module)
            if source is None:
                yield f"{place}:{line}: there is no module {module}"
                continue
            files.add(source)
            if name and (inner := _source(f"{module}.{name}")):
                files.add(inner)
            elif name not in _bound(source) | {"", "*"}:
                yield f"{place}:{line}: {module} has no {name}"


@cache
def _source(module: str) -> Path | None:
    """Return the file of a module, or None. The package of a module that is not the project's is imported for that."""
    top, *rest = module.split(".")
    if top not in _OURS:
        try:
            spec = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            return None
        return Path(spec.origin) if spec and spec.origin else None
    base = {"threeloops": CODE / "lib", "threeloops_grader": CODE / "grader"}.get(top, CODE)
    stem = base.joinpath(top, *rest)
    return next((path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()), None)


@cache
def _imports(path: Path) -> list[tuple[int, str, str]]:
    """Return the line, module and name ("" for the module itself) of each import of the project's own modules."""
    imported = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported += [(node.lineno, node.module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            imported += [(node.lineno, alias.name, "") for alias in node.names]
    return [(line, module, name) for line, module, name in imported if module.partition(".")[0] in _OURS]


@cache
def _bound(path: Path) -> set[str]:
    """Return the names that a module binds at its top, also under `if` and `try`."""
    names: set[str] = set()
    todo: list[ast.AST] = [*ast.parse(path.read_text("utf-8")).body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        todo += ast.iter_child_nodes(node)
    return names
