"""This machine's own row of the hardware table: bandwidth and rates measured here, sizes read from the system.

A roofline from a data sheet shows what the vendor promises; one from these numbers shows what a plain copy and a plain
matrix multiplication reach on this machine. Each number is the median of several runs.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import psutil

from threeloops.hardware.accelerators import Accelerator, dtype_name
from threeloops.hardware.inventory import chosen_device, cpu_caches, read_cpu, read_gpu
from threeloops.units import readable_bytes

__all__ = [
    "MATMUL_DTYPES", "Measured", "default_buffer_bytes", "float32_precision", "matmul_dtypes",
    "measure_copy_bandwidth", "measure_matmul_rate", "this_machine",
]  # fmt: skip

MATMUL_DTYPES = {"fp64": "float64", "fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_LARGEST_MATRIX = 8192
_PROBES = 3  # a size is judged by the best of these, as a run may be interrupted


@dataclass(frozen=True)
class Measured:
    """A measured rate: one of `samples` for each run, in their order, in `unit`; `value` is their median."""

    samples: tuple[float, ...]
    unit: str
    how: str

    @property
    def value(self) -> float:
        return median(self.samples)


def measure_copy_bandwidth(on: str | None = None, *, buffer_bytes: int | None = None, runs: int = 7) -> Measured:
    """Bytes per second of `destination.copy_(source)`, every byte counted once as read and once as written.

    By default both buffers together are at least four times the last-level cache, so that no run finds the previous
    one's data there. A CPU may also read the destination before it overwrites it; that traffic is not counted.
    """
    import torch

    on = chosen_device(on)
    size = default_buffer_bytes(on) if buffer_bytes is None else buffer_bytes
    if size <= 0 or runs <= 0:
        raise ValueError(f"buffer_bytes = {size}, runs = {runs}: expected positive numbers")
    source = torch.ones(size, dtype=torch.uint8, device=on)
    destination = torch.zeros_like(source)
    seconds = _time_runs(lambda: destination.copy_(source), on, runs)
    how = f"median of {runs} copies of {readable_bytes(size)}, read and written, {_by_torch(on)}"
    return Measured(tuple(2 * size / duration for duration in seconds), "bytes/s", how)


def measure_matmul_rate(
    dtype: object = "fp32", on: str | None = None, *, size: int | None = None, runs: int = 5
) -> Measured:
    """FLOP/s of torch's own square matrix multiplication, 2·size³ operations on random numbers.

    `dtype`: fp64, fp32, tf32 (NVIDIA GPUs from Ampere on), bf16 or fp16; another raises ValueError. By default `size`
    doubles until the best of three multiplications takes 5 ms on a CPU, 2 ms on a GPU, or it reaches 8192.
    """
    import torch

    on = chosen_device(on)
    name = dtype_name(dtype)
    if name not in MATMUL_DTYPES or (name == "tf32" and not _has_tf32(on)):
        raise ValueError(f"dtype = {name!r}: expected one of {', '.join(matmul_dtypes(on))} on {on}")
    if runs <= 0 or (size is not None and size <= 0):
        raise ValueError(f"size = {size}, runs = {runs}: expected positive numbers")

    def seconds_of(n: int, runs: int) -> list[float]:
        generator = torch.Generator(on).manual_seed(0)
        left, right = (torch.randn(n, n, generator=generator, device=on).to(torch_dtype) for _ in range(2))
        out = torch.empty_like(left)
        return _time_runs(lambda: torch.mm(left, right, out=out), on, runs)

    torch_dtype = getattr(torch, MATMUL_DTYPES[name])
    long_enough = 0.005 if on == "cpu" else 0.002
    with float32_precision("high" if name == "tf32" else "highest"), torch.inference_mode():
        n = size or (256 if on == "cpu" else 1024)
        while size is None and n < _LARGEST_MATRIX and min(seconds_of(n, _PROBES)) < long_enough:
            n *= 2
        seconds = seconds_of(n, runs)
    how = f"median of {runs} {name} multiplications of {n} × {n} matrices, {_by_torch(on)}"
    return Measured(tuple(2 * n**3 / duration for duration in seconds), "FLOP/s", how)


def this_machine(on: str | None = None, quick: bool = True) -> Accelerator:
    """Return this machine as a row of the hardware table. Its `sources` say what was measured and what was only read.

    `quick` measures the two or three dtypes that matter, in about a second. Otherwise all dtypes that torch can
    multiply here are measured, with three times the runs. Links are not measured.
    """
    on = chosen_device(on)
    dtypes = [name for name in matmul_dtypes(on) if not quick or name in ("fp32", "tf32", "bf16")]
    copy = measure_copy_bandwidth(on, runs=7 if quick else 21)
    rates = {name: measure_matmul_rate(name, on, runs=5 if quick else 15) for name in dtypes}
    facts, read_from = read_gpu() if on == "cuda" else read_cpu()
    sources = {name: f"read here from {read_from}" for name, fact in facts.items() if fact is not None}
    measured = {"memory_bandwidth": copy, **{f"rates.{name}": rate for name, rate in rates.items()}}
    sources |= {name: f"measured here: {measurement.how}" for name, measurement in measured.items()}
    return Accelerator(
        **facts,
        year=None,
        memory_bandwidth=copy.value,
        rates={name: rate.value for name, rate in rates.items()},
        sources=sources,
    )


def _time_runs(run: Callable[[], object], on: str, runs: int) -> list[float]:
    """Seconds of each of `runs` calls, after two unmeasured ones that touch the pages and choose the kernels.

    On a GPU all calls are queued, with events between them, before the first is awaited: so launches are not timed.
    """
    run(), run()
    if on == "cpu":
        ticks = [time.perf_counter()]
        for _ in range(runs):
            run()
            ticks.append(time.perf_counter())
        return [after - before for before, after in pairwise(ticks)]
    import torch

    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(runs + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]


@contextmanager
def float32_precision(precision: str) -> Iterator[None]:
    """Let torch multiply float32 matrices in TF32 ("high") or not ("highest"), restored afterwards."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _has_tf32(on: str) -> bool:
    import torch

    return on == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0)


def matmul_dtypes(on: str) -> list[str]:
    return [name for name in MATMUL_DTYPES if name != "tf32" or _has_tf32(on)]


def _by_torch(on: str) -> str:
    import torch

    threads = f"{torch.get_num_threads()} threads, " if on == "cpu" else ""
    return f"{threads}torch {torch.__version__}"


def default_buffer_bytes(on: str) -> int:
    """Twice the last-level cache, at least 64 MiB on a CPU and 1 GiB on a GPU, at most an eighth of the free memory."""
    if on == "cpu":
        free = psutil.virtual_memory().available
        wanted = max(2**26, 2 * (cpu_caches().last_level_bytes or 0))
    else:
        import torch

        free = torch.cuda.mem_get_info()[0]
        wanted = max(2**30, 2 * torch.cuda.get_device_properties(0).L2_cache_size)
    return max(2**20, min(wanted, free // 8))
