"""Find the names that a cell's text binds, uses and imports, by Python's own rules of scope."""

import ast
import builtins
import symtable
from collections.abc import Iterator
from functools import lru_cache

__all__ = ["bound", "imported_modules", "optimizes", "replays", "texts", "used"]

_KEPT = 256
"""The number of texts whose names are remembered, more than a lab has. The rules ask for the names of one cell many
times."""
_BUILTINS = frozenset(dir(builtins)) | {"__name__", "__file__"}


@lru_cache(_KEPT)
def bound(source: str, *, imports: bool = True) -> frozenset[str]:
    """Return the names that the text binds at its top level (`imports=False`: without the imported ones)."""
    top = symtable.symtable(source, "<cell>", "exec")
    return frozenset(s.get_name() for s in top.get_symbols() if s.is_assigned() or (imports and s.is_imported()))


@lru_cache(_KEPT)
def used(source: str) -> frozenset[str]:
    """Return the names that the text needs from outside: it reads them and does not bind them, and they are not
    builtins."""
    top = symtable.symtable(source, "<cell>", "exec")
    read = frozenset(
        symbol.get_name()
        for table in _with_inner_scopes(top)
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (table is top or symbol.is_global())
    )
    return read - bound(source) - _BUILTINS


def imported_modules(source: str) -> set[str]:
    """Return the absolute modules that the text may import. Of `from a import b` they are both `a` and `a.b`."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules


def texts(source: str, *where: str) -> set[str]:
    """Return the texts in the source, if it has one of the names or attributes `where`: it may look names up by their
    text."""
    nodes = list(ast.walk(ast.parse(source)))
    named = {node.id for node in nodes if isinstance(node, ast.Name)}
    named |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    strings = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return strings if named & set(where) else set()


def replays(source: str) -> bool:
    """Return whether a test cell judges kernels by replay."""
    return "replay" in used(source) or "threeloops.lab.checking.replay" in imported_modules(source)


def optimizes(source: str) -> bool:
    """Return whether the text names `torch.optim`."""
    return "optim" in {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}


def _with_inner_scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _with_inner_scopes(child)
