"""Repairs around the builder of Triton's interpreter: numbers that are tensors when compiled, how `tl` is replaced
during a launch, library functions that were decorated too early, and autotuners where nothing can be timed."""

import ast
import inspect
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
from triton.runtime.jit import JITFunction, KernelParam

from threeloops.inner.interpreter.stack import kernel_line

__all__ = ["Replacements", "index", "install", "interpret_library", "number_made"]

_get_np_dtype, _patch_lang = interpreter._get_np_dtype, interpreter._patch_lang
_run_grid, _tritons_bench = interpreter.GridExecutor.__call__, Autotuner._bench
_implicit_cvt, _rewrite_kernel = interpreter._implicit_cvt, interpreter.InterpretedFunction.rewrite


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


def _logical(is_and: bool, left: Any, right: Callable[[], Any]) -> Any:
    """Compute `left and right` or `left or right`.

    As when compiled, a scalar tensor on the left makes the result a boolean, and the right side is always computed.
    """
    if not isinstance(left, tl.core.tensor) or left.handle.data.size != 1:
        return (left and right()) if is_and else (left or right())
    truths = [bool(left), bool(right())]
    return _scalar(all(truths) if is_and else any(truths), tl.int1)


class _Transformer(ast.NodeTransformer):
    """Rewrite a kernel to behave as if compiled: assigned numbers and loop indices are tensors, `and` and `or` return
    booleans, and a loop keeps the types of variables, and leaves its index and what a step adds without a value."""

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        if len(node.targets) > 1:
            raise ValueError("Multiple assignments are not supported")
        node.value = _call("threeloops_assigned", node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """`x += y` is `x = x + y`, with Python numbers as well."""
        if not isinstance(node.target, ast.Name):
            return node
        read = ast.Name(node.target.id, ast.Load())
        value = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
        return ast.copy_location(ast.Assign([node.target], _call("threeloops_assigned", value)), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        if node.value is not None and "constexpr" not in ast.unparse(node.annotation):
            node.value = _call("threeloops_assigned", node.value)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        result, nothing = node.values[-1], ast.arguments([], [], None, [], [], None, [])
        for value in reversed(node.values[:-1]):
            arguments = [ast.Constant(isinstance(node.op, ast.And)), value, ast.Lambda(nothing, result)]
            result = ast.Call(ast.Name("threeloops_logical", ast.Load()), arguments, [])
        return ast.copy_location(result, node)

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        called = node.iter.func if isinstance(node.iter, ast.Call) else None
        iterator = "" if called is None else ast.unparse(called).split(".")[-1]
        if isinstance(called, ast.Name) and called.id == "range":
            called.id = "threeloops_range"
        statements = self._keeping_types(node) if iterator == "range" else [self._inside(node)]
        if iterator != "static_range" and isinstance(node.target, ast.Name):
            statements += _statements(_FORGET.format(name=node.target.id), node)
        return statements

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        return self._keeping_types(node)

    def _keeping_types(self, node: ast.For | ast.While) -> list[ast.stmt]:
        """A compiled loop carries the variables that have a value before it, and each keeps its type. What a step
        assigns besides has no value after the step."""
        names, types = _names_assigned(node.body), f"threeloops_types_{node.lineno}"
        self._inside(node)
        for name in names:
            node.body += _statements(_KEEP.format(name=name, types=types), node)
        before = [statement for name in names for statement in _statements(_NOTE.format(name=name, types=types), node)]
        return [*_statements(f"{types} = {{}}", node), *before, node]

    def _inside(self, node: ast.For | ast.While) -> ast.stmt:
        self.generic_visit(node)
        return node


_FORGET = "{name} = 0\ndel {name}"
"""Assigned first, because `del` fails if the loop made no steps."""
_NOTE = "try: {types}['{name}'] = threeloops_type_of({name})\nexcept threeloops_no_value: pass"
_KEEP = "if '{name}' in {types}: threeloops_kept('{name}', {types}['{name}'], {name})\nelse:\n {name} = 0\n del {name}"


def _statements(code: str, place: ast.stmt) -> list[ast.stmt]:
    statements = ast.parse(code).body
    for node in [node for statement in statements for node in ast.walk(statement)]:
        ast.copy_location(node, place)
    return statements


def _names_assigned(body: list[ast.stmt]) -> list[str]:
    """Variables that these statements assign, the constants and indices of loops among them left out."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    indices = {
        target.id
        for node in nodes
        if isinstance(node, ast.For)
        for target in ast.walk(node.target)
        if isinstance(target, ast.Name)
    }
    constants = {
        ast.unparse(node.target)
        for node in nodes
        if isinstance(node, ast.AnnAssign) and "constexpr" in ast.unparse(node.annotation)
    }
    assigned = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return sorted(assigned - indices - constants)


def _type_of(value: Any) -> Any:
    return value.type if isinstance(value, tl.core.tensor) else type(value)


def _kept(name: str, before: Any, value: Any) -> None:
    """Refuse a variable that a step of a loop leaves with another type than it had before the loop."""
    after = _type_of(value)
    if after != before:
        raise TypeError(
            f"{name} is {_words(before)} before the loop at {kernel_line()} and {_words(after)} after a step: a "
            "compiled loop keeps the type of every variable. Begin with the type that the loop computes, or convert "
            "the result"
        )


def _words(type_: Any) -> str:
    if not isinstance(type_, tl.dtype):
        return "a constant (an integer argument of 1 is one)" if type_ is int else "a constant"
    return f"{type_.scalar} of shape {[int(size) for size in type_.shape]}" if type_.is_block() else str(type_)


def _call(name: str, value: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), [value], []), value)


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
    """A launch. Masked lanes compute inf − inf and 0 / 0 as on a GPU, where nobody warns. An integer argument that is 1
    becomes a constant."""
    names, defaults = self.arg_names, self.fn.__defaults__ or ()
    given = dict(zip(reversed(names), reversed(defaults), strict=False)) | dict(zip(names, args, strict=False)) | kwargs
    ones = [name for name in self.fn.specialized if type(given.get(name)) is int and given[name] == 1]
    self.constexprs = [*self.constexprs, *ones]
    with _one_launch, np.errstate(all="ignore"):
        _run_grid(self, *args, **kwargs)


def _rewrite(self: Any) -> FunctionType:
    """A kernel's function, rewritten. `specialized`: the parameters that a compiled kernel takes for constants at 1."""
    function = _rewrite_kernel(self)
    if "specialized" not in vars(self):
        excluded = self.kwargs.get("do_not_specialize") or ()
        self.specialized = [
            name
            for place, (name, parameter) in enumerate(inspect.signature(self.fn).parameters.items())
            if not {name, place} & {*excluded} and not KernelParam(place, parameter, False, False).annotation_type
        ]
    function.specialized = self.specialized  # the function may be that of several kernels
    return function


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
    interpreter.threeloops_logical = _logical
    interpreter.threeloops_type_of, interpreter.threeloops_kept = _type_of, _kept
    interpreter.threeloops_no_value = NameError
    interpreter.GridExecutor.__call__, interpreter.InterpretedFunction.rewrite = _call_grid, _rewrite
    Autotuner._bench = _first_of_all
