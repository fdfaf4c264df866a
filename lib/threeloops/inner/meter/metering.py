"""The traffic meter, which counts the traffic and operations of Triton kernels while they run in Triton's interpreter.

    with meter("H100 SXM") as traffic:
        softmax(x)
    print(traffic.report())

It counts what the kernel's source asks for: bytes, 32-byte sectors, floating-point operations and atomics, program by
program. A GPU's traffic is modelled, and named accordingly: unique bytes are the memory traffic of a cache that never
evicts within a launch, and `dram_bytes` is the traffic of an L2 cache (`l2`).

It reports faults, with the source line, as `findings`:

- accesses outside an argument, which are masked, and outside a view (`views="strict"`)
- reads of memory that nothing has written (while metering, `torch.empty` hands out NaN)
- races between programs, and lanes of one store that write different values to one address
- uses of the lanes that a masked load without `other` leaves undefined (`undefined_lanes=True`). These lanes hold NaN
  or an odd integer in any case, so that a kernel that relies on zeros fails.
- false hints to the compiler (`tl.multiple_of` and the like), and integer arithmetic that the compiler assumes never
  happens: a division by zero, a shift by all bits or more, a conversion in which no number fits
- `tl.device_assert` that fails; the kernel goes on. A Python `assert` raises, as in the interpreter.
- outputs that accumulate while an autotuner compares configurations (`configs="all"`)
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby, starmap
from typing import Any, Literal, get_args

import numpy as np

from threeloops.inner.launches import Configurations, Launch, checked, observe
from threeloops.inner.meter.counting import Table, traffic_of
from threeloops.inner.meter.faults import find_faults
from threeloops.inner.meter.findings import Finding, Watch, amount
from threeloops.inner.meter.hooks import recording
from threeloops.inner.meter.l2 import L2
from threeloops.inner.meter.recording import Recording
from threeloops.inner.meter.traffic import LaunchTraffic, Traffic, together
from threeloops.units import readable_bytes, readable_count

__all__ = ["Metered", "meter"]

_Views = Literal["storage", "strict"]

_HEADER = (
    *("kernel", "launches", "programs", "requested", "unique", "DRAM, modelled"),
    *("sectors/request", "FLOPs", "of them dot", "atomics"),
)
_ARGUMENTS_HEADER = ("argument", "loaded", "unique", "stored", "unique")
_EXPLANATION = """\
requested: bytes that the lanes ask for. unique: those bytes counted once per launch, the DRAM traffic of a cache that
never evicts. DRAM, modelled: what the L2 model below exchanges with memory. A sector is 32 bytes, a request 32 lanes:
4 sectors are a coalesced float32 access, 2 a 16-bit one."""


@dataclass
class Metered:
    """The result of `meter()`: one LaunchTraffic per launch, in the order in which they end."""

    l2: L2 | None = None
    launches: list[LaunchTraffic] = field(default_factory=list)
    arguments_only: bool = False
    views: _Views = "storage"
    undefined_lanes: bool = False
    configs: Configurations = "chosen"

    @property
    def total(self) -> Traffic:
        return together(self.launches)

    @property
    def findings(self) -> list[Finding]:
        return [finding for launch in self.launches for finding in launch.findings]

    def report(self) -> str:
        """Return the text to print: tables of kernels and their arguments, the L2 model, findings."""
        if not self.launches:
            return "no launch was metered"
        by_kernel: dict[str, list[LaunchTraffic]] = {}
        for launch in self.launches:
            by_kernel.setdefault(launch.title, []).append(launch)
        kernels = [(name, len(launches), together(launches)) for name, launches in by_kernel.items()]
        totals = [("total", len(self.launches), self.total)] if len(kernels) > 1 else []
        arguments = []
        for kernel, _, traffic in kernels:
            for name, argument in traffic.arguments.items():
                moved = (
                    argument.requested_loaded,
                    argument.unique_loaded,
                    argument.requested_stored,
                    argument.unique_stored,
                )
                arguments.append((f"{kernel}: {name}", *map(readable_bytes, moved)))
        lines = [
            *_table(_HEADER, starmap(_kernel_row, kernels + totals)),
            "",
            *_table(_ARGUMENTS_HEADER, arguments),
            "",
        ]
        model = self.l2 or 'none; meter(l2="H100 SXM") adds one'
        lines += [_EXPLANATION, f"L2 model: {model}", ""]
        lines.append(f"{amount(len(self.findings), 'finding')}:" if self.findings else "findings: none")
        for message, same in groupby(self.findings, str):
            repeated = len(list(same))
            lines.append(f"  {message}" + (f" [{repeated} launches]" if repeated > 1 else ""))
        return "\n".join(lines)


@contextmanager
def meter(
    l2: L2 | str | None = None,
    *,
    arguments_only: bool = False,
    views: _Views = "storage",
    undefined_lanes: bool = False,
    configs: Configurations = "chosen",
) -> Iterator[Metered]:
    """Count the kernel launches inside the block. Meters may be nested; each counts.

    `l2` is a cache model, or the name of a device in the hardware table whose L2 size is used. Without one,
    `dram_bytes` is None. With `arguments_only`, a pointer that a kernel loads from memory is out of bounds unless it
    points into an argument. Otherwise it is followed unchecked, for kernels that take a table of pointers.

    `views` says how much memory a kernel that gets a view, such as `pool[:10]` or `x[:, ::2]`, may access. With
    "storage" it may access all of the view's storage, because a GPU allows it and correct kernels do it. For example,
    they step from one row of `x` to the next, or read the left neighbour of `x[1:]`. With "strict" every access to an
    element that the view itself does not address is reported. It is executed all the same, so results do not depend on
    `views`.

    `undefined_lanes` follows the lanes that a masked load without `other` leaves undefined, and reports every store,
    atomic, address and branch that depends on one. It is off by default, because a kernel with such lanes in all its
    programs then takes about a fifth longer.

    With `configs="all"` an autotuned kernel is run and metered once for every configuration that its autotuner does not
    prune, each from the same memory. The autotuner's own choice comes last, and its results stay. Each launch then has
    a `configuration`, and an argument that comes out differently because the autotuner has run the kernel on it before,
    as with an atomic addition without `reset_to_zero`, is reported as an accumulation.

    Raises LookupError for an unknown device, ValueError for another value of `views` or `configs`, and RuntimeError at
    a launch that is not interpreted.
    """
    if views not in get_args(_Views):
        raise ValueError(f'views = {views!r}: expected "storage" or "strict"')
    model = L2.of(l2) if isinstance(l2, str) else l2
    metered = Metered(model, arguments_only=arguments_only, views=views, undefined_lanes=undefined_lanes)
    metered.configs = checked(configs)
    with ExitStack() as stack:
        if not _observer.meters:
            # One recording per launch serves all meters.
            watch = _observer.watch = Watch()
            stack.enter_context(watch)
            stack.enter_context(observe(_observer, _observer.every_configuration))
        _observer.meters.append(metered)
        try:
            yield metered
        finally:
            # By identity, since two meters that counted the same are equal.
            _observer.meters = [other for other in _observer.meters if other is not metered]


class _Observer:
    """Records a launch and hands its traffic to every meter that is on."""

    def __init__(self) -> None:
        self.meters: list[Metered] = []
        self.watch = Watch()
        self._stack = ExitStack()
        self._recording: Recording | None = None
        self._flags: dict[int, np.ndarray] | None = None

    def every_configuration(self) -> bool:
        return any(metered.configs == "all" for metered in self.meters)

    def before(self, launch: Launch, arguments: dict[str, Any]) -> None:
        _require_interpreter(launch)
        self._recording = self._stack.enter_context(recording(self.watch))
        self._recording.arguments_only = any(metered.arguments_only for metered in self.meters)
        self._recording.strict_views = any(metered.views == "strict" for metered in self.meters)
        if any(metered.undefined_lanes for metered in self.meters):
            self._recording.follow_undefined_lanes()
        self._flags = None if launch.chosen else self.watch.flags()
        self.watch.pause()

    def after(self, launch: Launch) -> None:
        self._stack.close()
        recorded = self._recording
        self._recording = None
        if recorded is not None and not launch.rehearsal:
            table = Table(recorded)
            find_faults(recorded, table, launch.accumulates)
            for metered in self.meters:
                if launch.chosen or metered.configs == "all":
                    metered.launches.append(traffic_of(launch, recorded, table, metered.l2))
        if self._flags is not None:
            # The memory is put back too.
            self.watch.put_back(self._flags)
        self.watch.resume()


_observer = _Observer()


def _require_interpreter(launch: Launch) -> None:
    from triton.runtime.jit import JITFunction

    if isinstance(launch.kernel, JITFunction):
        raise RuntimeError(
            f"{launch.name} is compiled, and the meter counts what Triton's interpreter executes. Import "
            "threeloops.inner.meter above the kernel; on a machine with a GPU, start Python with THREELOOPS_DEVICE=cpu "
            "as well. Or leave this launch outside meter()"
        )


def _kernel_row(name: str, launches: int, traffic: Traffic) -> tuple[str, ...]:
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


def _table(header: tuple[str, ...], body: Iterable[tuple[str, ...]]) -> list[str]:
    """Return lines of text, with the first column flush left and the others flush right."""
    rows = [header, *body]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        right = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *right]))
    return [lines[0], "─" * len(lines[0]), *lines[1:]]
