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
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from threeloops.inner.bench.meter import plot as meter_plot
from threeloops.inner.bench.meter import report as meter_report
from threeloops.inner.bench.meter.analysis import count, rows
from threeloops.inner.bench.meter.findings import Finding
from threeloops.inner.bench.meter.hooks import recording
from threeloops.inner.bench.meter.l2 import L2, model
from threeloops.inner.bench.meter.races import find_races
from threeloops.inner.bench.meter.recorder import Recording
from threeloops.inner.bench.meter.traffic import ArgumentTraffic, LaunchTraffic, Traffic, together
from threeloops.inner.bench.meter.uninitialised import Watch
from threeloops.inner.costs import Work
from threeloops.inner.launches import Launch, observe

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
        return meter_report.report(self.launches, self.l2)

    def plot(self, ax: "Axes | None" = None, *, cost: Work | Mapping[str, Work] | None = None) -> "Axes":
        """Bars of requested, unique and modelled DRAM bytes for each kernel; a line at the bytes of `cost`, the least
        that must move: one for all, or one a kernel by name.
        """
        return meter_plot.draw(self.launches, ax, cost)


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
