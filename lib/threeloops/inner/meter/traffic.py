"""The meter's results: the traffic of one launch, or of several together, and their floating-point operations.

Operations are counted per element of the tiles that a program computes, padding and masked lanes included, because
hardware computes those too. A multiply-add is 2 and everything else 1. Integer and address arithmetic, conversions,
selections, |x| and rounding are not floating-point operations. Reducing n elements to 1 is n - 1 operations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from operator import add
from typing import Any

from threeloops.inner.costs import Work
from threeloops.inner.meter.findings import Finding

__all__ = ["ArgumentTraffic", "Flops", "LaunchTraffic", "Traffic", "together"]

_KINDS = ("dot", "add", "multiply", "divide", "fma", "special", "compare", "reduce")

_ELEMENTWISE = {
    "add": ("fadd", "fsub", "fneg"),
    "multiply": ("fmul",),
    "divide": ("fdiv", "precise_divf", "frem"),
    "special": ("exp", "exp2", "log", "log2", "sqrt", "precise_sqrt", "rsqrt", "sin", "cos", "erf"),
    "compare": (
        *("minimumf", "minnumf", "maximumf", "maxnumf"),
        *(f"fcmp{order}{relation}" for order in "OU" for relation in ("LT", "GT", "LE", "GE", "EQ", "NE")),
    ),
}
"""Kind → the interpreter builder's operations on floating-point operands, without `create_`."""
_PER_ELEMENT = {"fma": ("fma", 2), "clampf": ("compare", 2)}


class Flops:
    """Counts of one launch. `wrappers` are for the builder's methods, `reducing` for reductions and scans."""

    def __init__(self) -> None:
        self.counts: dict[str, float] = dict.fromkeys(_KINDS, 0)
        self.tf32 = 0

    def wrappers(self, builder: Any) -> dict[str, Callable]:
        """Return counting replacements for `builder`'s methods, by name."""

        counted = _counted(builder.__class__)
        return {name: self._counting(getattr(builder, name), *rule) for name, rule in counted.items()}

    def _counting(self, original: Callable, kind: str, operations: Callable[..., int]) -> Callable:
        def counted(*operands: Any, **options: Any) -> Any:
            result = original(*operands, **options)
            done = operations(result, *operands)
            self.counts[kind] += done
            if operations is _dot and _in_tf32(*operands):
                self.tf32 += done
            return result

        return counted

    def reducing(self, original: Callable) -> Callable:
        """Return a replacement for `apply` of the interpreter's reductions and scans.

        Combining two elements is 1 operation or, with a combine function of the kernel's own, as many as that executes
        per element, however often the interpreter calls it.
        """

        def counted(operation: Any, operands: Any) -> Any:
            if not isinstance(operands, tuple):
                # `apply` calls itself again, with a tuple.
                return original(operation, operands)
            before = dict(self.counts)
            combine = operation.combine_fn
            probe = _Probe(self, combine)
            operation.combine_fn = combine if _is_library(combine) else probe
            try:
                result = original(operation, operands)
            finally:
                operation.combine_fn = combine
            per_combination = probe.flops / probe.elements if probe.flops else operands[0].dtype.is_floating()
            self.counts.update(before)
            self.counts["reduce"] += round(per_combination * _combinations(operation, operands[0]))
            return result

        return counted


@cache
def _counted(builder: type) -> dict[str, tuple[str, Callable[..., int]]]:
    """Return the builder's methods that compute: the kind of their operations, and how many a call does."""

    def elementwise(per_element: int) -> Callable[..., int]:
        return lambda result, *_: per_element * result.data.size

    kinds = {name: (kind, elementwise(1)) for kind, names in _ELEMENTWISE.items() for name in names}
    kinds |= {name: (kind, elementwise(per_element)) for name, (kind, per_element) in _PER_ELEMENT.items()}
    kinds |= {"dot": ("dot", _dot), "dot_scaled": ("dot", _dot_scaled)}
    kinds["extern_elementwise"] = "special", _special
    return {f"create_{name}": rule for name, rule in kinds.items() if hasattr(builder, f"create_{name}")}


def _special(result: Any, library: str, path: str, symbol: str, *_: Any) -> int:
    """Return a function of libdevice, unless it computes an integer or reads bits as another type."""
    return result.data.size * (result.dtype.is_floating() and "_as_" not in symbol)


def _dot(result: Any, a: Any, *_: Any) -> int:
    return 2 * result.data.size * a.data.shape[-1]


def _in_tf32(a: Any, b: Any, accumulator: Any, input_precision: Any, *_: Any) -> bool:
    """Return whether a GPU would round float32 operands to TF32. The interpreter multiplies them as they are."""
    from triton._C.libtriton import ir

    return a.dtype.scalar.is_fp32() and input_precision == ir.INPUT_PRECISION.TF32


def _dot_scaled(result: Any, a: Any, a_scale: Any, a_format: Any, *_: Any) -> int:
    """Count the FLOPs of a scaled product. A 4-bit operand holds two elements per byte, packed along either of its
    dimensions."""
    return 2 * result.data.shape[-1] * a.data.size * (2 if "E2M1" in str(a_format).upper() else 1)


class _Probe:
    """Stands in for a combine function and counts the elements that it combines and the operations it takes."""

    def __init__(self, counter: Flops, combine: Any) -> None:
        self.counter = counter
        self.combine = combine
        self.elements = 0
        self.flops = 0.0

    def fn(self, *operands: Any) -> Any:
        before = sum(self.counter.counts.values())
        result = self.combine.fn(*operands)
        self.flops += sum(self.counter.counts.values()) - before
        self.elements += operands[0].handle.data.size
        return result


def _is_library(combine: Any) -> bool:
    """Return whether a combine function is one of Triton's own, which the interpreter knows by identity."""
    import triton.language as tl

    return getattr(tl.standard, getattr(combine.fn, "__name__", ""), None) is combine


def _combinations(operation: Any, tile: Any) -> int:
    """Return how often a reduction or scan of a tile combines two elements."""
    shape = tile.handle.data.shape
    axis = operation.axis
    lines = 1 if axis is None else prod(shape) // shape[axis]
    return prod(shape) - lines


@dataclass(frozen=True)
class ArgumentTraffic:
    """Bytes moved through one argument. Unique: the union over a launch."""

    requested_loaded: int = 0
    requested_stored: int = 0
    unique_loaded: int = 0
    unique_stored: int = 0

    def __add__(self, other: "ArgumentTraffic") -> "ArgumentTraffic":
        return ArgumentTraffic(*map(add, vars(self).values(), vars(other).values()))


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """The counts of one launch or of several.

    Requested bytes are those that active lanes ask for. Unique bytes are their union over a launch, of loads and stores
    separately. A cache that never evicts within a launch would exchange as many with memory. `dram_bytes` are the bytes
    that the L2 model exchanges with memory, or None without a model. An atomic operation reads and writes its bytes. A
    sector is 32 bytes, a request 32 consecutive lanes of an access along its contiguous axis. `flops` are counted by
    kind (see KINDS). `tf32_flops` are the FLOPs of "dot" whose float32 operands a GPU would round to TF32, `tl.dot`'s
    default precision.

    `idle` programs wrote nothing, however much they read.

    `largest_tile` is the number of elements in the largest tile that a program loads or computes. `most_held` counts
    the elements of all tiles that one program holds at once, including pointers, masks and intermediate results that
    Python has not yet dropped. For several launches these two are maxima, not sums.
    """

    requested_loaded: int = 0
    requested_stored: int = 0
    unique_loaded: int = 0
    unique_stored: int = 0
    dram_loaded: int | None = None
    dram_stored: int | None = None
    sectors: int = 0
    requests: int = 0
    atomics: int = 0
    programs: int = 0
    idle: int = 0
    largest_tile: int = 0
    most_held: int = 0
    flops: dict[str, int | float] = field(default_factory=lambda: dict.fromkeys(_KINDS, 0))
    tf32_flops: int = 0
    arguments: dict[str, ArgumentTraffic] = field(default_factory=dict)

    @property
    def requested_bytes(self) -> int:
        return self.requested_loaded + self.requested_stored

    @property
    def unique_bytes(self) -> int:
        return self.unique_loaded + self.unique_stored

    @property
    def dram_bytes(self) -> int | None:
        if self.dram_loaded is None or self.dram_stored is None:
            return None
        return self.dram_loaded + self.dram_stored

    @property
    def sectors_per_request(self) -> float:
        """4 for a coalesced float32 access, 2 for fp16, 32 for a stride of 32 bytes and more; 0 without requests."""
        return self.sectors / self.requests if self.requests else 0.0

    @property
    def dot_flops(self) -> float:
        return self.flops["dot"]

    @property
    def total_flops(self) -> float:
        return sum(self.flops.values())

    @property
    def work(self) -> Work:
        """The traffic for a roofline, with the bytes of the L2 model if there is one, or else the unique bytes."""
        return Work(self.unique_bytes if self.dram_bytes is None else self.dram_bytes, self.total_flops)


@dataclass(frozen=True, kw_only=True)
class LaunchTraffic(Traffic):
    """One launch: the kernel's `name`, the place where it is defined, the grid, and the findings of the launch. `title`
    is the name, with the configuration of an autotuned kernel if all of them are metered."""

    name: str
    title: str = ""
    configuration: str = ""
    grid: tuple[int, int, int]
    file: str = ""
    line: int = 0
    findings: tuple[Finding, ...] = ()


_SUMMED = (
    *("requested_loaded", "requested_stored", "unique_loaded", "unique_stored"),
    *("sectors", "requests", "atomics", "programs", "idle", "tf32_flops"),
)


def together(launches: Sequence[Traffic]) -> Traffic:
    """Return the sum. Arguments of one name are added up. Unique bytes are added up too, since each launch may read
    memory again."""
    arguments: dict[str, ArgumentTraffic] = {}
    for launch in launches:
        for name, argument in launch.arguments.items():
            arguments[name] = arguments.get(name, ArgumentTraffic()) + argument
    modelled = bool(launches) and all(launch.dram_bytes is not None for launch in launches)
    summed = _SUMMED + (("dram_loaded", "dram_stored") if modelled else ())
    return Traffic(
        **{quantity: sum(getattr(launch, quantity) for launch in launches) for quantity in summed},
        largest_tile=max((launch.largest_tile for launch in launches), default=0),
        most_held=max((launch.most_held for launch in launches), default=0),
        flops={kind: sum(launch.flops[kind] for launch in launches) for kind in _KINDS},
        arguments=arguments,
    )
