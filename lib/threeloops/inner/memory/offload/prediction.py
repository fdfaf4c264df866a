"""Predict how long an offloaded step takes: bytes divided by bandwidths, and the part that double buffering hides."""

from collections.abc import Sequence
from dataclasses import dataclass

from threeloops.simulation.link import Server

__all__ = ["Rates", "step_seconds"]


@dataclass(frozen=True)
class Rates:
    """Bytes of state per second: from the store, to the store, and through the update."""

    fetch: float
    write: float
    update: float

    def __post_init__(self) -> None:
        for name, rate in vars(self).items():
            if not rate > 0:
                raise ValueError(f"{name} = {rate}: expected a positive number of bytes per second")


def step_seconds(chunk_bytes: Sequence[float], rates: Rates, *, buffers: int = 2) -> float:
    """Return the seconds of a step whose chunks have these sizes.

    One channel carries fetches and writes in the order in which they are queued; an update begins when its chunk has
    arrived and the previous update is done. One buffer takes the sum of everything, two or more take little more than
    the larger of channel and update.
    """
    if buffers < 1:
        raise ValueError(f"buffers = {buffers}: expected at least 1")
    channel = Server()
    updater = Server()
    arrived = [channel.serve(0.0, size / rates.fetch) for size in chunk_bytes[:buffers]]
    for number, size in enumerate(chunk_bytes):
        updated = updater.serve(arrived[number], size / rates.update)
        channel.serve(updated, size / rates.write)
        if number + buffers < len(chunk_bytes):
            arrived.append(channel.serve(updated, chunk_bytes[number + buffers] / rates.fetch))
    return max(channel.free_at, updater.free_at)
