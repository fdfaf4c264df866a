"""The traffic meter: what Triton kernels move and compute, counted while they run in Triton's interpreter.

    with meter("H100 SXM") as traffic:
        softmax(x)
    print(traffic.report())

What is counted is what the kernel's source asks for: bytes, 32-byte sectors, floating-point operations, atomics,
program by program. What a GPU would make of it is modelled, and said so: unique bytes are the memory traffic of a
cache that never evicts within a launch, `dram_bytes` those of an L2 (`bench.meter.l2`). Accesses outside an argument
are masked and reported; so are reads of memory that nothing has written (`bench.meter.uninitialised`: while metering,
`torch.empty` hands out NaN) and races between programs (`bench.meter.races`). Masked lanes of a load without `other`,
which Triton leaves undefined, hold NaN or an odd integer.

The meter's findings as text.

The picture: what each kernel requests, what of it is unique, what reaches memory, and what it must cost.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from math import ceil, log2
from typing import TYPE_CHECKING, Any

from threeloops.inner.costs import Work
from threeloops.inner.launches import Launch, observe
from threeloops.inner.meter.analysis import count, find_races, rows
from threeloops.inner.meter.findings import Finding, Watch, amount
from threeloops.inner.meter.hooks import recording
from threeloops.inner.meter.l2 import L2, model
from threeloops.inner.meter.recording import Recording
from threeloops.inner.meter.traffic import ArgumentTraffic, LaunchTraffic, Traffic, together
from threeloops.palette import palette
from threeloops.units import readable_bytes, readable_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes


__all__ = ["L2", "ArgumentTraffic", "Finding", "LaunchTraffic", "Metered", "Traffic", "meter"]


@dataclass
class Metered:
    """What `meter()` yields: one LaunchTraffic for every launch, as they end."""

    l2: L2 | None = None
    launches: list[LaunchTraffic] = field(default_factory=list)
    arguments_only: bool = False

    @property
    def total(self) -> Traffic:
        return together(self.launches)

    @property
    def findings(self) -> list[Finding]:
        return [finding for launch in self.launches for finding in launch.findings]

    def report(self) -> str:
        """A table to print: kernels, arguments, the L2 model, findings."""
        return report(self.launches, self.l2)

    def plot(self, ax: "Axes | None" = None, *, cost: Work | Mapping[str, Work] | None = None) -> "Axes":
        """Bars of requested, unique and modelled DRAM bytes for each kernel; a line at the bytes of `cost`, the least
        that must move: one for all, or one a kernel by name.
        """
        return draw(self.launches, ax, cost)


@contextmanager
def meter(l2: L2 | str | None = None, *, arguments_only: bool = False) -> Iterator[Metered]:
    """Count the kernel launches inside the block. Meters may be nested: each counts.

    `l2`: a cache model, or the name of a device of the hardware table to take its size from; without one `dram_bytes`
    is None. `arguments_only`: pointers that a kernel loads from memory lead out of bounds unless they lead into an
    argument; else they are followed unchecked, as a table of pointers wants it. Raises LookupError for an unknown
    device, and RuntimeError at a launch that is not interpreted.
    """
    metered = Metered(L2.of(l2) if isinstance(l2, str) else l2, arguments_only=arguments_only)
    with ExitStack() as stack:
        if not _observer.meters:
            # One recording a launch serves all meters.
            watch = _observer.watch = Watch()
            stack.enter_context(watch)
            stack.enter_context(observe(_observer))
        _observer.meters.append(metered)
        try:
            yield metered
        finally:
            # By identity: two meters that counted the same are equal.
            _observer.meters = [each for each in _observer.meters if each is not metered]


class Observer:
    """Records a launch and hands its traffic to every meter that is on."""

    def __init__(self) -> None:
        self.meters: list[Metered] = []
        self.watch = Watch()
        self._stack = ExitStack()
        self._recording: Recording | None = None

    def before(self, launch: Launch, arguments: dict[str, Any]) -> None:
        require_interpreter(launch)
        self._recording = self._stack.enter_context(recording(self.watch))
        self._recording.arguments_only = any(metered.arguments_only for metered in self.meters)
        self.watch.paused = True

    def after(self, launch: Launch) -> None:
        self._stack.close()
        recorded, self._recording = self._recording, None
        if recorded is not None:
            table = rows(recorded)
            find_races(recorded, table)
            for metered in self.meters:
                metered.launches.append(traffic_of(launch, recorded, table, metered.l2))
        self.watch.paused = False


_observer = Observer()


def require_interpreter(launch: Launch) -> None:
    from triton.runtime.jit import JITFunction

    if isinstance(launch.kernel, JITFunction):
        raise RuntimeError(
            f"{launch.name} is compiled: the meter counts what Triton's interpreter executes. Set "
            "THREELOOPS_DEVICE=cpu before Python starts (or TRITON_INTERPRET=1 before the kernel is decorated), or "
            "leave the launch outside meter()"
        )


def traffic_of(launch: Launch, recorded: Recording, table: Any, l2: L2 | None) -> LaunchTraffic:
    counts = count(recorded, table)
    loaded, stored = model(recorded, table, l2) if l2 else (None, None)
    return LaunchTraffic(
        name=launch.name,
        grid=recorded.grid,
        file=launch.file,
        line=launch.line,
        findings=recorded.incidents.findings(launch.name, recorded.grid, list(recorded.sites)),
        requested_loaded=sum(each.requested_loaded for each in counts.arguments.values()),
        requested_stored=sum(each.requested_stored for each in counts.arguments.values()),
        unique_loaded=counts.unique_loaded,
        unique_stored=counts.unique_stored,
        dram_loaded=loaded,
        dram_stored=stored,
        sectors=counts.sectors,
        requests=counts.requests,
        atomics=counts.atomics,
        programs=recorded.program + 1,
        largest_tile=recorded.tiles.largest,
        most_held=recorded.tiles.most_held,
        flops=dict(recorded.flops.counts),
        arguments=counts.arguments,
    )


HEADER = (
    *("kernel", "launches", "programs", "requested", "unique", "DRAM, modelled"),
    *("sectors/request", "FLOPs", "of them dot", "atomics"),
)
EXPLANATION = """\
requested: bytes that the lanes ask for. unique: those bytes counted once a launch, the DRAM traffic of a cache that
never evicts. DRAM, modelled: what the L2 model below exchanges with memory. A sector is 32 bytes, a request 32 lanes:
4 sectors are a coalesced float32 access, 2 a 16-bit one."""


def report(launches: Sequence[LaunchTraffic], l2: L2 | None) -> str:
    """A table of kernels (launches of one kernel in a row together), their arguments, the model, and the findings."""
    if not launches:
        return "no launch was metered"
    kernels = {name: together(each) for name, each in by_kernel(launches).items()}
    times = {name: len(each) for name, each in by_kernel(launches).items()}
    rows = [kernel_row(name, times[name], traffic) for name, traffic in kernels.items()]
    if len(kernels) > 1:
        rows.append(kernel_row("total", len(launches), together(launches)))
    lines = [*table(HEADER, rows), ""]
    lines += [*table(("argument", "loaded", "unique", "stored", "unique"), argument_rows(kernels)), ""]
    lines += [EXPLANATION, f"L2 model: {l2}" if l2 else 'L2 model: none; meter(l2="H100 SXM") adds one', ""]
    findings = [finding for launch in launches for finding in launch.findings]
    if not findings:
        return "\n".join([*lines, "findings: none"])
    lines.append(amount(len(findings), "finding") + ":")
    for message, same in groupby(findings, str):
        repeated = len(list(same))
        lines.append(f"  {message}" + (f" [{repeated} launches]" if repeated > 1 else ""))
    return "\n".join(lines)


def by_kernel(launches: Sequence[LaunchTraffic]) -> dict[str, list[LaunchTraffic]]:
    kernels: dict[str, list[LaunchTraffic]] = {}
    for launch in launches:
        kernels.setdefault(launch.name, []).append(launch)
    return kernels


def kernel_row(name: str, launches: int, traffic: Traffic) -> tuple[str, ...]:
    return (
        name,
        f"{launches:,}",
        f"{traffic.programs:,}",
        readable_bytes(traffic.requested_bytes),
        readable_bytes(traffic.unique_bytes),
        "—" if traffic.dram_bytes is None else readable_bytes(traffic.dram_bytes),
        f"{traffic.sectors_per_request:.2f}",
        readable_count(traffic.total_flops),
        readable_count(traffic.dot_flops),
        f"{traffic.atomics:,}",
    )


def argument_rows(kernels: dict[str, Traffic]) -> list[tuple[str, ...]]:
    return [
        (
            f"{kernel}: {name}",
            readable_bytes(each.requested_loaded),
            readable_bytes(each.unique_loaded),
            readable_bytes(each.requested_stored),
            readable_bytes(each.unique_stored),
        )
        for kernel, traffic in kernels.items()
        for name, each in traffic.arguments.items()
    ]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of text: the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in (header, *rows)
    ]
    return [lines[0], "─" * len(lines[0]), *lines[1:]]


COLOURS = {"requested": palette.sky, "unique": palette.blue, "DRAM, modelled": palette.green}
COST = palette.vermillion


def draw(launches: Sequence[LaunchTraffic], ax: "Axes | None", cost: Work | Mapping[str, Work] | None) -> "Axes":
    """See `Metered.plot`."""
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(figsize=(7.5, 1.6 + 0.8 * max(len(by_kernel(launches)), 1)), layout="constrained").subplots()
    kernels = {name: together(each) for name, each in by_kernel(launches).items()}
    series: dict[str, list[int | None]] = {
        "requested": [each.requested_bytes for each in kernels.values()],
        "unique": [each.unique_bytes for each in kernels.values()],
        "DRAM, modelled": [each.dram_bytes for each in kernels.values()],
    }
    shown = {name: bars for name, bars in series.items() if None not in bars}
    height = 0.8 / len(shown)
    costs = [] if cost is None else [cost] if isinstance(cost, Work) else list(cost.values())
    longest = max([*(value or 0 for bars in shown.values() for value in bars), *(each.bytes for each in costs), 1])
    handles: list = []
    for place, (name, bars) in enumerate(shown.items()):
        rows = [row + (place - (len(shown) - 1) / 2) * height for row in range(len(kernels))]
        widths = [value or 0 for value in bars]
        drawn = ax.barh(rows, widths, height * 0.92, color=COLOURS[name], label=name)
        handles.append(drawn)
        ax.bar_label(drawn, [readable_bytes(width) for width in widths], padding=3, fontsize=9)
    style: dict[str, Any] = {"color": COST, "linestyle": "--", "linewidth": 1.5}
    if isinstance(cost, Work):
        handles.append(ax.axvline(cost.bytes, label=f"cost: {readable_bytes(cost.bytes)}", **style))
    elif cost:
        rows = [row for row, name in enumerate(kernels) if name in cost]
        places = [cost[name].bytes for name in kernels if name in cost]
        ends = ([row - 0.45 for row in rows], [row + 0.45 for row in rows])
        handles.append(ax.vlines(places, *ends, label="cost", **style))
    ax.set_yticks(range(len(kernels)), list(kernels))
    ax.invert_yaxis()
    ax.set_xlim(0, longest * 1.18)
    ax.set_xticks([tick * tick_step(longest) for tick in range(8) if tick * tick_step(longest) < longest * 1.18])
    ax.xaxis.set_major_formatter(lambda value, _: readable_bytes(value))
    ax.set_xlabel("bytes")
    ax.grid(axis="x", color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=9)
    return ax


def tick_step(longest: float) -> int:
    """A power of two that divides the axis into 4 to 7 parts."""
    return 2 ** max(ceil(log2(longest * 1.18 / 7)), 0)
