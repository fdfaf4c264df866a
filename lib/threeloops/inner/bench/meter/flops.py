"""Floating-point operations that the interpreter executes, by kind.

Counted are elements of tiles as the program computes them: padding and masked lanes too, since hardware computes
them. A multiply-add is 2, everything else 1. Integer and address arithmetic, conversions, selections, |x| and
rounding are not floating-point operations. A reduction of n elements to 1 is n − 1, whatever it combines with.
"""

from collections.abc import Callable
from math import prod
from typing import Any

KINDS = ("dot", "add", "multiply", "divide", "fma", "special", "compare", "reduce")

ELEMENTWISE = {
    "add": ("fadd", "fsub", "fneg"),
    "multiply": ("fmul",),
    "divide": ("fdiv", "precise_divf", "frem"),
    "special": ("exp", "exp2", "log", "log2", "sqrt", "precise_sqrt", "rsqrt", "sin", "cos", "erf"),
    "compare": (
        *("minimumf", "minnumf", "maximumf", "maxnumf"),
        *(f"fcmp{order}{relation}" for order in "OU" for relation in ("LT", "GT", "LE", "GE", "EQ", "NE")),
    ),
}
"""Kind → operations of the interpreter's builder on floating-point operands, without `create_`."""
PER_ELEMENT = {"fma": ("fma", 2), "clampf": ("compare", 2)}


class Flops:
    """Counts of one launch. `wrappers` are for the builder's methods, `reducing` for reductions and scans."""

    def __init__(self) -> None:
        self.counts: dict[str, float] = dict.fromkeys(KINDS, 0)

    def wrappers(self, builder: Any) -> dict[str, Callable]:
        """Counting replacements for `builder`'s methods, by name."""
        kinds = {name: (kind, 1) for kind, names in ELEMENTWISE.items() for name in names} | PER_ELEMENT
        found = {f"create_{name}": each for name, each in kinds.items() if hasattr(builder, f"create_{name}")}
        wrapped = {name: self._elementwise(getattr(builder, name), *each) for name, each in found.items()}
        wrapped["create_dot"] = self._dot(builder.create_dot)
        if hasattr(builder, "create_dot_scaled"):
            wrapped["create_dot_scaled"] = self._dot_scaled(builder.create_dot_scaled)
        return wrapped

    def _elementwise(self, original: Callable, kind: str, each: int) -> Callable:
        def counted(*operands: Any, **options: Any) -> Any:
            result = original(*operands, **options)
            self.counts[kind] += each * result.data.size
            return result

        return counted

    def _dot(self, original: Callable) -> Callable:
        def counted(a: Any, *rest: Any, **options: Any) -> Any:
            result = original(a, *rest, **options)
            self.counts["dot"] += 2 * result.data.size * a.data.shape[-1]
            return result

        return counted

    def _dot_scaled(self, original: Callable) -> Callable:
        """A 4-bit operand holds two elements a byte, packed along either of its dimensions."""

        def counted(a: Any, a_scale: Any, a_format: Any, *rest: Any, **options: Any) -> Any:
            result = original(a, a_scale, a_format, *rest, **options)
            elements = a.data.size * (2 if "E2M1" in str(a_format).upper() else 1)
            self.counts["dot"] += 2 * result.data.shape[-1] * elements
            return result

        return counted

    def reducing(self, original: Callable) -> Callable:
        """A replacement for `apply` of the interpreter's reductions and scans.

        Combining is 1 a time; with a combine function of the kernel's own, what that executes for one element. How
        often the interpreter calls it to get there does not matter.
        """

        def counted(operation: Any, operands: Any) -> Any:
            if not isinstance(operands, tuple):
                # It calls itself again, with a tuple.
                return original(operation, operands)
            before, combine = dict(self.counts), operation.combine_fn
            probe = Probe(self, combine)
            operation.combine_fn = combine if is_library(combine) else probe
            try:
                result = original(operation, operands)
            finally:
                operation.combine_fn = combine
            each = probe.flops / probe.elements if probe.flops else operands[0].dtype.is_floating()
            self.counts.update(before)
            self.counts["reduce"] += round(each * combinations(operation, operands[0]))
            return result

        return counted


class Probe:
    """Stands in for a combine function and counts the elements that it combines and the operations it takes."""

    def __init__(self, flops: Flops, combine: Any) -> None:
        self.counter, self.combine, self.elements = flops, combine, 0
        self.flops = 0.0

    def fn(self, *operands: Any) -> Any:
        before = sum(self.counter.counts.values())
        result = self.combine.fn(*operands)
        self.flops += sum(self.counter.counts.values()) - before
        self.elements += operands[0].handle.data.size
        return result


def is_library(combine: Any) -> bool:
    """Whether a combine function is one of Triton's own, which the interpreter knows by identity."""
    import triton.language as tl

    return getattr(tl.standard, getattr(combine.fn, "__name__", ""), None) is combine


def combinations(operation: Any, tile: Any) -> int:
    """How often a reduction or scan of a tile combines two elements."""
    shape, axis = tile.handle.data.shape, operation.axis
    lines = 1 if axis is None else prod(shape) // shape[axis]
    return prod(shape) - lines
