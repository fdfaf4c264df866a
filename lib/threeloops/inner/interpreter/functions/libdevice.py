"""The functions of `triton.language.extra.libdevice`, such as tanh and rsqrt, for the interpreter.

Triton's own table for NVIDIA's libdevice says which types a function takes and what it returns. The values are computed
in float64 and rounded once to the type of the result. So a float32 result is within 0.5 ulp of the true one (plus a
float64 error), and differs from a GPU's by no more than libdevice's own error, which is mostly 1 or 2 ulp: the CUDA C++
Programming Guide lists it for each function ("Mathematical Functions"). On a GPU the `fast_` forms are less accurate.
Here they are computed like the other functions. float64 results are NumPy's or torch's, and `fma` of float64 rounds
twice.

A function without an entry here is refused by name. The inspector compiles all functions.
"""

import functools
import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import torch
from triton.language.extra import libdevice as stubs
from triton.language.extra.cuda import libdevice as nvidia
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder

from threeloops.inner.interpreter.formats import multiply_add
from threeloops.inner.interpreter.repairs import stored, values_of
from threeloops.inner.interpreter.stack import kernel_line

__all__ = ["install"]

_Array = np.ndarray


def _special(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[_Array], _Array]:
    return lambda x: function(torch.from_numpy(np.array(x))).numpy()


def _round_half_away(x: _Array) -> _Array:
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1.0, x), whole)


def _bits(x: _Array) -> _Array:
    """Return the binary digits of integers, as an axis of their own, the highest first."""
    size = 8 * x.itemsize
    return (x.astype(f"u{x.itemsize}")[..., None] >> np.arange(size - 1, -1, -1, dtype=f"u{x.itemsize}")) & 1


_FLOATS: dict[str, Callable[..., _Array]] = {
    "abs": np.abs, "fabs": np.abs, "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil,
    "copysign": np.copysign, "cos": np.cos, "cosh": np.cosh, "cospi": lambda x: np.cos(np.pi * np.fmod(x, 2)),
    "cyl_bessel_i0": _special(torch.special.i0), "cyl_bessel_i1": _special(torch.special.i1),
    "erf": _special(torch.erf), "erfc": _special(torch.erfc), "erfcx": _special(torch.special.erfcx),
    "erfinv": _special(torch.erfinv), "exp": np.exp, "exp10": lambda x: np.power(10.0, x), "exp2": np.exp2,
    "expm1": np.expm1, "fdim": lambda x, y: np.where(x > y, x - y, np.where(x <= y, 0.0, np.nan)), "floor": np.floor,
    "fmod": np.fmod, "hypot": np.hypot, "j0": _special(torch.special.bessel_j0),
    "j1": _special(torch.special.bessel_j1),
    "ldexp": lambda x, n: np.ldexp(x, n.astype(np.int32)), "lgamma": _special(torch.lgamma), "log": np.log,
    "log10": np.log10, "log1p": np.log1p, "log2": np.log2, "nearbyint": np.rint,
    "normcdf": _special(torch.special.ndtr), "normcdfinv": _special(torch.special.ndtri), "pow": np.power,
    "powi": np.power, "rcbrt": lambda x: 1 / np.cbrt(x), "remainder": np.vectorize(math.remainder, otypes=[float]),
    "rhypot": lambda x, y: 1 / np.hypot(x, y), "rint": np.rint, "round": _round_half_away,
    "rsqrt": lambda x: 1 / np.sqrt(x), "saturate": lambda x: np.nan_to_num(np.clip(x, 0, 1), nan=0.0),
    "scalbn": lambda x, n: np.ldexp(x, n.astype(np.int32)), "sin": np.sin, "sinh": np.sinh,
    "sinpi": lambda x: np.sin(np.pi * np.fmod(x, 2)), "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
    "trunc": np.trunc,
    "add_rn": np.add, "sub_rn": np.subtract, "mul_rn": np.multiply, "div_rn": np.divide, "sqrt_rn": np.sqrt,
    "rcp_rn": np.reciprocal, "rsqrt_rn": lambda x: 1 / np.sqrt(x), "fdivide": np.divide,
}  # fmt: skip
"""Functions on float64 arrays by name, without the prefix `__nv_` and the suffix of float32."""

_TRUTHS: dict[str, Callable[..., _Array]] = {
    "isnan": np.isnan, "isinf": np.isinf, "finite": np.isfinite, "isfinite": np.isfinite, "signbit": np.signbit,
}  # fmt: skip

_INTEGERS: dict[str, Callable[..., _Array]] = {
    "abs": np.abs, "llabs": np.abs, "popc": lambda x: _bits(x).sum(-1), "popcll": lambda x: _bits(x).sum(-1),
    "clz": lambda x: (np.cumsum(_bits(x), -1) == 0).sum(-1), "clzll": lambda x: (np.cumsum(_bits(x), -1) == 0).sum(-1),
}  # fmt: skip


def _function(symbol: str, floats: bool) -> Callable[..., _Array] | None:
    """Find the function for a symbol such as `__nv_fast_expf` or `__nv_fmul_rn`; None if there is none."""
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    if not floats:
        return _INTEGERS.get(name)
    if name[:-1] in _TRUTHS:  # isnanf, isnand
        return _TRUTHS[name[:-1]]
    short = name[1:] if name.endswith("_rn") else name.removesuffix("f")  # fmul_rn, dmul_rn, expf
    return _FLOATS.get(name) or _FLOATS.get(short)


def _create_extern_elementwise(
    self: Any, library: str, path: str, symbol: str, arguments: list[Any], result: Any, pure: bool
) -> Any:
    values = [values_of(argument) for argument in arguments]
    dtype = result.scalar
    if symbol in ("__nv_fmaf", "__nv_fmaf_rn"):
        return stored(multiply_add(*values), dtype)
    if symbol in ("__nv_fma", "__nv_fma_rn"):
        return stored(values[0] * values[1] + values[2], dtype)
    if symbol in ("__nv_llrint", "__nv_llrintf", "__nv_llround", "__nv_llroundf"):
        whole = np.rint if "rint" in symbol else _round_half_away
        return self.create_fp_to_si(stored(whole(values[0].astype(np.float64)), interpreter.tl.float64), dtype)
    if "_as_" in symbol:  # float_as_int and the like: the same bits
        return interpreter.TensorHandle(values[0].view(interpreter._get_np_dtype(dtype)), dtype)
    floats = values[0].dtype.kind == "f"
    function = _function(symbol, floats)
    if function is None:
        raise NotImplementedError(
            f"{symbol.removeprefix('__nv_')} of libdevice ({kernel_line()}) is not interpreted; "
            "threeloops.inner.codegen.inspect can compile it"
        )
    wide = [value.astype(np.float64) if value.dtype.kind == "f" else value for value in values]
    return stored(function(*wide), dtype)


def _interpreted(name: str, function: Any, stub: FunctionType) -> Any:
    @functools.wraps(stub)  # with its module and name, so that the inspector finds the original
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **{**kwargs, "_semantic": interpreter.interpreter_semantic})
        except KeyError:
            given = ", ".join(str(getattr(argument, "dtype", argument)) for argument in args)
            raise TypeError(
                f"{name} of libdevice ({kernel_line()}) does not take {given}: convert with .to(tl.float32)"
            ) from None

    return call


def install() -> None:
    InterpreterBuilder.create_extern_elementwise = _create_extern_elementwise
    for name, stub in list(vars(stubs).items()):
        if isinstance(stub, FunctionType) and stub.__module__ == stubs.__name__ and hasattr(nvidia, name):
            setattr(stubs, name, _interpreted(name, getattr(nvidia, name), stub))
