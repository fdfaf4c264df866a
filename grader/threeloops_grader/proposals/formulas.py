"""Build answers from code that a student sees: expressions in visible tests, and functions in setup and test cells.

A visible test calls the exercise's function with arguments and compares the result. Every other expression in the test
that can be computed from the same arguments is proposed as the body of the function. It may be the expected value, a
mistake that the test recognises, or a call of a helper with the same parameters. This module works for any lab.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

from threeloops_grader.proposals.released import Asked, Function, Released, head, parameters
from threeloops_grader.proposals.slicing import Scope, backward, binds, reads, scopes

__all__ = ["formulas"]

_WRAPPERS = ("list", "tuple", "dict", "set", "float", "int", "inout", "by_value", "deepcopy", "iter", "sorted")
_COPIES = ("clone", "copy", "tolist", "detach", "double", "float", "deepcopy")
_MOST_PLACES = 2
"""Results that a function is taken to have if a test looks at one of them."""
_FEWEST_DIGITS = 2
"""Constants of fewer digits occur in formulas by chance."""


@dataclass(frozen=True)
class _Call:
    """A call of the exercise's function in a test, and the argument that it passes for each parameter.

    `names` maps arguments that are variables to their parameters. `parts` does so for other expressions, by their
    text. `spread` is the variable in `function(*spread)`. `node` is the call itself, which stands for the result.
    """

    scope: Scope
    node: ast.Call
    names: dict[str, str] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    spread: str = ""


def formulas(lab: Released, exercise: Asked) -> Iterator[str]:
    """Yield the texts to try in the solution cell, without repetitions."""
    seen: set[str] = set()
    for function in exercise.functions:
        for text in _bodies(lab, exercise, function):
            if text not in seen:
                seen.add(text)
                yield text


def _bodies(lab: Released, exercise: Asked, function: Function) -> Iterator[str]:
    setup = {name for statement in lab.setup.body for name in binds(statement)}
    for test in exercise.tests:
        for call in _calls(lab, test, function):
            for value, body in _values(call, setup, function):
                for returned in _forms(value, call, function):
                    yield exercise.answer(function.name, _written(function, call, body, returned))
    for name, before in _helpers(lab, exercise, setup):
        for arguments in _fitting(name, parameters(function)):
            value = ast.parse(f"{name.name}({arguments})", mode="eval").body
            yield exercise.answer(function.name, _written(function, None, before, value))


def _calls(lab: Released, test: ast.Module, function: Function) -> Iterator[_Call]:
    """Yield the calls in a visible test, and in helpers to which the test passes the function as an argument."""
    reached = lab.reached(test)
    for scope in scopes(test):
        yield from _calls_in(scope, {function.name} | _called(scope), function)
    for scope in scopes(lab.setup):
        if scope.name and {scope.name, *(outer.name for outer in scope.around)} & reached:
            yield from _calls_in(scope, _called(scope), function)


def _called(scope: Scope) -> set[str]:
    """Return the parameters of the functions around a call. One of them may be the exercise's function."""
    return {name for outer in (*scope.around, scope) for name in outer.parameters}


def _calls_in(scope: Scope, stands_for: set[str], function: Function) -> Iterator[_Call]:
    wanted = parameters(function)
    for node in _own_nodes(scope):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in stands_for:
            arguments = node.args
        else:
            handed = [isinstance(argument, ast.Name) and argument.id in stands_for for argument in node.args]
            arguments = node.args[handed.index(True) + 1 :] if any(handed) and not _compares(node) else []
            if not arguments:
                continue
        call = _Call(scope, node)
        if len(arguments) == 1 and isinstance(arguments[0], ast.Starred) and isinstance(arguments[0].value, ast.Name):
            yield _Call(scope, node, spread=arguments[0].value.id)
            continue
        if len(arguments) > len(wanted) or any(isinstance(argument, ast.Starred) for argument in arguments):
            continue
        pairs = [*zip(wanted, arguments, strict=False), *((k.arg, k.value) for k in node.keywords if k.arg in wanted)]
        for parameter, argument in pairs:
            plain = _plain(argument)
            if isinstance(plain, ast.Name):
                call.names[plain.id] = str(parameter)
            elif not isinstance(plain, ast.Constant) or len(str(plain.value)) >= _FEWEST_DIGITS:
                call.parts[ast.unparse(plain)] = str(parameter)
        if call.names or call.parts:
            yield call


def _compares(node: ast.Call) -> bool:
    """Tell whether this call is `check.close(value, …)` or another check of a value, rather than of a function."""
    match node.func:
        case ast.Attribute(value=ast.Name(id="check"), attr=name):
            return name != "returns"
    return False


def _plain(argument: ast.expr) -> ast.expr:
    """Strip conversions and copies from an argument."""
    while True:
        match argument:
            case ast.Call(func=ast.Name(id=name), args=[inner]) if name in _WRAPPERS:
                argument = inner
            case ast.Call(func=ast.Attribute(value=ast.Name(id="copy")), args=[inner]):
                argument = inner
            case ast.Call(func=ast.Attribute(value=inner, attr=name), args=[]) if name in _COPIES:
                argument = inner
            case ast.List(elts=[ast.Starred(value=inner)]) | ast.Tuple(elts=[ast.Starred(value=inner)]):
                argument = inner
            case _:
                return argument


def _own_nodes(scope: Scope) -> Iterator[ast.AST]:
    """Yield the nodes of the scope's statements, without nested functions and classes."""
    waiting: list[ast.AST] = list(scope.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        yield node
        waiting += list(ast.iter_child_nodes(node))


def _values(call: _Call, setup: set[str], function: Function) -> Iterator[tuple[ast.expr, list[ast.stmt]]]:
    """Yield expressions next to the call that depend on its arguments, with the statements that each one needs."""
    given = setup | call.names.keys() | {call.spread}
    arguments = call.names.keys() | {call.spread}
    unknown = {function.name} | (_called(call.scope) & _heads(call))
    for value in _candidates(call):
        body = backward(value, call.scope.before(value), given, unknown)
        if body is None:
            continue
        together: list[ast.AST] = [value, *body]
        if any(reads(statement) & arguments for statement in together) or _written_in(together, call.parts):
            yield value, body


def _written_in(nodes: list[ast.AST], texts: dict[str, str]) -> bool:
    inner = (part for node in nodes for part in ast.walk(node) if texts)
    return any(ast.unparse(part) in texts for part in inner if isinstance(part, ast.expr))


def _forms(value: ast.expr, call: _Call, function: Function) -> Iterator[ast.expr]:
    """Yield the value, rounded versions of it if the function returns an int, and tuples that have it in one place."""
    yield value
    if function.returns is not None and ast.unparse(function.returns) == "int":
        text = ast.unparse(value)
        for whole in (f"__import__('math').ceil(round({text}, 9))", f"round({text})", f"int({text})"):
            yield ast.parse(whole, mode="eval").body
    places = len(_results(call)) or _MOST_PLACES * _is_indexed(call)
    for place in range(places):
        zeros: list[ast.expr] = [ast.Constant(0)] * places
        yield ast.Tuple([*zeros[:place], value, *zeros[place + 1 :]], ast.Load())


def _is_indexed(call: _Call) -> bool:
    return any(isinstance(node, ast.Subscript) and node.value is call.node for node in _own_nodes(call.scope))


def _heads(call: _Call) -> set[str]:
    function = call.node.func
    return (
        {function.id} if isinstance(function, ast.Name) else {a.id for a in call.node.args if isinstance(a, ast.Name)}
    )


def _candidates(call: _Call) -> Iterator[ast.expr]:
    unpacked: dict[str, ast.expr] = {}
    results = _results(call)
    for node in _own_nodes(call.scope):
        match node:
            case (
                ast.Assign(value=value)
                | ast.AnnAssign(value=ast.expr() as value)
                | ast.Return(value=ast.expr() as value)
            ):
                yield value
            case ast.NamedExpr(value=value):
                yield value
            case ast.Call(args=arguments):
                yield from (argument for argument in arguments if not isinstance(argument, ast.Constant | ast.Starred))
                yield from (keyword.value for keyword in node.keywords if not isinstance(keyword.value, ast.Constant))
                if len(arguments) > 1 and isinstance(arguments[0], ast.Name) and arguments[0].id in results:
                    unpacked.setdefault(arguments[0].id, arguments[1])
            case ast.Compare(left=left, comparators=comparators):
                yield from (left, *comparators)
            case ast.Dict(keys=keys, values=values):
                yield from (key for key in keys if key is not None)
                yield from values
            case ast.DictComp(key=key, value=value):
                yield from (key, value)
            case ast.BinOp(op=ast.Sub(), left=left, right=right):
                yield from (left, right)
    if len(results) > 1 and unpacked.keys() == set(results):
        yield ast.copy_location(ast.Tuple([unpacked[name] for name in results], ast.Load()), call.node)


def _results(call: _Call) -> list[str]:
    """Return the variables `a` and `b` of `a, b = function(…)`."""
    for node in _own_nodes(call.scope):
        if isinstance(node, ast.Assign) and node.value is call.node and isinstance(node.targets[0], ast.Tuple):
            return [target.id for target in node.targets[0].elts if isinstance(target, ast.Name)]
    return []


def _helpers(lab: Released, exercise: Asked, setup: set[str]) -> Iterator[tuple[Function, list[ast.stmt]]]:
    """Yield top-level functions of setup cells and visible tests, with the statements that a test's function needs."""
    for node in lab.setup.body:
        if isinstance(node, Function):
            yield node, []
    wanted = {function.name for function in exercise.functions}
    for test in exercise.tests:
        for scope in scopes(test):
            if scope.name or scope.around:
                continue
            for node in scope.statements():
                if isinstance(node, Function):
                    use = ast.Name(node.name, ast.Load())
                    body = backward(use, [*scope.before(node), node], setup, wanted)
                    if body is not None:
                        yield node, body


def _fitting(helper: Function, wanted: list[str]) -> Iterator[str]:
    """Yield arguments for a helper: by name if the parameters have the same names, and in order."""
    own = parameters(helper)
    optional = len(helper.args.defaults) + sum(default is not None for default in helper.args.kw_defaults)
    needed = own[: len(own) - optional]
    if set(needed) <= set(wanted):
        yield ", ".join(f"{name}={name}" for name in own if name in wanted)
    if not helper.args.kwonlyargs and len(needed) <= len(wanted):
        yield ", ".join(wanted[: len(own)])


def _written(function: Function, call: _Call | None, body: list[ast.stmt], value: ast.expr) -> str:
    """Return the function with this body, in which the arguments of the test's call become parameters."""
    lines: list[str] = []
    replaced = call.parts if call else {}
    if call:
        lines += [f"{name} = {parameter}" for name, parameter in call.names.items() if name != parameter]
        lines += [f"{call.spread} = ({', '.join(parameters(function))},)"] if call.spread else []
    steps = [_Replacing(replaced).visit(copy.deepcopy(statement)) for statement in (*body, ast.Return(value))]
    lines += [line for step in steps for line in ast.unparse(ast.fix_missing_locations(step)).splitlines()]
    return f"{head(function)}:\n" + "\n".join(f"    {line}" for line in lines)


class _Replacing(ast.NodeTransformer):
    """Replaces expressions that have a certain text with names."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit(self, node: ast.AST) -> ast.AST:
        if self._names and isinstance(node, ast.expr) and (name := self._names.get(ast.unparse(node))):
            return ast.Name(name, ast.Load())
        return super().generic_visit(node)
