"""Triton kernels on a CPU: Triton's own interpreter, switched on where there is no GPU and made right for what this
course computes in it.

`enable_without_gpu` comes before kernels are decorated; importing `threeloops.inner.kernels` does it. What it repairs,
in triton 3.6 to 3.8, so that a kernel gives what it would give compiled for sm_90:

- bfloat16 and fp8 (e4m3, e5m2) everywhere: Triton's interpreter computes on their bit patterns. Every operation rounds
  once, to nearest even, `fma` included. Conversions to fp8 saturate, infinities too, as `cvt.rn.satfinite` does; torch
  agrees for e4m3, and makes infinity of what e5m2 cannot hold. NaN stays NaN, its payload is not kept. `tl.exp` and its
  like take float32 and float64 only, compiled or not.
- `tl.sum` of float16 and bfloat16 rounds at every addition: the compiler emits `add.bf16`. Convert to float32 first.
  Maxima, minima and `tl.cumsum` of bfloat16 are promoted to float32 by Triton itself.
- `tl.dot` of 16 and 8 bit operands accumulates in float32. float32 operands are multiplied exactly, not as TF32: a
  GPU's default is coarser. `tl.dot_scaled` exists.
- Reductions and scans with a combine function of one's own run on whole tensors, as a tree; so does `tl.erf`. A launch
  replaces the language once: a program of a row softmax takes a fifth of the Python calls.
- Atomic addition of bfloat16; descriptors that pad with NaN; tensors as loop bounds (triton 3.6 with numpy 2.4);
  `tl.minimum` and `tl.maximum` prefer the number to the NaN; printed bfloat16 are numbers.
- No warnings for inf − inf in masked lanes; @triton.autotune without a clock takes its first configuration.

Programs run one after another, and one launch at a time: the interpreter keeps the program's place in one global
object, so it belongs to one thread. Not repaired: fp8e4b15 and AMD's fp8, inline assembly, libdevice calls, races.
"""

import os
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING

from threeloops.hardware import device

if TYPE_CHECKING:
    from threeloops.inner.interpreter.self_test import Preflight

__all__ = ["enable_without_gpu", "interpreted", "preflight"]

TRUE = ("1", "true", "yes", "on", "y")
"""What Triton takes for true in an environment variable."""

REPAIRS = (
    ("its library", "language", "interpret_library"),
    ("arithmetic", "repairs", "install"),
    ("tl.dot", "dots", "install"),
    ("reductions", "reductions", "install"),
    ("launches", "language", "install"),
)
"""What is repaired, in which file of this folder, and by which function."""

_repairs: dict[str, str] = {}
"""Name of a repair → why it failed; empty where it did not."""


def enable_without_gpu() -> bool:
    """Interpret Triton kernels where there is no GPU; returns whether kernels decorated from now on are interpreted.

    Where `threeloops.hardware.device()` is "cpu", or TRITON_INTERPRET is set by hand, this sets it and repairs the
    interpreter; on a GPU it changes nothing. Kernels decorated before stay what they were. Cheap, and may be repeated.
    """
    if not interpreted():
        # The process that compiles sets this, on a machine whose GPU may be hidden from it: asked first, because
        # device() raises where a GPU is wanted and none is seen.
        if os.environ.get("THREELOOPS_COMPILE_ONLY") or device() != "cpu":
            return False
        os.environ["TRITON_INTERPRET"] = "1"
    if not _repairs:
        repair()
    return True


def interpreted() -> bool:
    """Whether kernels decorated now are interpreted. Does not import Triton, whose own kernels would be decorated."""
    knobs = sys.modules.get("triton.knobs")
    if knobs is not None:
        return bool(knobs.runtime.interpret)
    return os.environ.get("TRITON_INTERPRET", "").strip().lower() in TRUE


def preflight() -> "Preflight":
    """Try every repair on real kernels: `.ok`, and `.report()` with what to install where one is wrong.

    Less than a second. On a GPU there is nothing to try, and all is well.
    """
    from threeloops.inner.interpreter import self_test as interpreter_preflight

    enabled = enable_without_gpu()
    return interpreter_preflight.run({name: why for name, why in _repairs.items() if why}, interpreted=enabled)


def repair() -> None:
    """Install every repair once. One that an unknown release of Triton has no place for is skipped, with a warning."""
    for name, module, function in REPAIRS:
        _repairs[name] = ""
        try:
            getattr(import_module(f"threeloops.inner.interpreter.{module}"), function)()
        except (ImportError, AttributeError, KeyError, TypeError) as error:
            _repairs[name] = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"Triton's interpreter: {name} could not be repaired ({_repairs[name]}); threeloops.inner.interpreter."
                "preflight() says what is wrong now and what to install",
                RuntimeWarning,
                stacklevel=3,
            )
