"""Checks that the labs with Triton kernels share. They look at a run of `replay`, at its code, or at one call.

The module also makes the inputs of these checks, because all of these labs use the same ones.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from threeloops.lab.checking.check import check

__all__ = [
    "alike", "name_of", "require_compiled", "require_nothing", "require_separate", "require_sound", "seeded",
    "slip_of", "unwritten",
]  # fmt: skip


def seeded(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return normally distributed values, the same in every run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype for a message, such as float32."""
    return str(dtype).removeprefix("torch.")


def alike(got: Any, expected: torch.Tensor, tolerance: float = 1e-4) -> bool:
    """Return whether an answer has the values of a known slip, each within an absolute tolerance."""
    if not (torch.is_tensor(got) and got.shape == expected.shape):
        return False
    return torch.allclose(got.double(), expected.double(), 0, tolerance)


def slip_of(got: Any, slips: Mapping[str, Any], tolerance: float = 1e-4) -> str:
    """Return the cause whose values an answer has, or "" if it has none of them.

    `slips` gives the values of known slips as nested lists of numbers, worked out beforehand. So a visible test names a
    slip and contains no formula.
    """
    return next((cause for cause, values in slips.items() if alike(got, torch.tensor(values), tolerance)), "")


def unwritten(run: Any, got: Any) -> str:
    """Explain NaN in a result that should have none. Return "" if it has none.

    The bytes that the programs wrote tell two causes apart: elements that no program wrote, and NaN that was computed.
    """
    if not (torch.is_tensor(got) and got.is_floating_point() and got.isnan().any()):
        return ""
    if run.stored < got.nbytes:
        return f"memory that no program wrote holds NaN here: the programs wrote {run.stored:,} of {got.nbytes:,} bytes"
    return (
        "every element is written, so NaN was computed: −inf − (−inf), 0 · inf and inf / inf do, "
        "and so does a sum over masked lanes that were loaded without `other`"
    )


def require_separate(run: Any, case: str = "") -> None:
    """Check that no launch writes into an input, so that all inputs keep their values.

    The values of the run have to be right first.
    """
    check.equal(
        run.overwritten,
        [],
        what="arguments that overwrite an input" + (f", {case}" if case else ""),
        hint="the inputs keep their values: allocate the result with torch.empty or torch.empty_like",
    )


def require_sound(run: Any, case: str = "") -> None:
    """Check that no program read memory that nothing had written. `case` names the inputs in the message."""
    check.equal(
        [finding.message for finding in run.findings],
        [],
        what="reads of memory that nothing has written" + (f", {case}" if case else ""),
        hint="allocate with torch.empty, and write each element before it is read",
    )


def require_nothing(call: Callable[[], Any], shape: tuple[int, ...], what: str) -> None:
    """Check that a call returns a tensor of this shape, which has no elements, and that no kernel touches memory.

    Under the meter, a kernel that reads or writes outside of a tensor cannot end this notebook's process.
    """
    from threeloops.inner.meter import meter

    with meter() as traffic:
        result = call()
    check.shape(result, shape, what=what)
    check.equal(
        [finding.message for finding in traffic.findings],
        [],
        what=f"accesses outside of tensors for {what}",
        hint="there is nothing to launch: return before, or give a grid of 0 programs",
    )


def require_compiled(run: Any) -> None:
    """Check that every kernel of a run compiles for an H100 and fits, because the interpreter accepts more."""
    for code in run.code("sm_90"):
        check.true(code.fits, f"{code.name}, compiled for an H100, does not fit: {', '.join(code.misfits)}")
