"""What operations cost on the default links: 10 µs for each message, and 1 GB/s between each pair of ranks.

Each function gives a `Cost`: the seconds until all ranks are done, and the bytes that they send together. `size` is in
bytes. Costs of operations that follow each other can be added.
"""

from dataclasses import dataclass

__all__ = [
    "ALPHA", "BETA", "Cost", "all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "gather", "message",
    "reduce", "reduce_scatter", "scatter",
]  # fmt: skip

ALPHA, BETA = 10e-6, 1e9


@dataclass(frozen=True)
class Cost:
    """Seconds and bytes."""

    seconds: float
    sent: int

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.seconds + other.seconds, self.sent + other.sent)

    def __mul__(self, times: int) -> "Cost":
        return Cost(self.seconds * times, self.sent * times)


def message(size: int, at_once: int = 1) -> Cost:
    """One message, or several between different ranks at the same time."""
    return Cost(ALPHA + size / BETA, size * at_once)


def _ring(ranks: int, chunk: int) -> Cost:
    """Each rank passes a chunk to the next, ranks − 1 times."""
    return message(chunk, at_once=ranks) * (ranks - 1)


def all_gather(ranks: int, size: int) -> Cost:
    """A ring; `size` is that of the part of one rank."""
    return _ring(ranks, size)


def reduce_scatter(ranks: int, size: int) -> Cost:
    """A ring; `size` is that of the whole input of one rank."""
    return _ring(ranks, size // ranks)


def all_reduce(ranks: int, size: int) -> Cost:
    """Two rings."""
    return _ring(ranks, size // ranks) * 2


def all_to_all(ranks: int, size: int) -> Cost:
    """`size` is that of the part for each other rank."""
    return _ring(ranks, size)


def broadcast(ranks: int, size: int) -> Cost:
    """A binomial tree. A rank may send again as soon as its last message has left, before that has arrived."""
    free, step = [0.0] * ranks, 1
    while step < ranks:
        for sender in range(min(step, ranks - step)):
            free[sender] += size / BETA
            free[sender + step] = free[sender] + ALPHA
        step *= 2
    return Cost(max(free), size * (ranks - 1))


def reduce(ranks: int, size: int) -> Cost:
    """The same tree, from its leaves to its root: one message per level."""
    return Cost((ranks - 1).bit_length() * (ALPHA + size / BETA), size * (ranks - 1))


def gather(ranks: int, size: int) -> Cost:
    """The other ranks send to one at the same time."""
    return message(size, at_once=ranks - 1)


def scatter(ranks: int, size: int) -> Cost:
    """One rank sends to the others, one after the other; what follows does not wait until a message has arrived."""
    return Cost(ALPHA + (ranks - 1) * size / BETA, (ranks - 1) * size)


def barrier(ranks: int) -> Cost:
    """An empty message goes around."""
    return _ring(ranks, 0)
