"""Repairs around the builder of Triton's interpreter: the conversion of arguments, the replacement of `tl` during a
launch, library functions that were decorated too early, and autotuners, because nothing can be timed.
"""

import inspect
import sys
import threading
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction, KernelParam

from threeloops.inner.interpreter.rewriting import Transformer
from threeloops.inner.interpreter.statements import NAMES, loop, scalar

__all__ = ["index", "install", "interpret_library", "number_made"]

_get_np_dtype = interpreter._get_np_dtype
_patch_lang = interpreter._patch_lang
_run_grid = interpreter.GridExecutor.__call__
_tritons_bench = Autotuner._bench
_implicit_cvt = interpreter._implicit_cvt
_rewrite_kernel = interpreter.InterpretedFunction.rewrite


class _Replacements:
    """The interpreter's versions of the contents of `tl`, `tl.core` and `tl.tensor`, found once and installed by each
    launch.

    Triton searches its modules for them at every launch and every call of a device function such as `tl.sum`, which
    takes about half the time of a softmax program.
    """

    def __init__(self) -> None:
        from threeloops.inner.interpreter.repairs import values_of

        scope = _patch_lang(FunctionType((lambda: None).__code__, {"tl": tl, "core": tl.core}))
        for module in (tl, tl.core):
            scope.set_attr(module, "range", loop)
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

    def __call__(self, fn: FunctionType) -> "_Replacements | _Nested":
        """Replace Triton's _patch_lang. A device function within a launch finds the replacements in place and leaves
        them there."""
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
    """Return a replacement without the two calls, of Triton's interpreter and of its decorator, that hand on
    `_semantic`."""
    member = (getattr(replacement, "__kwdefaults__", None) or {}).get("member")
    implementation = getattr(member, "__wrapped__", None)
    if implementation is None:
        return replacement

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = interpreter.interpreter_semantic
        return implementation(*args, **kwargs)

    return call


def _argument(arg: Any) -> Any:
    """Return a launch's argument as the compiled kernel gets it: a float is a float32, a bool is one bit."""
    if isinstance(arg, bool):
        return scalar(arg, tl.int1)
    return scalar(arg, tl.float32) if isinstance(arg, float) else _implicit_cvt(arg)


class _Nested:
    def restore(self) -> None:
        """Do nothing, because the launch restores them."""


def index(self: Any) -> int:
    """Return a tensor as a loop bound. triton 3.6 converts an array of one element, which numpy 2.4 no longer
    allows."""
    number_made()
    return int(self.handle.data.squeeze())


def number_made() -> None:
    """Do nothing. It is called whenever an interpreted kernel turns a tensor into a Python number, and the meter
    replaces it."""


_one_launch = threading.RLock()
"""Held by the launch that runs: the interpreter keeps the program's index, and replaces `tl`, for the whole process."""


def _call_grid(self: Any, *args: Any, **kwargs: Any) -> None:
    """Launch a kernel. Masked lanes compute inf − inf and 0 / 0 without a warning, as on a GPU. An integer argument
    that is 1 becomes a constant."""
    names = self.arg_names
    defaults = self.fn.__defaults__ or ()
    given = dict(zip(reversed(names), reversed(defaults), strict=False)) | dict(zip(names, args, strict=False)) | kwargs
    ones = [name for name in self.fn.specialized if type(given.get(name)) is int and given[name] == 1]
    self.constexprs = [*self.constexprs, *ones]
    with _one_launch, np.errstate(all="ignore"):
        _run_grid(self, *args, **kwargs)


def _rewrite(self: Any) -> FunctionType:
    """Return a kernel's function, rewritten. `specialized` are the parameters that a compiled kernel takes for
    constants if they are 1."""
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
    """Choose the first configuration. None runs, because interpreted times say nothing about a GPU."""
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
    """Make `x.sum(1)` call `tl.sum(x, 1)`."""
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


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def _leave_tensors_to_themselves() -> None:
    """Let `constant * tensor` be the tensor's operation, as in the compiler. The constant's own would wrap the result
    in another constant."""
    for name in (*_BINARY, *_COMPARISONS):
        setattr(tl.constexpr, f"__{name}__", _for_constants(getattr(tl.constexpr, f"__{name}__")))


def _for_constants(operation: Any) -> Any:
    def apply(self: Any, other: Any) -> Any:
        return NotImplemented if isinstance(other, tl.tensor) else operation(self, other)

    return apply


def install() -> None:
    _leave_tensors_to_themselves()
    builder = interpreter.interpreter_builder
    # The overflow check of integers takes a third of the time, and the assertion that uses it is off.
    builder.options = replace(builder.options, sanitize_overflow=False)
    interpreter._get_np_dtype = _NumpyTypes()
    interpreter._patch_lang = _Replacements()
    interpreter._implicit_cvt = _argument
    interpreter.FunctionRewriter.ast_transformer = Transformer()
    # Triton gives a rewritten kernel the names of its own module.
    vars(interpreter).update(NAMES)
    interpreter.GridExecutor.__call__ = _call_grid
    interpreter.InterpretedFunction.rewrite = _rewrite
    Autotuner._bench = _first_of_all
