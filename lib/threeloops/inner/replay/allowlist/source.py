"""Write the text of admitted kernels from their syntax trees, with each statement on the line that it has in the cell.

Nothing of the cell's own text is kept. Triton reads a kernel's source again by rules of its own: its interpreter starts
at the *last* line that begins with "def", even if that line is inside a docstring. So Triton may understand a text in
another way than Python does. Text made from the tree that was checked has no comments, docstrings or odd line ends to
hide in.
"""

import ast
from collections.abc import Sequence

from threeloops.inner.replay.allowlist.rules import without_docstring

__all__ = ["Lines", "PRELUDE", "write"]

PRELUDE = "import math; import triton; import triton.language as tl"


class Lines:
    """A file under construction: statements are put at lines, never before the last one."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @property
    def last(self) -> int:
        return len(self.lines)

    def put(self, line: int, indent: int, text: str) -> None:
        """Write at `line`, after any text that it holds already. Raises ValueError for a line before the last one."""
        if line < self.last:
            raise ValueError(f"line {line} comes after line {self.last}")
        if line == self.last:
            joint = " " if self.lines[-1].endswith(":") else "; "
            self.lines[-1] += joint + text
            return
        self.lines += [""] * (line - self.last - 1)
        self.lines.append("    " * indent + text)

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def write(lines: Lines, statements: Sequence[ast.stmt], indent: int = 0) -> None:
    """Write statements of the kinds that the rules admit."""
    for statement in statements:
        _write_statement(lines, statement, indent, "")


def _write_statement(lines: Lines, node: ast.stmt, indent: int, otherwise: str) -> None:
    match node:
        case ast.FunctionDef():
            lines.put(node.lineno, indent, f"def {node.name}({ast.unparse(node.args)}):")
            body = without_docstring(node.body)
            # A body that is only a docstring becomes `pass` on the same line.
            write(lines, body or [ast.copy_location(ast.Pass(), node.body[0])], indent + 1)
        case ast.If():
            lines.put(node.lineno, indent, f"{otherwise}if {ast.unparse(node.test)}:")
            write(lines, node.body, indent + 1)
            _otherwise(lines, node.orelse, indent)
        case ast.For():
            lines.put(node.lineno, indent, f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}:")
            write(lines, node.body, indent + 1)
        case ast.While():
            lines.put(node.lineno, indent, f"while {ast.unparse(node.test)}:")
            write(lines, node.body, indent + 1)
        case ast.Expr(value=ast.Constant()):
            lines.put(node.lineno, indent, "pass")
        case _:
            lines.put(node.lineno, indent, ast.unparse(node))


def _otherwise(lines: Lines, orelse: Sequence[ast.stmt], indent: int) -> None:
    match orelse:
        case []:
            return
        case [ast.If() as only] if only.lineno > lines.last:
            _write_statement(lines, only, indent, "el")
        case [first, *_]:
            lines.put(max(first.lineno - 1, lines.last + 1), indent, "else:")
            write(lines, orelse, indent + 1)
