"""Numbers and values as text for messages."""

from typing import Any

import numpy as np

from threeloops.lab.text.plain import MAPPINGS, SEQUENCES, SETS, class_name, foreign, is_array, is_tensor

__all__ = ["article", "describe", "number", "number_pair", "printed", "with_unit"]

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def article(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


def number(value: complex, digits: int = 4) -> str:
    """Write an integer in full, and any other number with `digits` significant digits, but never fewer than its digits
    before the point if it is below a million."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, complex) and 10**digits - 0.5 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:,.{digits}g}"


def number_pair(value: complex, expected: complex) -> tuple[str, str]:
    """Both numbers with as few digits as still show that they differ."""
    pairs = [(number(value, digits), number(expected, digits)) for digits in (4, 6, 9, 13, 17)]
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[-1])


def printed(value: float) -> str:
    """Write a number as a person prints it: 16896 → "16,896", 15.8732 → "15.87", 2.98e-08 → "2.98 × 10⁻⁸"."""
    size = abs(value)
    sign = "−" if value < 0 else ""
    if size and not 1e-3 <= size < 1e15:
        digits, _, exponent = f"{size:.2e}".partition("e")
        return f"{sign}{digits.rstrip('0').rstrip('.')} × 10{str(int(exponent)).translate(_SUPERSCRIPT)}"
    if size == int(size) or size >= 1000:
        return f"{sign}{size:,.0f}"
    return f"{sign}{float(f'{size:.4g}'):,.15g}"


def with_unit(text: str, unit: str) -> str:
    return f"{text} {unit}" if unit else text


def describe(value: Any, limit: int = 90) -> str:
    """A short text for a message: the value of plain data, the type name alone of anything else."""
    kind = type(value)
    if foreign(value) is not None:
        return article(class_name(value))
    if is_tensor(value) or kind in (np.ndarray, np.memmap):
        return _describe_array(value)
    words = repr(value.item() if is_array(value) else value)
    if kind not in (str, bytes):
        words = " ".join(words.split())
    if len(words) <= limit:
        return words
    size = f" ({len(value):,} items)" if kind in SEQUENCES + MAPPINGS + SETS else ""
    return words[: limit - 1] + "…" + size


def _describe_array(value) -> str:
    name = "torch.Tensor" if is_tensor(value) else "numpy array"
    form = f"a {name} of shape {tuple(value.shape)}, {value.dtype}"
    if is_tensor(value) and (value.device.type == "meta" or value.is_sparse or value.is_quantized):
        return f"{form}, {value.device.type}, {value.layout}"
    return form if value.ndim else f"{value.item()!r} ({article(name)}, {value.dtype})"
