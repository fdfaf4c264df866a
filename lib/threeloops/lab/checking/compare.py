"""Compare two pieces of plain data and report where they differ, for `check.close` and `check.equal`."""

import math
from dataclasses import dataclass

import numpy as np

from threeloops.lab.text.numeric import Numbers, Worst, numbers, worst
from threeloops.lab.text.plain import (
    MAPPINGS,
    SEQUENCES,
    SETS,
    class_name,
    field,
    foreign,
    is_array,
    is_enum,
    is_tensor,
    record_fields,
)
from threeloops.lab.text.wording import article, describe, number, number_pair, with_unit

__all__ = ["Mismatch", "Tolerance", "compare"]


@dataclass(frozen=True)
class Tolerance:
    """`exact` also requires the same kinds of container and number; `rtol` None means 1e-6, and 0 between integers."""

    rtol: float | None = None
    atol: float = 0.0
    exact: bool = False

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol)):
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} = {value!r}: expected a finite tolerance ≥ 0")

    def relative(self, integers: bool) -> float:
        if self.exact:
            return 0.0
        return self.rtol if self.rtol is not None else 0.0 if integers else 1e-6


@dataclass(frozen=True)
class Mismatch:
    """A difference. `where` names the part (`['loss'][3]`, empty for the whole), and `difference` is empty if the
    two cannot be subtracted."""

    where: str
    got: str
    expected: str
    difference: str = ""
    spread: str = ""
    kind: bool = False  # not a wrong value: another kind of value


def compare(actual: object, expected: object, tolerance: Tolerance, unit: str = "", where: str = "") -> Mismatch | None:
    """The first part in which `actual` departs from `expected`, or None.

    Raises TypeError if `expected` is not plain data: then the check is wrong, not the answer.
    """
    if (name := foreign(expected)) is not None:
        raise TypeError(f"expected holds {article(name)}: a check compares plain data only")
    if (name := foreign(actual)) is not None:
        whole = class_name(actual)
        got = f"got {article(name)}" if name == whole else f"got {article(whole)} that holds {article(name)}"
        return Mismatch(where, got, "plain data (numbers, text, lists, dicts, arrays, tensors, records)")
    return _compare(actual, expected, tolerance, unit, where)


def _compare(actual, expected, tolerance: Tolerance, unit: str, where: str) -> Mismatch | None:
    # A name out of an array of names is text.
    actual, expected = (str(value) if type(value) is np.str_ else value for value in (actual, expected))
    kind = type(expected)
    by_element = tolerance.exact and kind in SEQUENCES and type(actual) in SEQUENCES
    if not by_element and (wanted := numbers(expected)) is not None:
        return _compare_numbers(actual, expected, wanted, tolerance, unit, where)
    if kind in SEQUENCES:
        return _compare_sequences(actual, expected, tolerance, unit, where)
    if kind in MAPPINGS:
        return _compare_mappings(actual, expected, tolerance, unit, where)
    if kind in SETS:
        return _compare_sets(actual, expected, where)
    if is_enum(expected):
        same = is_enum(actual) and actual.name == expected.name and type(actual).__qualname__ == kind.__qualname__
        return None if same else Mismatch(where, describe(actual), describe(expected))
    if (names := record_fields(expected)) is not None:
        if type(actual).__qualname__ != kind.__qualname__ or record_fields(actual) != names:
            return Mismatch(where, describe(actual), article(kind.__name__), kind=True)
        pairs = ((f"{where}.{name}", field(actual, name), field(expected, name)) for name in names)
        return _first(pairs, tolerance, unit)
    if is_array(expected) or is_tensor(expected):
        return _compare_other_arrays(actual, expected, where)
    if type(actual) is kind and actual == expected:
        return None
    return Mismatch(where, *_texts(actual, expected))


def _first(pairs, tolerance: Tolerance, unit: str) -> Mismatch | None:
    return next((m for where, a, e in pairs if (m := _compare(a, e, tolerance, unit, where))), None)


def _compare_numbers(actual, expected, wanted: Numbers, tolerance: Tolerance, unit: str, where: str):
    got = numbers(actual)
    if got is None:
        noun = "" if wanted.shape else f"the {wanted.kind} "
        return Mismatch(where, describe(actual), noun + describe(expected))
    if got.shape != wanted.shape:
        return Mismatch(where, _shape(got, actual), _shape(wanted, expected))
    if not got.array.size:
        return None
    if not _kinds_agree(got.kind, wanted.kind, tolerance.exact):
        return Mismatch(
            where,
            f"{article(got.kind)}, {describe(actual)}",
            f"{article(wanted.kind)}, {describe(expected)}",
            kind=True,
        )
    integers = got.kind == wanted.kind == "int"
    worst_element = worst(got, wanted, tolerance.relative(integers), tolerance.atol)
    if worst_element is None:
        return None
    value, target = number_pair(worst_element.value, worst_element.expected)
    spread = (
        f"{worst_element.outside:,} of {worst_element.total:,} elements are off; this is the worst"
        if worst_element.total > 1
        else ""
    )
    at = where + _index(worst_element.index, nested=type(actual) in SEQUENCES)
    return Mismatch(at, with_unit(value, unit), with_unit(target, unit), _difference(worst_element, unit), spread)


def _index(index: tuple[int, ...], nested: bool) -> str:
    if nested:
        return "".join(f"[{i}]" for i in index)
    return f"[{', '.join(map(str, index))}]" if index else ""


def _shape(got: Numbers, value) -> str:
    if type(value) in SEQUENCES and len(got.shape) == 1:
        return _elements(value)
    return f"shape {got.shape}" if got.shape else f"a single number, {describe(value)}"


def _elements(value) -> str:
    return f"{len(value):,} element{'s' * (len(value) != 1)}: {describe(value)}"


def _kinds_agree(got: str, wanted: str, exact: bool) -> bool:
    """A bool is never a number; a complex number never stands for a real one; exactly, a float never for an int."""
    if "bool" in (got, wanted):
        return got == wanted
    if got == "complex":
        return wanted == "complex"
    return not (exact and wanted == "int" and got == "float")


def _difference(worst_element: Worst, unit: str) -> str:
    value = worst_element.value
    expected = worst_element.expected
    if isinstance(value, bool):
        return ""
    if isinstance(value, complex) or isinstance(expected, complex):
        return with_unit(number(abs(value - expected)), unit)
    if any(isinstance(n, float) and not math.isfinite(n) for n in (value, expected)):
        return ""
    difference = value - expected
    text = with_unit(("+" if difference > 0 else "−") + number(abs(difference)), unit)
    if 1e-300 < abs(expected) < 1e300 and abs(difference) < 1e6 * abs(expected):
        text += f" ({100 * difference / abs(expected):+.3g} %)".replace("(-", "(−")
    return text + (f"; allowed: {with_unit(number(worst_element.allowed, 3), unit)}" if worst_element.allowed else "")


def _compare_sequences(actual, expected, tolerance: Tolerance, unit: str, where: str) -> Mismatch | None:
    kind = type(expected)
    tensors = (is_array(actual) or is_tensor(actual)) and actual.ndim > 0
    if type(actual) is not kind and (tolerance.exact or not (tensors or type(actual) in SEQUENCES)):
        return Mismatch(where, f"{article(type(actual).__name__)}, {describe(actual)}", article(kind.__name__))
    if len(actual) != len(expected):
        return Mismatch(where, _elements(actual), _elements(expected))
    pairs = enumerate(zip(actual, expected, strict=True))
    return _first(((f"{where}[{i}]", a, e) for i, (a, e) in pairs), tolerance, unit)


def _compare_mappings(actual, expected, tolerance: Tolerance, unit: str, where: str) -> Mismatch | None:
    if type(actual) not in MAPPINGS:
        return Mismatch(where, describe(actual), f"a dict with the keys {describe(list(expected))}")
    wrong = _missing_and_extra([k for k in expected if k not in actual], [k for k in actual if k not in expected])
    if wrong:
        return Mismatch(where, f"a dict {wrong}", f"the keys {describe(list(expected))}")
    return _first(((f"{where}[{describe(k)}]", actual[k], expected[k]) for k in expected), tolerance, unit)


def _compare_sets(actual, expected, where: str) -> Mismatch | None:
    if type(actual) not in SETS:
        return Mismatch(where, describe(actual), f"a set, {describe(expected)}")
    wrong = _missing_and_extra(list(expected - actual), list(actual - expected))
    return Mismatch(where, f"a set {wrong}", describe(expected)) if wrong else None


def _missing_and_extra(missing: list, extra: list) -> str:
    parts = (("without", missing), ("with the unexpected", extra))
    return " and ".join(f"{name} {', '.join(map(describe, items))}" for name, items in parts if items)


def _compare_other_arrays(actual, expected, where: str) -> Mismatch | None:
    """Arrays that hold no numbers (text, dates): numpy's, of the same shape and elements."""
    if is_array(expected) and is_array(actual) and actual.shape == expected.shape:
        same = actual == expected
        if is_array(same) and same.dtype.kind == "b" and same.all():
            return None
    return Mismatch(where, describe(actual), describe(expected))


def _texts(actual, expected) -> tuple[str, str]:
    """Return two texts. Long texts are shown from the first difference on."""
    if type(actual) is not type(expected) or type(expected) not in (str, bytes):
        return describe(actual), describe(expected)
    pairs = enumerate(zip(actual, expected, strict=False))
    at = next((i for i, (a, e) in pairs if a != e), min(len(actual), len(expected)))
    if at < 40:
        return describe(actual), describe(expected)
    return f"…{actual[at - 20 : at + 40]!r} (they part at {at})", f"…{expected[at - 20 : at + 40]!r}"
