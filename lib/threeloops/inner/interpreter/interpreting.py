"""Switch on Triton's interpreter if there is no GPU, with repairs for this course's computations.

Call `enable_without_gpu` before kernels are decorated. Importing `threeloops.inner.kernels` calls it. In triton 3.6 to
3.8 it repairs the following, so that a kernel gives the same results as when compiled for sm_90:

- bfloat16 and fp8 (e4m3, e5m2) everywhere: Triton's interpreter computes on their bit patterns. Every operation rounds
  once, to nearest even, `fma` included. Conversions to fp8 saturate, infinities too, as `cvt.rn.satfinite` does; torch
  agrees for e4m3, but overflows e5m2 to infinity. NaN stays NaN without its payload. `tl.exp` and the like take
  float32 and float64 only, compiled or not.
- A `float` argument becomes a float32 tensor, and a `bool` becomes one bit. An `int` of 1 becomes a constant, unless
  its parameter has a type or `do_not_specialize` names it. A loop index is a tensor of at least 32 bits, and an
  assigned number is a tensor. One bit wraps around: true + true is false. A loop, or a branch on a tensor, that changes
  the type of a variable is refused, and so is syntax that does not compile.
- Floats are converted to integers as by PTX's `cvt.rzi`: a value that is too large becomes the largest integer, and NaN
  mostly becomes 0.
- The common functions of libdevice are implemented (`functions/libdevice.py`). The others are refused by name.
- `tl.sum` of float16 and bfloat16 rounds at every addition, since the compiler emits `add.bf16`: convert to float32
  first. Triton itself promotes maxima and minima of bfloat16 to float32, and, up to version 3.8, `tl.cumsum` too.
- `tl.dot` of 16 and 8 bit operands accumulates in float32. float32 operands are multiplied exactly, where a GPU's
  default is the coarser TF32. `tl.dot_scaled` is implemented.
- Reductions and scans with a custom combine function run on whole tensors, as a tree. `tl.erf` runs on whole tensors
  too. `tl` is replaced once per launch, and each shape is described once, so a row softmax takes a fifth of the Python
  calls.
- `tl.argmax` and the like prefer the number to the NaN. On a GPU the choice depends on the layout. Sums of integers
  wrap around, and `tl.histogram` counts in 32 bits.
- These also work: atomic addition of bfloat16, descriptors that pad with NaN, atomic operations of descriptors (with
  minima and maxima of 16-bit floats), and tensors as loop bounds (triton 3.6 with numpy 2.4). `tl.minimum` and
  `tl.maximum` prefer the number to the NaN, and bfloat16 values are printed as numbers.
- No warnings about inf − inf in masked lanes; @triton.autotune takes its first configuration without timing any.

Programs run one after another, and launches one at a time, whichever thread makes them, because the interpreter keeps
the program's index in a global object. A program that waits for a later one ends with an error that names its line. Not
repaired: fp8e4b15 and AMD's fp8, inline assembly, races.
"""

import os
import sys
import warnings
from functools import cache
from importlib import import_module

from threeloops.hardware import device

__all__ = ["enable_without_gpu", "interpreted"]

_TRUE = ("1", "true", "yes", "on", "y")
"""The values of an environment variable that Triton takes for true."""

_REPAIRS = (
    ("its library", "threeloops.inner.interpreter.language", "interpret_library"),
    ("arithmetic", "threeloops.inner.interpreter.repairs", "install"),
    ("tl.dot", "threeloops.inner.interpreter.functions.dots", "install"),
    ("reductions", "threeloops.inner.interpreter.functions.reductions", "install"),
    ("libdevice", "threeloops.inner.interpreter.functions.libdevice", "install"),
    ("types", "threeloops.inner.interpreter.functions.types", "install"),
    ("launches", "threeloops.inner.interpreter.language", "install"),
)
"""The repairs: the part that is repaired, the module and the function that repairs it."""


def enable_without_gpu() -> bool:
    """Interpret Triton kernels if there is no GPU. Returns whether kernels decorated from now on are interpreted.

    If `threeloops.hardware.device()` is "cpu" or TRITON_INTERPRET is set by hand, this sets it and repairs the
    interpreter; on a GPU it changes nothing. Kernels that are already decorated stay unchanged. The call is cheap and
    may be repeated.
    """
    if not interpreted():
        # The process that compiles sets this. Its GPU is hidden, and device() raises if a GPU is wanted but not seen.
        if os.environ.get("THREELOOPS_COMPILE_ONLY") or device() != "cpu":
            return False
        os.environ["TRITON_INTERPRET"] = "1"
    _repair()
    return True


def interpreted() -> bool:
    """Return whether kernels decorated now are interpreted. Does not import Triton, whose own kernels would be
    decorated."""
    knobs = sys.modules.get("triton.knobs")
    if knobs is not None:
        return bool(knobs.runtime.interpret)
    return os.environ.get("TRITON_INTERPRET", "").strip().lower() in _TRUE


@cache
def _repair() -> None:
    """Install every repair once. One that does not fit an unknown release of Triton is skipped, with a warning."""
    for name, module, function in _REPAIRS:
        try:
            getattr(import_module(module), function)()
        except (ImportError, AttributeError, KeyError, TypeError) as error:
            warnings.warn(
                f"Triton's interpreter: {name} could not be repaired ({type(error).__name__}: {error}); "
                "`threeloops doctor` says what is wrong now and what to install",
                RuntimeWarning,
                stacklevel=3,
            )
