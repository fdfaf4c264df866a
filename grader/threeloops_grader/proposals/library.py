"""Build answers from the library: public functions and classes with a fitting signature, and texts of whole modules.

A graded run lacks the modules that a lab withholds, and all modules that import these. But a student can read their
texts elsewhere and paste them into an answer. A text that imports such a module fails even if it is pasted.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.machine.child_process import LIBRARY
from threeloops_grader.proposals.released import Asked, Function, Proposal, Released, head, parameters

__all__ = ["Module", "from_library", "importable", "modules"]


@dataclass(frozen=True)
class Module:
    """A module of the library. `imports` are the library's modules that it imports when it is imported."""

    name: str
    text: str
    tree: ast.Module
    imports: frozenset[str]

    @property
    def needs(self) -> frozenset[str]:
        """The modules that must exist to import it: its imports, and the packages that contain it."""
        return self.imports | {self.name.rsplit(".", up)[0] for up in range(1, self.name.count(".") + 1)}

    @property
    def functions(self) -> list[Function]:
        return [node for node in self.tree.body if isinstance(node, Function) and not node.name.startswith("_")]

    @property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]

    @property
    def has_kernels(self) -> bool:
        return "@triton.jit" in self.text


def importable(lab: Lab) -> list[str]:
    """Return the modules that answers may import. Import them once, before the first of many answers is tried."""
    gone = _gone(tuple(lab.withholds))
    return [module.name for module in _with_answers() if module.name not in gone]


def from_library(lab: Released, exercise: Asked, *, kernels: bool) -> Iterator[Proposal]:
    """Yield the answers to try in the solution cell.

    `kernels`: all tests replay kernels, so only a text with kernels can pass.
    """
    gone = _gone(tuple(lab.trusted.lab.withholds))
    for module in _with_answers():
        if kernels and not module.has_kernels:
            continue
        pasted = kernels or module.name in gone
        if pasted and module.imports & gone:
            continue
        for function in exercise.functions:
            for candidate in module.functions:
                if _annotation(candidate) in ("None", "Figure", "Axes") and _annotation(function) != "None":
                    continue
                taking = _taking(module, candidate.name, pasted)
                values = list(_returned(candidate, function, lab.setup))
                for arguments in _fitting(candidate, function):
                    calling = f"{head(function)}:\n    taken = _taken({arguments})\n    return "
                    yield Proposal(*(exercise.answer(function.name, calling + value, taking) for value in values))
        for wanted in exercise.classes:
            for class_ in module.classes:
                if _methods(wanted) <= _methods(class_):
                    taking = _taking(module, class_.name, pasted)
                    yield Proposal(exercise.answer(wanted.name, f"{wanted.name} = _taken", taking))


def _returned(candidate: Function, asked: Function, setup: ast.Module) -> Iterator[str]:
    """Yield expressions of `taken`, the candidate's result: `taken` itself, each of its fields, or the record that the
    exercise asks for, made from these fields."""
    yield "taken"
    fields = _fields().get(_annotation(candidate), frozenset())
    yield from (f"taken.{name}" for name in sorted(fields))
    for node in setup.body:
        if isinstance(node, ast.ClassDef) and node.name == _annotation(asked):
            own = sorted(_fields_of(node))
            if own and fields >= set(own):
                yield f"{node.name}({', '.join(f'{name}=taken.{name}' for name in own)})"


def _annotation(function: Function) -> str:
    return ast.unparse(function.returns).strip("'") if function.returns is not None else ""


@cache
def _fields() -> dict[str, frozenset[str]]:
    """Return the fields and properties of the library's public classes, by the name of the class."""
    fields: dict[str, frozenset[str]] = {}
    for module in modules():
        for node in module.classes:
            fields[node.name] = fields.get(node.name, frozenset()) | _fields_of(node)
    return fields


def _fields_of(node: ast.ClassDef) -> frozenset[str]:
    fields = {
        field.target.id
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
    properties = {
        part.name
        for part in node.body
        if isinstance(part, Function) and "property" in {ast.unparse(by) for by in part.decorator_list}
    }
    return frozenset(name for name in fields | properties if not name.startswith("_"))


def _taking(module: Module, name: str, pasted: bool) -> str:
    return f"{module.text}\n\n_taken = {name}" if pasted else f"from {module.name} import {name} as _taken"


def _fitting(candidate: Function, asked: Function) -> Iterator[str]:
    """Yield arguments in order if the number fits. Otherwise yield them by name if the parameters are the same.

    A function that takes no argument is not tried, because it knows nothing about the case. Nor is one whose
    annotations rule it out.
    """
    own = parameters(candidate)
    optional = len(candidate.args.defaults)
    wanted = parameters(asked)
    positional = len(candidate.args.posonlyargs) + len(candidate.args.args)
    keywords = [
        parameter.arg
        for parameter, default in zip(candidate.args.kwonlyargs, candidate.args.kw_defaults, strict=True)
        if default is None
    ]
    most = positional if candidate.args.vararg is None else len(wanted)
    given: list[tuple[str, str]] = []
    if not keywords and positional - optional <= len(wanted) <= most:
        given = [(own[min(place, len(own) - 1)] if own else "", name) for place, name in enumerate(wanted)]
        written = ", ".join(wanted)
    elif {*own[: positional - optional], *keywords} <= set(wanted):
        given = [(name, name) for name in own if name in wanted]
        written = ", ".join(f"{name}={name}" for name, _ in given)
    taken = _kinds(candidate)
    offered = _kinds(asked)
    if given and not any(_excludes(taken[own], offered[name]) for own, name in given if own):
        yield written


_KINDS = {
    "number": ("int", "float", "bool", "complex"),
    "text": ("str", "Path"),
    "bytes": ("bytes", "bytearray"),
    "tensor": ("Tensor", "Float", "Int", "Bool", "Num", "Shaped", "Integer"),
    "collection": ("list", "tuple", "set", "frozenset", "Sequence", "Iterable", "Iterator", "Collection", "range"),
    "mapping": ("dict", "Mapping"),
    "callable": ("Callable",),
}
"""Annotations that exclude each other. Any other one may stand for anything, unless it is a class of the library."""


def _kinds(function: Function) -> dict[str, frozenset[str]]:
    """Return the types that the annotation of each parameter allows. The empty set allows everything."""
    given = function.args
    parts = (*given.posonlyargs, *given.args, *([given.vararg] if given.vararg else []), *given.kwonlyargs)
    return {parameter.arg: _allowed(parameter.annotation) for parameter in parts}


def _allowed(annotation: ast.expr | None) -> frozenset[str]:
    match annotation:
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            both = _allowed(left), _allowed(right)
            return both[0] | both[1] if all(both) else frozenset()
        case ast.Subscript(value=value):
            return _allowed(value)
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Constant(value=str(name)):
            kinds = [kind for kind, names in _KINDS.items() if name in names]
            return frozenset(kinds or ([name] if name in _fields() else []))
        case ast.Constant(value=None):
            return frozenset(["None"])
    return frozenset()


def _excludes(taken: frozenset[str], offered: frozenset[str]) -> bool:
    """Tell whether a parameter allows none of an argument's possible types. A class of the library and another class
    may have the same attributes."""
    if not taken or not offered or taken & offered:
        return False
    return bool(offered & _KINDS.keys())


def _methods(node: ast.ClassDef) -> set[str]:
    return {
        function.name for function in node.body if isinstance(function, Function) and not function.name.startswith("_")
    }


@cache
def modules() -> tuple[Module, ...]:
    """Return all modules of the library, in the order of their files."""
    by_name = {}
    for path in sorted(LIBRARY.rglob("*.py")):
        parts = path.relative_to(LIBRARY.parent).with_suffix("").parts
        by_name[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    trees = {name: ast.parse(text) for name, text in by_name.items()}
    return tuple(Module(name, by_name[name], tree, _imports(tree, by_name)) for name, tree in trees.items())


def _with_answers() -> Iterator[Module]:
    """Yield the modules that hold public functions or classes. A `__main__` runs a program when it is imported."""
    for module in modules():
        if not module.name.endswith("__main__") and (module.functions or module.classes):
            yield module


def _imports(tree: ast.Module, modules: Iterable[str]) -> frozenset[str]:
    asked = set()
    for node in _at_import(tree.body):
        if isinstance(node, ast.Import):
            asked |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            asked |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(asked & set(modules))


def _at_import(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) != "TYPE_CHECKING":
            yield from _at_import([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from _at_import(node.body)


@cache
def _gone(withheld: tuple[str, ...]) -> frozenset[str]:
    """Return the modules that cannot be imported in a graded run."""
    prefixes = tuple(f"{module}." for module in withheld)
    gone = {module.name for module in modules() if f"{module.name}.".startswith(prefixes)}
    while more := {module.name for module in modules() if module.needs & gone} - gone:
        gone |= more
    return frozenset(gone)
