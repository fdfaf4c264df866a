"""Find the statements that a value depends on, from the names that statements bind and read."""

import ast
import builtins
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

__all__ = ["Scope", "backward", "binds", "reads", "scopes"]

_BUILTINS = frozenset(dir(builtins))
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Compound = ast.For | ast.AsyncFor | ast.While | ast.If | ast.With | ast.AsyncWith | ast.Try


@dataclass(frozen=True)
class Scope:
    """The statements of a module or function, and the scopes around it, the outermost first."""

    name: str
    parameters: tuple[str, ...]
    body: Sequence[ast.stmt]
    around: tuple["Scope", ...] = ()

    def before(self, at: ast.AST) -> list[ast.stmt]:
        """Return the statements that run before `at`, in order. If `at` is in a compound statement, list its parts."""
        outer = [statement for scope in self.around for statement in _beside(scope.body, at)]
        return [*outer, *_before(self.body, at)]

    def statements(self) -> Iterator[ast.stmt]:
        """Yield all statements, also those inside compound statements, but not those inside nested functions."""
        return _flat(self.body)


@dataclass
class _Needs:
    names: set[str] = field(default_factory=set)
    ever: set[str] = field(default_factory=set)

    def add(self, names: Iterable[str]) -> None:
        self.names |= set(names)
        self.ever |= set(names)


def scopes(tree: ast.Module) -> Iterator[Scope]:
    """Yield the scopes of the module and of every function in it."""
    return _scopes(Scope("", (), tree.body))


def _scopes(scope: Scope) -> Iterator[Scope]:
    yield scope
    for statement in scope.statements():
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            given = statement.args
            names = tuple(parameter.arg for parameter in (*given.posonlyargs, *given.args, *given.kwonlyargs))
            yield from _scopes(Scope(statement.name, names, statement.body, (*scope.around, scope)))


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        yield from _flat(_inside(statement))


def _inside(statement: ast.stmt) -> list[ast.stmt]:
    if not isinstance(statement, _Compound):
        return []
    inner = [*statement.body, *getattr(statement, "orelse", []), *getattr(statement, "finalbody", [])]
    return inner + [handled for handler in getattr(statement, "handlers", []) for handled in handler.body]


def _contains(statement: ast.AST, at: ast.AST) -> bool:
    return any(node is at for node in ast.walk(statement))


def _before(body: Sequence[ast.stmt], at: ast.AST) -> Iterator[ast.stmt]:
    for statement in body:
        if _contains(statement, at):
            yield from _before(_inside(statement), at)
            return
        yield statement


def _beside(body: Sequence[ast.stmt], at: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements around the function that contains `at`. All may have run when the function is called."""
    for statement in body:
        if _contains(statement, at):
            yield from _beside(_inside(statement), at)
        else:
            yield statement


def reads(node: ast.AST) -> set[str]:
    """Return the names that the node needs from outside, without builtins."""
    loaded = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
    inner: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.comprehension):
            inner |= _stored(part.target)
        elif isinstance(part, _Function):
            given = part.args
            names = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            inner |= {name.arg for name in names if name is not None}
            if not isinstance(part, ast.Lambda):
                inner |= {name for statement in _flat(part.body) for name in binds(statement)}
    if isinstance(node, _Compound):
        inner |= binds(node) - {name for first in _inside(node)[:1] for name in _read_at_once(first)}
    return loaded - inner - _BUILTINS


def _read_at_once(statement: ast.stmt) -> set[str]:
    """Return the names that `total += …` reads. The syntax tree shows them only as assigned."""
    return {
        part.target.id
        for part in ast.walk(statement)
        if isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name)
    }


def binds(statement: ast.stmt) -> set[str]:
    """Return the names that the statement binds, or changes as in `list.append(1)`, `list[0] = 1` or `list.x = 1`."""
    if isinstance(statement, _Named):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    if isinstance(statement, _Compound):
        own = {name for inner in _inside(statement) for name in binds(inner)}
        for target in (getattr(statement, "target", None), *(w.optional_vars for w in getattr(statement, "items", []))):
            own |= _stored(target) if target is not None else set()
        return own
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return _changed(statement.value.func)
    bound = _stored(statement)
    for target in getattr(statement, "targets", [getattr(statement, "target", None)]):
        bound |= _changed(target)
    return bound


def _changed(target: ast.AST | None) -> set[str]:
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
        if isinstance(target, ast.Name):
            return {target.id}
    return set()


def _stored(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def backward(value: ast.AST, before: Sequence[ast.stmt], given: set[str], without: set[str]) -> list[ast.stmt] | None:
    """Return the statements of `before` that `value` depends on, in order.

    Returns None if a name has no definition, or if the value depends on a name in `without`. `given` are the names that
    already have a value: parameters and definitions of setup cells.
    """
    needs = _Needs()
    needs.add(reads(value) - given)
    if reads(value) & without:
        return None
    needed: list[ast.stmt] = []
    for statement in reversed(before):
        bound = binds(statement)
        changes = isinstance(statement, ast.Expr | ast.AugAssign | _Compound) or not _stored(statement)
        if not bound & (needs.names | (needs.ever - given if changes else set())):
            continue
        if reads(statement) & without:
            if bound & needs.names and not isinstance(statement, ast.Expr):
                return None
            continue
        needed.append(statement)
        if not changes or isinstance(statement, _Named | ast.Import | ast.ImportFrom):
            needs.names -= bound
        needs.add(reads(statement) - given - _bound_inside(statement))
    bound = {name for statement in needed for name in binds(statement)}
    return None if needs.names - bound else needed[::-1]


def _bound_inside(statement: ast.stmt) -> set[str]:
    return _stored(statement) if isinstance(statement, ast.For | ast.With) else set()
