"""A matrix product for a whole minute: the rate that a device can hold, beside the rate of a short burst.

Published kernel times come from bursts of milliseconds on a cool device. A training run holds the device at its power
limit, where it lowers its clock. Every window of the minute records its rate, and on a GPU the clock, power and
temperature that NVML reports. They are read while the next window already runs, so the device never waits for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

import torch
from threeloops_grader.machine.provenance import Device, Provenance

from benchmarks.result import Result, Series

BURST, START, END = "bursts after a pause", "first second under load", "last ten seconds under load"
BF16, FP8 = "bf16", "fp8 (e4m3), bf16 out"
SECONDS = {BF16: 60.0, FP8: 30.0}
QUICK_SECONDS = 2.0
"""The time on a CPU, for which this benchmark is not meant."""
WINDOW_SECONDS, BURST_SECONDS, PAUSE_SECONDS = 0.25, 0.02, 0.25
BURSTS = 10

Product = Callable[[], object]


@dataclass(frozen=True)
class Window:
    """`products` products that ended `end` seconds after the first one began, at `rate` FLOP/s.

    SM clock in Hz, power in watts and temperature in °C as NVML reported them just after; None without a GPU.
    """

    end: float
    products: int
    rate: float
    clock: float | None
    power: float | None
    temperature: float | None


def measure(provenance: Provenance, *, quick: bool = False) -> Result:
    """FLOP/s in bursts and over `SECONDS`, in bf16, and in FP8 if the GPU has it. `quick` matters on a CPU only."""
    device = provenance.device
    size = 8192 if device == "cuda" else 512
    series, facts = [], {}
    for dtype, product in products(device, size).items():
        what, flops = f"{size}³ matrix product, {dtype}", 2 * size**3
        seconds = QUICK_SECONDS if quick and device == "cpu" else SECONDS[dtype]
        bursts = burst_rates(product, flops, device)
        windows = sustained(product, flops, device, seconds)
        series += [
            Series(what, BURST, "FLOP/s", tuple(bursts), "higher", peer=True),
            Series(what, START, "FLOP/s", rates(windows, 0, 1), "higher"),
            Series(what, END, "FLOP/s", rates(windows, windows[-1].end - 10, math.inf), "higher"),
        ]
        facts[what] = [asdict(window) for window in windows]
    settings = {
        "quick": quick,
        "seconds": SECONDS,
        "size": size,
        "window_seconds": WINDOW_SECONDS,
        "burst_seconds": BURST_SECONDS,
        "pause_seconds": PAUSE_SECONDS,
        "inputs": "standard normal numbers",
    }
    return Result("sustained", provenance, settings, series, facts, notes=notes(series, facts))


def notes(series: list[Series], facts: dict[str, list[dict[str, float | None]]]) -> list[str]:
    """How much of the burst is left at the end, and the clock and power there."""
    said = []
    for what, windows in facts.items():
        by = {each.by: each.median for each in series if each.what == what}
        note = f"{what}: {100 * by[END] / by[BURST]:.1f}% of the burst rate is left in the last ten seconds"
        late = [each for each in windows if each["end"] >= windows[-1]["end"] - 10]
        if late[0]["clock"] is not None:
            clock, power, heat = (median(each[name] for each in late) for name in ("clock", "power", "temperature"))
            note += f", at {clock / 1e6:.0f} MHz, {power:.0f} W and {heat:.0f} °C"
        said.append(note)
    return said


def products(device: Device, size: int) -> dict[str, Product]:
    """The product of two matrices of `size` × `size`, by the name of their dtype."""
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(left)
    found: dict[str, Product] = {BF16: lambda: torch.mm(left, right, out=out)}
    if device == "cuda" and torch.cuda.get_device_capability() >= (8, 9):
        low = left.to(torch.float8_e4m3fn)
        low_right = right.to(torch.float8_e4m3fn).t().contiguous().t()  # FP8 products take a column-major right side
        one = torch.ones((), device=device)
        found[FP8] = lambda: torch._scaled_mm(low, low_right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    return found


def burst_rates(product: Product, flops: int, device: Device) -> list[float]:
    """FLOP/s of `BURSTS` bursts of `BURST_SECONDS`, each after a pause in which the device idles."""
    each = _seconds(product, 1, device)
    count = max(1, round(BURST_SECONDS / each))
    found = []
    for _ in range(BURSTS):
        time.sleep(PAUSE_SECONDS)
        found.append(count * flops / _seconds(product, count, device))
    return found


def _seconds(product: Product, count: int, device: Device) -> float:
    product()
    first = _mark(device)
    for _ in range(count):
        product()
    return _between(first, _mark(device))


def sustained(product: Product, flops: int, device: Device, seconds: float) -> list[Window]:
    """Windows of `WINDOW_SECONDS` in a row, with no pause between them, for `seconds`."""
    count = max(1, round(WINDOW_SECONDS / _seconds(product, 3, device) * 3))
    windows: list[Window] = []
    first = begin = _mark(device)
    pending: list[tuple[object, object]] = []
    while not windows or windows[-1].end < seconds:
        for _ in range(count):
            product()
        pending.append((begin, end := _mark(device)))
        begin = end
        if len(pending) == 2 or device == "cpu":
            began, ended = pending.pop(0)
            took = _between(began, ended)
            windows.append(Window(_between(first, ended), count, count * flops / took, *_state(device)))
    if device == "cuda":
        torch.cuda.synchronize()
    return windows


def rates(windows: list[Window], begin: float, end: float) -> tuple[float, ...]:
    """The rates of the windows that ended in (begin, end]; the first window's if none did."""
    found = tuple(window.rate for window in windows if begin < window.end <= end)
    return found or (windows[0].rate,)


def _mark(device: Device) -> object:
    if device == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(first: object, last: object) -> float:
    """Seconds from one mark to the other."""
    if isinstance(first, float):
        return last - first
    last.synchronize()
    return first.elapsed_time(last) / 1e3


def _state(device: Device) -> tuple[float | None, float | None, float | None]:
    """SM clock in Hz, power in watts, temperature in °C; None for all where NVML cannot be read."""
    if device == "cpu":
        return None, None, None
    try:
        return torch.cuda.clock_rate() * 1e6, torch.cuda.power_draw() / 1e3, float(torch.cuda.temperature())
    except (RuntimeError, ImportError):  # nvidia-ml-py is not installed, or the machine hides these
        return None, None, None
