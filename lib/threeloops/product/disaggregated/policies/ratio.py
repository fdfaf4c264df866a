"""The ratio of prefill to decode machines: by flow balance before the run, and by a rule that follows the load.

In the long run, as many prompts must be computed as answers are continued. A prefill machine computes r_P prompts per
second, one after another, and a decode machine completes r_D answers per second with as many requests in a step as the
limit on the gap between tokens allows. Then p and d machines serve min(p·r_P, d·r_D) requests per second, and p : d is
best near r_D : r_P. Flow balance knows no queues, so real pools need a margin.
"""

import math
from dataclasses import dataclass
from typing import Literal

from threeloops.product.batching.simulated.steps import Cost, StepShape
from threeloops.units import require_whole

__all__ = ["PoolLoad", "RoleChanges", "Split", "best_split", "decode_batch", "decode_rate", "prefill_rate"]


@dataclass(frozen=True)
class Split:
    """The number of machines of each kind, and the `rate` of requests per second that their flow balance allows."""

    prefill: int
    decode: int
    rate: float


def prefill_rate(cost: Cost, prompt: int, *, cached: int = 0, chunk: int | None = None) -> float:
    """Return the prompts per second of one prefill machine, which computes them one after another.

    A prompt has `prompt` tokens, of which the prefix cache has `cached`. The rest is computed in chunks of at most
    `chunk` tokens, or at once.
    """
    require_whole(of="tokens", prompt=prompt)
    if not 0 <= cached < prompt:
        raise ValueError(f"cached = {cached}: expected fewer tokens than the prompt's {prompt}, at least 0")
    size = chunk or prompt
    seconds = 0.0
    for start in range(cached, prompt, size):
        tokens = min(size, prompt - start)
        seconds += cost(StepShape(((start, tokens, start + tokens == prompt),)))
    return 1 / seconds


def decode_batch(cost: Cost, context: int, tpot: float, seats: int, blocks: int, block_size: int = 16) -> int:
    """Return the largest number of requests in a step of at most `tpot` seconds, whose caches have `context` tokens.

    `seats` and the cache's `blocks` limit it too. It is 0 if even one request takes longer.
    """
    room = min(seats, blocks // -(-context // block_size))
    low = 0
    high = room
    while low < high:
        middle = (low + high + 1) // 2
        if cost(StepShape(((context - 1, 1, True),) * middle)) <= tpot:
            low = middle
        else:
            high = middle - 1
    return low


def decode_rate(
    cost: Cost, prompt: int, output: int, tpot: float, *, seats: int = 64, blocks: int = 4096, block_size: int = 16
) -> float:
    """Return the answers per second of one decode machine whose steps take at most `tpot` seconds.

    An answer has `output` tokens, of which the first comes from the prefill machine. Each request is taken at half of
    its answer. The rate is infinite for answers of one token, which never come to the decode pool.
    """
    require_whole(of="tokens", prompt=prompt, output=output)
    if output == 1:
        return math.inf
    context = prompt + output // 2
    batch = decode_batch(cost, context, tpot, seats, blocks, block_size)
    if not batch:
        return 0.0
    return batch / (cost(StepShape(((context - 1, 1, True),) * batch)) * (output - 1))


def best_split(machines: int, prefill: float, decode: float) -> Split:
    """Return the split of `machines` with the highest rate. A prefill machine does `prefill` requests per second, and a
    decode machine `decode`. Among equals, it has the most decode machines."""
    require_whole(2, of="machines", machines=machines)
    splits = [
        Split(number, machines - number, min(number * prefill, (machines - number) * decode))
        for number in range(1, machines)
    ]
    return max(splits, key=lambda split: (split.rate, split.decode))


@dataclass(frozen=True)
class PoolLoad:
    """A pool as the rule sees it: its machines, without those that are changing, and its load.

    The load of the prefill pool is the time until its queue would be empty, in seconds. That of the decode pool is the
    share of its blocks or of its seats that is taken, whichever is larger, and requests that wait for room count as if
    they had it.
    """

    machines: int
    load: float


@dataclass(frozen=True)
class RoleChanges:
    """A rule for changing the roles of machines with the load, one machine at a time.

    A machine moves to the pool that is above its `high` mark while the other is below its `low` mark. Between the marks
    nothing changes, so that a machine does not go back and forth. After a change, the rule waits for `pause` seconds.
    A pool `keeps` so many machines. A machine finishes its requests first, and is then away for `seconds`.
    """

    prefill: tuple[float, float] = (0.1, 1.0)
    decode: tuple[float, float] = (0.5, 0.9)
    period: float = 1.0
    pause: float = 10.0
    seconds: float = 0.0
    keeps: int = 1

    def __post_init__(self) -> None:
        for name in ("prefill", "decode"):
            low, high = getattr(self, name)
            if not 0 <= low <= high < math.inf:
                raise ValueError(f"{name} = {(low, high)}: expected a low and a high mark, 0 ≤ low ≤ high")
        if not (self.period > 0 and self.pause >= 0 and self.seconds >= 0):
            raise ValueError(
                f"period = {self.period}, pause = {self.pause}, seconds = {self.seconds}: expected a period above 0, "
                "and nothing negative"
            )
        require_whole(of="machines", keeps=self.keeps)

    def decide(
        self, prefill: PoolLoad, decode: PoolLoad, since_last: float = math.inf
    ) -> Literal["to prefill", "to decode"] | None:
        """Return which way a machine should move, or None. `since_last` is the time since the last move began."""
        if since_last < self.pause:
            return None
        if prefill.load > self.prefill[1] and decode.load < self.decode[0] and decode.machines > self.keeps:
            return "to prefill"
        if decode.load > self.decode[1] and prefill.load < self.prefill[0] and prefill.machines > self.keeps:
            return "to decode"
        return None
