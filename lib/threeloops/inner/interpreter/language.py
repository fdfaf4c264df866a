"""Repairs around the builder of Triton's interpreter: numbers that are tensors when compiled, how `tl` is replaced
during a launch, library functions that were decorated too early, and autotuners where nothing can be timed."""

import ast
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

__all__ = ["Replacements", "index", "install", "interpret_library", "number_made"]

_get_np_dtype, _patch_lang = interpreter._get_np_dtype, interpreter._patch_lang
_run_grid, _tritons_bench = interpreter.GridExecutor.__call__, Autotuner._bench
_implicit_cvt = interpreter._implicit_cvt


class Replacements:
    """The interpreter's versions of what `tl`, `tl.core` and `tl.tensor` hold, found once and installed by each launch.

    Triton searches its modules for them at every launch and every call of a device function such as `tl.sum`, which
    takes about half the time of a softmax program.
    """

    def __init__(self) -> None:
        from threeloops.inner.interpreter.repairs import values_of

        scope = _patch_lang(FunctionType((lambda: None).__code__, {"tl": tl, "core": tl.core}))
        for module in (tl, tl.core):
            scope.set_attr(module, "range", _loop)
        scope.set_attr(tl.core.tensor, "__index__", index)
        scope.set_attr(tl.core.tensor, "__repr__", lambda self: repr(values_of(self.handle)))
        scope.set_attr(tl.core.tensor, "__str__", lambda self: str(values_of(self.handle)))
        originals: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        for owner, name, original in scope._changes:
            originals.setdefault((id(owner), name), (owner, name, original))
        self.entries = [
            (owner, name, original, _direct(vars(owner)[name])) for owner, name, original in originals.values()
        ]
        scope.restore()

    def __call__(self, fn: FunctionType) -> "Replacements | _Nested":
        """Triton's _patch_lang. A device function within a launch finds them in place and leaves them there."""
        if vars(tl.core.tensor).get("__index__") is index:
            return _Nested()
        for owner, name, _, replacement in self.entries:
            setattr(owner, name, replacement)
        return self

    def restore(self) -> None:
        for owner, name, original, _ in self.entries:
            if original is interpreter._MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def _direct(replacement: Any) -> Any:
    """A replacement without the two calls, of Triton's interpreter and of its decorator, that hand on `_semantic`."""
    member = (getattr(replacement, "__kwdefaults__", None) or {}).get("member")
    implementation = getattr(member, "__wrapped__", None)
    if implementation is None:
        return replacement

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = interpreter.interpreter_semantic
        return implementation(*args, **kwargs)

    return call


def _scalar(value: Any, dtype: Any) -> Any:
    return tl.core.tensor(interpreter.TensorHandle(np.array([value], dtype=_get_np_dtype(dtype)), dtype), dtype)


def _argument(arg: Any) -> Any:
    """A launch's argument as the compiled kernel gets it: a float is a float32, a bool is one bit."""
    if isinstance(arg, bool):
        return _scalar(arg, tl.int1)
    return _scalar(arg, tl.float32) if isinstance(arg, float) else _implicit_cvt(arg)


def _loop(first: Any, second: Any = None, step: Any = 1, **_: Any) -> Iterator[Any]:
    """Stand for `range` and `tl.range` in a kernel. The index is a tensor as wide as the widest bound, at least int32.

    Refuses loops that behave differently when compiled: a compiled loop counts upwards unless its step is a negative
    constant, and it compares unsigned bounds as signed numbers.
    """
    if isinstance(step, tl.core.tensor) and (step.handle.data <= 0).any():
        raise ValueError(f"range with a step of {step}: a step that is not a constant must be at least 1")
    for each in (first, second):
        if (
            isinstance(each, tl.core.tensor)
            and (each.handle.data > np.iinfo(f"i{each.handle.data.itemsize}").max).any()
        ):
            raise ValueError(f"range with a bound of {each}: a loop compares {each.dtype} as a signed integer")
    bounds = [each.value if isinstance(each, tl.constexpr) else each for each in (first, second, step)]
    bounds = [0, bounds[0], bounds[2]] if second is None else bounds
    semantic, dtype = interpreter.interpreter_semantic, tl.int32
    for each in bounds:
        dtype = semantic.integer_promote_impl(dtype, semantic.to_tensor(each).dtype)
    return (_scalar(each, dtype) for each in range(*bounds))


def _assigned(value: Any) -> Any:
    """Make a number, or each number of a tuple, the tensor that a compiled kernel's variable holds."""
    if isinstance(value, tl.core.tensor):
        return value
    if type(value) in (tuple, list):
        return type(value)(map(_assigned, value))
    return interpreter.interpreter_semantic.to_tensor(value, False)


def _logical(is_and: bool, *values: Callable[[], Any]) -> Any:
    """Compute `x and y and …` or `x or y or …`.

    As when compiled, a number decides or does not count, all tensors are computed, and together they make a boolean.
    """
    tensors: list[Any] = []
    value = None
    for each in values:
        value = each()
        if isinstance(value, tl.core.tensor):
            tensors.append(value)
        elif bool(value) is not is_and:
            return value
    if not tensors:
        return value
    combine = tl.core.tensor.logical_and if is_and else tl.core.tensor.logical_or
    return functools.reduce(lambda right, left: combine(left, right), reversed(tensors))


def _negated(value: Any) -> Any:
    """Compute `not value`, which is a tensor for a tensor."""
    return value.__not__() if isinstance(value, tl.core.tensor) else not value


def _chosen(condition: Any, first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    """Compute `first if condition else second`. If the condition is a tensor, so is the result."""
    chosen = first() if condition else second()
    return _assigned(chosen) if isinstance(condition, tl.core.tensor) else chosen


def _called(function: Callable[..., Any], *values: Any) -> Any:
    """Call `min` or `max`, which are functions of `tl` in a compiled kernel."""
    replacement = {min: tl.minimum, max: tl.maximum}.get(function)
    is_of_tensors = any(isinstance(each, tl.core.tensor) for each in values)
    return functools.reduce(replacement, values) if replacement and is_of_tensors else function(*values)


def _returned(value: Any) -> Any:
    """Return one of several results of a function. Refuses numbers: when compiled, they may become tensors or not."""
    for each in value if type(value) in (tuple, list) else (value,):
        if type(each) in (bool, int, float):
            raise ValueError(
                f"return {value}, in a function with several returns: assign the number to a variable, and return that"
            )
    return value


class _Transformer(ast.NodeTransformer):
    """Rewrite a kernel to behave as if compiled: numbers become tensors where they do then (if assigned, as the index
    of a loop, chosen by a tensor), a loop's index has no value after the loop, and `and` and `or` return booleans."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        returns = [each for each in ast.walk(node) if isinstance(each, ast.Return) and each.value is not None]
        for each in returns if len(returns) > 1 else ():
            assert each.value is not None
            each.value = _call("threeloops_returned", each.value)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return _call("threeloops_negated", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        arguments = [node.test, _later(node.body), _later(node.orelse)]
        return ast.copy_location(ast.Call(ast.Name("threeloops_chosen", ast.Load()), arguments, []), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ("min", "max") and not node.keywords:
            called = ast.Call(ast.Name("threeloops_called", ast.Load()), [node.func, *node.args], [])
            return ast.copy_location(called, node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        if len(node.targets) > 1:
            raise ValueError("Multiple assignments are not supported")
        self.generic_visit(node)
        node.value = _call("threeloops_assigned", node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """`x += y` is `x = x + y`, with Python numbers as well."""
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        read = ast.Name(node.target.id, ast.Load())
        value = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
        return ast.copy_location(ast.Assign([node.target], _call("threeloops_assigned", value)), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        self.generic_visit(node)
        if node.value is not None and "constexpr" not in ast.unparse(node.annotation):
            node.value = _call("threeloops_assigned", node.value)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        values = [_later(each) for each in node.values]
        arguments = [ast.Constant(isinstance(node.op, ast.And)), *values]
        return ast.copy_location(ast.Call(ast.Name("threeloops_logical", ast.Load()), arguments, []), node)

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        called = node.iter.func if isinstance(node.iter, ast.Call) else None
        unrolled = called is not None and ast.unparse(called).split(".")[-1] == "static_range"
        if isinstance(called, ast.Name) and called.id == "range":
            called.id = "threeloops_range"
        self.generic_visit(node)
        if unrolled or not isinstance(node.target, ast.Name):
            return [node]
        name = node.target.id  # assigned first, because `del` fails if the loop made no steps
        made = ast.Assign([ast.Name(name, ast.Store())], ast.Constant(0))
        forgotten: list[ast.stmt] = [made, ast.Delete([ast.Name(name, ast.Del())])]
        return [node, *(ast.copy_location(each, node) for each in forgotten)]


def _call(name: str, value: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), [value], []), value)


def _later(value: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)


class _Nested:
    def restore(self) -> None:
        """The launch restores them."""


def index(self: Any) -> int:
    """A tensor as a loop bound. triton 3.6 converts an array of one element, which numpy 2.4 no longer allows."""
    number_made()
    return int(self.handle.data.squeeze())


def number_made() -> None:
    """Called whenever an interpreted kernel turns a tensor into a Python number; the meter replaces it."""


_one_launch = threading.RLock()
"""Held by the launch that runs: the interpreter keeps the program's index, and replaces `tl`, for the whole process."""


def _call_grid(self: Any, *args: Any, **kwargs: Any) -> None:
    """A launch. Masked lanes compute inf − inf and 0 / 0 as on a GPU, where nobody warns."""
    with _one_launch, np.errstate(all="ignore"):
        _run_grid(self, *args, **kwargs)


def _first_of_all(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
    """Interpreted times say nothing about a GPU, so no configuration runs, and the first is chosen."""
    if self._do_bench is None:
        return [0.0, 0.0, 0.0]
    return _tritons_bench(self, *args, config=config, **meta)


def interpret_library() -> None:
    """Interpret the functions of `tl` that are written in Triton, if importing `triton` decorated them for compilation
    before TRITON_INTERPRET was set. Other kernels decorated before stay compiled."""
    names = [name for name in sys.modules if name == "triton.language" or name.startswith("triton.language.")]
    owners = [sys.modules[name] for name in names] + [tl.core.tensor]
    interpreted: dict[Any, Any] = {}
    for owner in owners:
        for name, value in list(vars(owner).items()):
            if isinstance(value, JITFunction):
                if value.fn not in interpreted:
                    interpreted[value.fn] = interpreter.InterpretedFunction(value.fn)
                function = interpreted[value.fn]
                setattr(owner, name, _method(function) if owner is tl.core.tensor else function)


def _method(function: Any) -> Any:
    """`x.sum(1)` as `tl.sum(x, 1)`."""
    return lambda self, *args, **kwargs: function(self, *args, **kwargs)


class _NumpyTypes(dict[str, np.dtype]):
    """Triton's _get_np_dtype, which builds its table at every call, with a cache."""

    def __call__(self, dtype: Any) -> np.dtype:
        if isinstance(dtype, tl.block_type):
            dtype = dtype.element_ty
        return self[dtype.name] if type(dtype) is tl.dtype else _get_np_dtype(dtype)

    def __missing__(self, name: str) -> np.dtype:
        self[name] = _get_np_dtype(tl.dtype(name))
        return self[name]


def install() -> None:
    builder = interpreter.interpreter_builder
    # The overflow check of integers takes a third of the time, and the assertion that uses it is off.
    builder.options = replace(builder.options, sanitize_overflow=False)
    interpreter._get_np_dtype = _NumpyTypes()
    interpreter._patch_lang = Replacements()
    interpreter._implicit_cvt = _argument
    interpreter.FunctionRewriter.ast_transformer = _Transformer()
    # Triton gives a rewritten kernel the names of its own module.
    interpreter.threeloops_range, interpreter.threeloops_assigned = _loop, _assigned
    interpreter.threeloops_logical, interpreter.threeloops_negated = _logical, _negated
    interpreter.threeloops_chosen, interpreter.threeloops_called = _chosen, _called
    interpreter.threeloops_returned = _returned
    interpreter.GridExecutor.__call__ = _call_grid
    Autotuner._bench = _first_of_all
