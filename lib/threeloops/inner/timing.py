"""How long a function takes.

A single time is an anecdote. Every sample here gets fresh inputs (an operator that modifies its argument, or finds it
warm in a cache, would otherwise time something else), the last-level cache is emptied before each sample, and the
answer is a median with its noise band (`threeloops.inner.samples`).
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from threeloops.inner.samples import Ratio, Samples, median_band

__all__ = ["Ratio", "Samples", "benchmark", "cache_flusher", "clock_of", "last_level_cache_bytes", "median_band"]

SYSTEM_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
CACHE_IF_UNKNOWN = 64 * 2**20  # a machine that hides its cache size: more than most desktop processors have

Call = Callable[[], object]
Clock = Callable[[Call], float]


def benchmark(
    fn: Callable,
    make_inputs: Callable[[], tuple],
    *,
    device: str = "cpu",
    warmup: int = 3,
    samples: int = 30,
    flush_cache: bool = True,
    clock: Clock | None = None,
    flush: Callable[[], object] | None = None,
) -> Samples:
    """Time `fn(*make_inputs())`: `warmup` untimed calls, then `samples` timed ones, each on fresh inputs.

    On a CPU the clock is `perf_counter_ns`; on a GPU, CUDA events, so that the time is the device's and not that of
    the launch. With `flush_cache` every timed call finds its inputs in memory, as in a program that does other
    things in between. On a GPU the flush also keeps the device busy while the host issues the call; without it, a
    call shorter than its own launch is timed as long as the launch. A `clock` takes a function, calls it once and
    returns seconds; a `flush` empties the cache: tests and other devices pass their own.

    Raises ValueError or TypeError naming the argument that is wrong.
    """
    for name, function in (("fn", fn), ("make_inputs", make_inputs)):
        if not callable(function):
            raise TypeError(f"{name} = {function!r}: expected a function; pass it without calling it")
    _require_count("warmup", warmup, at_least=0)
    _require_count("samples", samples, at_least=1)
    clock = clock or clock_of(device)
    empty_cache = (flush or cache_flusher(device)) if flush_cache else None

    def prepared() -> Call:
        inputs = make_inputs()
        if not isinstance(inputs, tuple):
            raise TypeError(f"make_inputs() returned {type(inputs).__name__}: expected a tuple, such as (x,)")
        return partial(fn, *inputs)

    for _ in range(warmup):
        prepared()()
    seconds = []
    for _ in range(samples):
        call = prepared()
        if empty_cache is not None:
            empty_cache()
        seconds.append(clock(call))
    return Samples(tuple(seconds), device)


def host_clock(call: Call) -> float:
    """Seconds that `call` keeps this thread."""
    start = time.perf_counter_ns()
    result = call()
    stop = time.perf_counter_ns()
    del result  # freed after the second reading: returning memory is not part of the call
    return (stop - start) / 1e9


def cuda_clock(call: Call) -> float:
    """Seconds between two events that the device passes before and after the work of `call`."""
    import torch

    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / 1e3


def clock_of(device: str) -> Clock:
    """The clock that measures `device` ("cpu", "cuda" or "cuda:0"). Raises ValueError for others."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return host_clock
    if kind == "cuda":
        _require_cuda(device)
        return cuda_clock
    raise ValueError(f"device = {device!r}: expected 'cpu' or 'cuda'; for another device pass clock= and flush=")


def last_level_cache_bytes(device: str = "cpu") -> int:
    """Bytes of the largest cache that this process can read about: L2 on a GPU, usually L3 on a CPU."""
    if device.startswith("cuda"):
        import torch

        _require_cuda(device)
        return torch.cuda.get_device_properties(device).L2_cache_size
    sizes = [entry.read_text().strip() for entry in SYSTEM_CACHES.glob("index*/size")]
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units), default=CACHE_IF_UNKNOWN)


def cache_flusher(device: str = "cpu") -> Callable[[], object]:
    """A function that streams through a buffer of twice the last-level cache and so evicts everything else."""
    import torch

    buffer = torch.zeros(2 * last_level_cache_bytes(device), dtype=torch.int8, device=device)
    return partial(buffer.add_, 1)


def _require_count(name: str, value: int, at_least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} = {value!r}: expected a whole number of calls")
    if value < at_least:
        raise ValueError(f"{name} = {value}: expected at least {at_least} calls")


def _require_cuda(device: str) -> None:
    import torch

    if not torch.cuda.is_available():
        raise ValueError(f"device = {device!r}: no CUDA device is visible here; use device='cpu'")
