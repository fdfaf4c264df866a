"""How long a function takes, and how well the median of its times is known.

Every sample gets fresh inputs, because an operator may modify its argument, or find it in a cache, and then the next
sample would time something else. The last-level cache is emptied before each sample. The answer is a median with a
noise band, computed from the ranks of the samples alone: run times have a hard floor and a long tail, so no normal
distribution is assumed.

Source: order statistics and the binomial distribution, e.g. David & Nagaraja, *Order Statistics*, §7.1.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from math import isfinite

from threeloops.hardware import cpu_caches

__all__ = ["Call", "Clock", "MedianBand", "Ratio", "Samples", "benchmark", "cuda_clock", "median_band"]

_CONFIDENCE = 0.95
_CACHE_IF_UNKNOWN = 64 * 2**20  # more than most desktop processors have
_CLOCK_IF_UNKNOWN = 2_000_000  # kHz
_SHORTEST_COVER = 1e-3
_LONGEST_COVER = 50e-3

Call = Callable[[], object]
Clock = Callable[[Call], float]


@dataclass(frozen=True)
class MedianBand:
    """Ranks (1 is the fastest sample) between which the true median lies with probability `coverage`."""

    low_rank: int
    high_rank: int
    coverage: float


def median_band(samples: int, confidence: float = _CONFIDENCE) -> MedianBand:
    """Find the narrowest symmetric pair of ranks that holds the true median with at least `confidence`.

    Each sample lies below the true median with probability 1/2, for any distribution. The number below it is thus
    binomial, and ranks (r, samples + 1 - r) miss it with probability 2·P(Binomial(samples, 1/2) ≤ r - 1). With fewer
    than six samples even (fastest, slowest) misses it too often for 95%. That pair is then returned with its true
    coverage.

    Raises ValueError for no samples or a confidence outside (0, 1).
    """
    if samples < 1:
        raise ValueError(f"samples = {samples}: expected at least one sample; a band needs six for 95%")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence = {confidence}: expected a probability between 0 and 1, such as 0.95")

    total = 2**samples
    term = below = 1  # exact integers: comb(samples, rank - 1), and the sum of all binomials up to it
    rank = 1
    coverage = max(0.0, 1 - 2 / total)
    while rank + 1 <= (samples + 1) // 2:
        term = term * (samples + 1 - rank) // rank
        below += term
        narrower = 1 - 2 * below / total
        if narrower < confidence:
            break
        rank += 1
        coverage = narrower
    return MedianBand(rank, samples + 1 - rank, coverage)


@dataclass(frozen=True)
class Ratio:
    """A quotient of two medians, and a band around the quotient of the true medians.

    Each of the two bands misses with at most 5%, so this one holds with at least 90% (from six samples on each side).
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Samples:
    """Raw times of one function in seconds, in the order in which they were taken."""

    seconds: tuple[float, ...]
    device: str = "cpu"

    def __post_init__(self):
        if not self.seconds:
            raise ValueError("seconds = (): expected at least one time; take more samples")
        wrong = next((value for value in self.seconds if not (isfinite(value) and value >= 0)), None)
        if wrong is not None:
            raise ValueError(f"seconds contains {wrong}: expected finite times ≥ 0; check the clock")

    @cached_property
    def _band(self) -> tuple[float, float]:
        ranks = median_band(len(self.seconds))
        ordered = sorted(self.seconds)
        return ordered[ranks.low_rank - 1], ordered[ranks.high_rank - 1]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def low(self) -> float:
        """Lower edge of the noise band of the median, seconds."""
        return self._band[0]

    @property
    def high(self) -> float:
        """Upper edge of the noise band of the median, seconds."""
        return self._band[1]

    def ratio(self, other: "Samples") -> Ratio:
        """Return self.median / other.median with its band: how many times longer `self` takes.

        Raises ValueError when `other` is not resolved from zero by its clock.
        """
        if other.low == 0:
            raise ValueError("other.low = 0 s: expected a time above the clock's resolution; repeat the work inside fn")
        return Ratio(self.median / other.median, self.low / other.high, self.high / other.low)


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

    The clock is `perf_counter_ns` on a CPU and CUDA events on a GPU. With `flush_cache` every timed call finds its
    inputs in memory, as in a program that does other things in between. On a GPU it then measures the device alone: the
    device is kept busy until the host has issued the call, since otherwise a call shorter than its own launch would
    seem to take as long as the launch. Without `flush_cache` launches count, as they do in a loop. For other devices
    pass a `clock`, which takes a function, calls it once and returns seconds, and a `flush`, which empties the cache;
    launches count with a clock of your own.

    Raises ValueError or TypeError naming the wrong argument.
    """
    for name, function in (("fn", fn), ("make_inputs", make_inputs)):
        if not callable(function):
            raise TypeError(f"{name} = {function!r}: expected a function; pass it without calling it")
    _require_count("warmup", warmup, at_least=0)
    _require_count("samples", samples, at_least=1)
    cover = _launch_cover(device) if flush_cache and clock is None else None
    clock = clock or _clock_of(device)
    empty_cache = (flush or _cache_flusher(device)) if flush_cache else None

    def prepared() -> Call:
        inputs = make_inputs()
        if not isinstance(inputs, tuple):
            raise TypeError(f"make_inputs() returned {type(inputs).__name__}: expected a tuple, such as (x,)")
        return partial(fn, *inputs)

    issue_seconds = 0.0
    for _ in range(warmup):
        issue_seconds = _host_clock(prepared())
    seconds = []
    for _ in range(samples):
        call = prepared()
        if empty_cache is not None:
            empty_cache()
        if cover is not None:
            cover(issue_seconds)
        seconds.append(clock(call))
    return Samples(tuple(seconds), device)


def _host_clock(call: Call) -> float:
    """Return the seconds that `call` occupies this thread."""
    start = time.perf_counter_ns()
    result = call()
    stop = time.perf_counter_ns()
    del result  # freed only now, since returning memory is not part of the call
    return (stop - start) / 1e9


def cuda_clock(call: Call) -> float:
    """Return the seconds between two events on the device, before and after the work of `call`."""
    import torch

    start = torch.cuda.Event(enable_timing=True)
    stop = torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / 1e3


def _launch_cover(device: str) -> Callable[[float], None] | None:
    """Return a function that keeps a GPU busy for longer than the host needs to issue a call, or None for a CPU.

    It takes the seconds that the host needed to issue such a call before, and makes the device sleep three times as
    long: at least 1 ms, since the first launch after a pause is slow, and at most 50 ms, in case the call itself waits
    for the device.
    """
    if device.partition(":")[0] != "cuda":
        return None
    _require_cuda(device)
    import torch

    kilohertz = getattr(torch.cuda.get_device_properties(device), "clock_rate", _CLOCK_IF_UNKNOWN)

    def cover(issue_seconds: float) -> None:
        seconds = min(max(3 * issue_seconds, _SHORTEST_COVER), _LONGEST_COVER)
        torch.cuda._sleep(int(seconds * kilohertz * 1e3))

    return cover


def _clock_of(device: str) -> Clock:
    """Return the clock that measures `device` ("cpu", "cuda" or "cuda:0"). Raises ValueError for others."""
    kind = device.partition(":")[0]
    if kind == "cpu":
        return _host_clock
    if kind == "cuda":
        _require_cuda(device)
        return cuda_clock
    raise ValueError(f"device = {device!r}: expected 'cpu' or 'cuda'; for another device pass clock= and flush=")


def _last_level_cache_bytes(device: str = "cpu") -> int:
    """Return the bytes of the cache before memory: L2 on a GPU, usually L3 on a CPU."""
    if device.startswith("cuda"):
        import torch

        _require_cuda(device)
        return torch.cuda.get_device_properties(device).L2_cache_size
    return cpu_caches().last_level_bytes or _CACHE_IF_UNKNOWN


def _cache_flusher(device: str = "cpu") -> Callable[[], object]:
    """Return a function that streams through a buffer twice as large as the last-level cache, evicting everything
    else."""
    import torch

    buffer = torch.zeros(2 * _last_level_cache_bytes(device), dtype=torch.int8, device=device)
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
