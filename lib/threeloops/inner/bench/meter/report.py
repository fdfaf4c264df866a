"""The meter's findings as text."""

from collections.abc import Sequence
from itertools import groupby

from threeloops.inner.bench.meter.findings import amount
from threeloops.inner.bench.meter.l2 import L2
from threeloops.inner.bench.meter.traffic import LaunchTraffic, Traffic, together
from threeloops.inner.readable import readable_bytes, readable_count

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
