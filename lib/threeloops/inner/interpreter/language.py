"""What surrounds the builder in Triton's interpreter: how `tl` is replaced during a launch, what was decorated too
early, and what an autotuner does where nothing can be timed."""

import sys
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

_get_np_dtype, _patch_lang = interpreter._get_np_dtype, interpreter._patch_lang
_call, _bench = interpreter.GridExecutor.__call__, Autotuner._bench


class Replacements:
    """The interpreter's versions of what `tl`, `tl.core` and `tl.tensor` hold, found once and put in place by a launch.

    Triton searches its modules for them at every launch and at every call of a device function, of which `tl.sum` is
    one: about half the time of a softmax program.
    """

    def __init__(self) -> None:
        from threeloops.inner.interpreter.repairs import values_of

        scope = _patch_lang(FunctionType((lambda: None).__code__, {"tl": tl, "core": tl.core}))
        scope.set_attr(tl.core.tensor, "__index__", index)
        scope.set_attr(tl.core.tensor, "__repr__", lambda self: repr(values_of(self.handle)))
        scope.set_attr(tl.core.tensor, "__str__", lambda self: str(values_of(self.handle)))
        originals: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        for owner, name, original in scope._changes:
            originals.setdefault((id(owner), name), (owner, name, original))
        self.entries = [(owner, name, original, vars(owner)[name]) for owner, name, original in originals.values()]
        scope.restore()

    def __call__(self, fn: FunctionType) -> "Replacements | Nested":
        """Triton's _patch_lang. Whoever finds them in place, a device function within a launch, leaves them there."""
        if vars(tl.core.tensor).get("__index__") is index:
            return Nested()
        for owner, name, _, replacement in self.entries:
            setattr(owner, name, replacement)
        return self

    def restore(self) -> None:
        for owner, name, original, _ in self.entries:
            if original is interpreter._MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


class Nested:
    def restore(self) -> None:
        """The launch that put things in place puts them back."""


def index(self: Any) -> int:
    """A tensor as a loop bound. triton 3.6 hands numpy an array of one element, which numpy 2.4 no longer takes."""
    number_made()
    return int(self.handle.data.squeeze())


def number_made() -> None:
    """Called for every number of Python's that an interpreted kernel makes of a tensor; the meter puts its own here."""


def call_grid(self: Any, *args: Any, **kwargs: Any) -> None:
    """A launch. Masked lanes compute inf − inf and 0 / 0 as they do on a GPU, and no warning is due."""
    with np.errstate(all="ignore"):
        _call(self, *args, **kwargs)


def bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
    """The interpreter's time says nothing about a GPU's: no configuration runs, and the first is chosen."""
    if self._do_bench is None:
        return [0.0, 0.0, 0.0]
    return _bench(self, *args, config=config, **meta)


def interpret_library() -> None:
    """Make the functions of `tl` that are written in Triton interpreted ones, if `triton` was imported before
    TRITON_INTERPRET was set: it decorated them then. Kernels decorated before stay compiled ones."""
    names = [name for name in sys.modules if name == "triton.language" or name.startswith("triton.language.")]
    owners = [sys.modules[name] for name in names] + [tl.core.tensor]
    interpreted: dict[Any, Any] = {}
    for owner in owners:
        for name, value in list(vars(owner).items()):
            if isinstance(value, JITFunction):
                if value.fn not in interpreted:
                    interpreted[value.fn] = interpreter.InterpretedFunction(value.fn)
                setattr(owner, name, interpreted[value.fn])


class NumpyTypes(dict[str, np.dtype]):
    """Triton's _get_np_dtype, which builds its table anew at every call."""

    def __call__(self, dtype: Any) -> np.dtype:
        if isinstance(dtype, tl.block_type):
            dtype = dtype.element_ty
        return self[dtype.name] if type(dtype) is tl.dtype else _get_np_dtype(dtype)

    def __missing__(self, name: str) -> np.dtype:
        self[name] = _get_np_dtype(tl.dtype(name))
        return self[name]


def install() -> None:
    builder = interpreter.interpreter_builder
    # The overflow check of integers ends in an assertion that is off: a third of the time, and nobody looks.
    builder.options = replace(builder.options, sanitize_overflow=False)
    interpreter._get_np_dtype = NumpyTypes()
    interpreter._patch_lang = Replacements()
    interpreter.GridExecutor.__call__ = call_grid
    Autotuner._bench = bench
