"""Find code that a compiled kernel executes differently from the interpreter: false hints and undefined arithmetic.

The compiler believes `tl.multiple_of`, `max_contiguous` and `max_constancy`, and loads several elements at once from
the address of the first. It also assumes that no integer is divided by zero, that no shift is as wide as its operand,
and that a number fits the integer type that it becomes. It may drop whatever depends on such an operation. The
interpreter ignores hints, and computes some value for the operation.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

__all__ = ["Compiled"]

_Kind = Literal["false-hint", "undefined-arithmetic"]
_HINTS = {"tt.divisibility": "multiple_of", "tt.contiguity": "max_contiguous", "tt.constancy": "max_constancy"}
"""The attribute that a hint sets → its name in `tl`."""
_ADVICE: dict[_Kind, str] = {
    "false-hint": "the compiler relies on it: leave it out, or correct it",
    "undefined-arithmetic": "the compiler assumes that this never happens, and may leave out whatever depends on it",
}
_BINS_ADVICE = "leave it out with the mask of tl.histogram"


class Compiled:
    """Checks hints and operations during one launch. `report(kind, first, advice, unit, amount)` adds a fault."""

    def __init__(self, report: Callable[[_Kind, str, str, str, int], None]) -> None:
        self._report = report

    def hint(self, handle: Any, attribute: str, values: Sequence[int]) -> None:
        """Report the elements of a tile for which a hint is false. This replaces the handle's `set_attr`."""
        step = handle.get_element_ty().primitive_bitwidth // 8 if handle.dtype.scalar.is_ptr() else 1
        axes = (np.moveaxis(np.atleast_1d(handle.data), axis, -1) for axis in range(len(values)))
        wrong = max(_against(attribute, value, data, step) for value, data in zip(values, axes, strict=True))
        message = f"tl.{_HINTS[attribute]} with {', '.join(map(str, values))} is not true of a tile"
        self._report_any("false-hint", message, "element", wrong)

    def wrappers(self, builder: Any) -> dict[str, Callable]:
        """Return replacements for the builder's methods, by name, that report undefined results."""
        names = {
            **dict.fromkeys(("create_sdiv", "create_udiv", "create_srem", "create_urem"), _undefined_quotients),
            **dict.fromkeys(("create_shl", "create_lshr", "create_ashr"), _undefined_shifts),
            **dict.fromkeys(("create_fp_to_si", "create_fp_to_ui"), _undefined_conversions),
        }
        looking = {name: self._looking(getattr(builder, name), undefined) for name, undefined in names.items()}
        return {**looking, "create_histogram": self._counting_in_bins(builder.create_histogram)}

    def _counting_in_bins(self, original: Callable) -> Callable:
        def counted(numbers: Any, bins: int, mask: Any) -> Any:
            outside = (numbers.data < 0) | (numbers.data >= bins)
            if mask is not None:
                outside &= mask.data.astype(bool, copy=False)
            message = f"tl.histogram of {bins} bins counts a number outside 0 … {bins - 1}, whose bin is unspecified"
            self._report_any("undefined-arithmetic", message, "lane", int(np.count_nonzero(outside)), _BINS_ADVICE)
            return original(numbers, bins, mask)

        return counted

    def _looking(self, original: Callable, undefined: Callable[[Any, Any], tuple[np.ndarray, str]]) -> Callable:
        def looked(operand: Any, other: Any) -> Any:
            lanes, what = undefined(operand, other)
            if lanes.any():
                for masked in (getattr(handle, "undefined", None) for handle in (operand, other)):
                    lanes = lanes & ~masked.lanes if masked else lanes  # harmless unless the kernel uses them
                self._report_any("undefined-arithmetic", what, "lane", int(np.count_nonzero(lanes)))
            return original(operand, other)

        return looked

    def _report_any(self, kind: _Kind, first: str, unit: str, amount: int, advice: str = "") -> None:
        if amount:
            self._report(kind, first, advice or _ADVICE[kind], unit, amount)


def _against(attribute: str, value: int, data: np.ndarray, step: int) -> int:
    """Count the elements that contradict a hint for the last axis. Neighbours differ by `step`, in bytes for pointers.

    In a run of consecutive elements, only the first has to be a multiple, because the compiler reads the hint that way.
    A row may break if each break leads from the same element back to the same element, because kernels wrap offsets
    around at the end of a matrix. It may also end with equal elements, because kernels replace such offsets with 0.
    """
    differences = np.diff(data.astype(np.int64), axis=-1)
    if attribute == "tt.divisibility":
        begins = np.ones(data.shape, bool)
        begins[..., 1:] = differences != step
        return int(np.count_nonzero(begins & (data % data.dtype.type(value) != 0)))
    within = np.arange(1, data.shape[-1]) % value != 0
    if attribute == "tt.constancy":
        return int(np.count_nonzero(within & (differences != 0)))
    same_to_the_end = np.logical_and.accumulate((differences == 0)[..., ::-1], axis=-1)[..., ::-1]
    breaks = within & (differences != step) & ~same_to_the_end
    if not breaks.any():
        return 0
    first = breaks.argmax(axis=-1, keepdims=True)
    alike = [side == np.take_along_axis(side, first, axis=-1) for side in (data[..., :-1], data[..., 1:])]
    wraps = (~breaks | alike[0] & alike[1]).all(axis=-1, keepdims=True)
    return int(np.count_nonzero(breaks & ~wraps))


def _undefined_quotients(dividend: Any, divisor: Any) -> tuple[np.ndarray, str]:
    """Find lanes that divide by zero, or that divide the lowest number by −1: this quotient does not fit."""
    zero = divisor.data == 0
    if zero.any() or divisor.data.dtype.kind != "i":
        return zero, "an integer is divided by zero"
    overflow = (divisor.data == -1) & (dividend.data == np.iinfo(dividend.data.dtype).min)
    return overflow, "the lowest integer is divided by −1"


def _undefined_shifts(value: Any, amount: Any) -> tuple[np.ndarray, str]:
    bits = 8 * value.data.dtype.itemsize
    wide = (amount.data < 0) | (amount.data >= bits)
    return wide, f"an integer of {bits} bits is shifted by fewer than 0 or at least {bits}"


def _undefined_conversions(value: Any, dtype: Any) -> tuple[np.ndarray, str]:
    """Find lanes whose number does not fit into the integer type. A GPU rounds it to the nearest fit, but the compiler
    may leave out code that depends on it. Lanes that a masked load left undefined are not reported."""
    from threeloops.inner.interpreter.repairs import values_of

    whole = np.trunc(values_of(value).astype(np.float64, copy=False))  # in float32, −2³¹ − 1 is −2³¹, which fits
    bits = dtype.scalar.primitive_bitwidth
    signed = dtype.scalar.is_int_signed()
    low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if signed else (0.0, 2.0**bits)
    wrong = ~((whole >= low) & (whole < high))
    undefined = getattr(value, "undefined", None)
    if undefined is not None:
        wrong &= ~undefined.lanes
    return wrong, f"a number does not fit into the {dtype.scalar} that it becomes"
