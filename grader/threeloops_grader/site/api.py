"""The pages of the library: one for each package with public names, written from signatures and docstrings.

Docstrings here are Markdown, and nothing has to be imported to read them, so this takes seconds.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from threeloops_grader.authoring.labs import course_root

__all__ = ["page", "write"]

_SECTION = re.compile(r"^(Args|Arguments|Raises|Returns|Yields|Attributes):\s*$", re.MULTILINE)
_ENTRY = re.compile(r"^(\*{0,2}[\w, *.]+?): ", re.MULTILINE)
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _packages() -> list[str]:
    """Return the packages of the library that have public names, in order."""
    library = course_root() / "lib"
    faces = sorted((library / "threeloops").rglob("__init__.py"))
    names = [".".join(face.parent.relative_to(library).parts) for face in faces]
    return [name for name in names if name != "threeloops" and _public(_parsed(name))]


def write(source: Path) -> list[str]:
    """Write a page per package into the folder `api` of the sources, and a list of them. Returns the list's place."""
    folder = source / "api"
    folder.mkdir(parents=True, exist_ok=True)
    packages = _packages()
    rows = []
    for name in packages:
        title = name.removeprefix("threeloops.")
        (folder / f"{title}.md").write_text(page(name), encoding="utf-8")
        first = (ast.get_docstring(_parsed(name)) or "").partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        rows.append(f"| [{title}]({title}.md) | {first} |")
    listed = "\n".join(name.removeprefix("threeloops.") for name in packages)
    about = "Import each name from its package, for example `from threeloops.inner.meter import meter`."
    table = "\n".join(["| package of `threeloops` | about |", "|---|---|", *rows])
    contents = f"```{{toctree}}\n:hidden:\n\n{listed}\n```"
    (folder / "index.md").write_text(f"# API\n\n{about}\n\n{table}\n\n{contents}\n", encoding="utf-8")
    return ["api/index"]


def page(package: str) -> str:
    """Return a package's public names as Markdown: signature, docstring and, for a class, its public members."""
    parts = [f"# {package.removeprefix('threeloops.')}", _text(ast.get_docstring(_parsed(package)))]
    for name in _public(_parsed(package)):
        parts += [f"## {name}", *_entry(package, name)]
    return "\n\n".join(part for part in parts if part) + "\n"


@cache
def _parsed(module: str) -> ast.Module:
    path = course_root() / "lib" / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])


def _public(tree: ast.Module) -> list[str]:
    """Return the names that a module says are public."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def _entry(module: str, name: str) -> Iterator[str]:
    """Yield what the page of a package says about one name, wherever it is defined."""
    for node in ast.walk(_parsed(module)):
        if isinstance(node, (*_FUNCTION, ast.ClassDef)) and node.name == name:
            yield from _described(node)
            return
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("threeloops"):
            origin = next((alias.name for alias in node.names if (alias.asname or alias.name) == name), None)
            if origin is not None:
                yield from _imported(node.module, origin, module)
                return
    yield from _constant(_parsed(module), name)


def _imported(origin: str, name: str, module: str) -> Iterator[str]:
    """Yield what the page says about a name that `module` imports: a module, or a name defined in another one."""
    whole = _parsed(f"{origin}.{name}")
    if whole.body:
        yield _text(ast.get_docstring(whole))
    elif origin != module:
        yield from _entry(origin, name)


def _constant(tree: ast.Module, name: str) -> Iterator[str]:
    """Yield the text below an assignment of a module, if it has one."""
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if name in [ast.unparse(target) for target in targets]:
            line = ast.unparse(node)
            yield _code(line if len(line) < 200 else f"{name} = ...")
            yield _text(_string(after))


def _described(node: _Definition) -> Iterator[str]:
    yield _code(_signature(node))
    yield _text(ast.get_docstring(node))
    if not isinstance(node, ast.ClassDef):
        return
    for member, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(member, ast.AnnAssign) and not ast.unparse(member.target).startswith("_"):
            text = _text(_string(after)).replace("\n", " ")
            yield f"- `{ast.unparse(member)}`{': ' if text else ''}{text}"
    for member in node.body:
        if isinstance(member, _FUNCTION) and (not member.name.startswith("_") or member.name == "__call__"):
            yield _code(_signature(member))
            yield _text(ast.get_docstring(member))


def _signature(node: _Definition) -> str:
    if isinstance(node, ast.ClassDef):
        init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
        made = f"\n{_signature(init)}" if init is not None else ""
        return f"class {node.name}{bases}{made}"
    marks = [
        f"@{ast.unparse(mark)}\n"
        for mark in node.decorator_list
        if ast.unparse(mark) in ("property", "classmethod", "staticmethod")
    ]
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returned = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    arguments = ast.unparse(node.args)
    head = f"{word} {node.name}({arguments}){returned}"
    if len(head) > 88:
        head = f"{word} {node.name}(\n" + "".join(f"    {one},\n" for one in _arguments(node.args)) + f"){returned}"
    return "".join([*marks, head])


def _arguments(arguments: ast.arguments) -> list[str]:
    """Return the arguments one by one: text between commas outside of brackets."""
    parts = [""]
    depth = 0
    quoted = ""
    for letter in ast.unparse(arguments):
        if letter in "'\"" and quoted in ("", letter):
            quoted = "" if quoted else letter
        depth += 0 if quoted else (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _string(node: ast.AST | None) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return textwrap.dedent(node.value.value) if is_text else ""  # type: ignore[union-attr]


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _text(docstring: str | None) -> str:
    """Return a docstring as Markdown: sections such as `Args:` become lists, and examples become code."""
    parts = _SECTION.split(docstring or "")
    texts = [_with_examples(parts[0])]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        lines = textwrap.dedent(body.strip("\n"))
        section, _, rest = lines.partition("\n\n") if not lines.startswith(" ") else (lines, "", "")
        entries = re.split(r"\n(?=\S)", section)
        listed = "\n".join("- " + _ENTRY.sub(r"`\1`: ", " ".join(entry.split()), count=1) for entry in entries)
        texts += [f"**{title}**", listed, _with_examples(textwrap.dedent(rest))]
    return "\n\n".join(text for text in texts if text)


def _with_examples(text: str) -> str:
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(_code(part) if part.lstrip().startswith(">>>") else part for part in paragraphs)
