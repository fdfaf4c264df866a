"""How long an offloaded step takes, before it is run: bytes over bandwidths, and what double buffering hides."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """Bytes per second: of state from the store, of state to the store, and of state through the update."""

    fetch: float
    write: float
    update: float

    def __post_init__(self) -> None:
        for name in ("fetch", "write", "update"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)}: expected a positive number of bytes per second")


def step_seconds(chunk_bytes: Sequence[float], rates: Rates, *, buffers: int = 2) -> float:
    """Seconds of a step whose chunks hold so many bytes of state each.

    One channel carries fetches and writes, in the order in which they are queued; an update begins when its chunk has
    arrived and the one before is done. With one buffer that is the sum of everything; with two or more it comes close
    to the larger of channel and update.
    """
    if buffers < 1:
        raise ValueError(f"buffers = {buffers}: expected at least 1")
    channel = updated = 0.0
    arrived: list[float] = []
    for size in chunk_bytes[:buffers]:
        channel += size / rates.fetch
        arrived.append(channel)
    for number, size in enumerate(chunk_bytes):
        updated = max(updated, arrived[number]) + size / rates.update
        channel = max(channel, updated) + size / rates.write
        if number + buffers < len(chunk_bytes):
            channel += chunk_bytes[number + buffers] / rates.fetch
            arrived.append(channel)
    return max(channel, updated)
