"""The α–β model of a message, and the cost of a collective in this model.

A message of s bytes takes α + s/β: latency and bandwidth (Hockney 1994). A rank may add γ seconds for each byte that it
reduces (Thakur, Rabenseifner, Gropp 2005, section 3). The costs beside the algorithms are exact, not asymptotic, under
three conditions: every ordered pair of ranks has a link of its own, all ranks begin together, and a sender continues
when its last byte has left. So the receiver pays α, and the sender does not.
"""

import math
from dataclasses import dataclass

__all__ = ["Cost", "Link", "chunk_length", "require_sizes"]


@dataclass(frozen=True)
class Link:
    """`latency` (α) in seconds, `bandwidth` (β) in bytes/s, and `reduce_seconds` (γ) per byte that a rank reduces."""

    latency: float
    bandwidth: float
    reduce_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.latency < math.inf and self.bandwidth > 0 and 0 <= self.reduce_seconds < math.inf):
            raise ValueError(
                f"latency = {self.latency} s, bandwidth = {self.bandwidth} bytes/s, reduce_seconds = "
                f"{self.reduce_seconds} s/byte: expected a latency ≥ 0, a bandwidth > 0, and a reduction ≥ 0"
            )

    def seconds(self, size: int) -> float:
        """Return the time of one message of `size` bytes. An empty message takes the latency."""
        return self.latency + size / self.bandwidth


@dataclass(frozen=True)
class Cost:
    """The cost of a collective: `bytes` and `messages` that each rank sends, and the `seconds` until the last rank is
    done."""

    bytes: tuple[int, ...]
    messages: tuple[int, ...]
    seconds: float

    def __add__(self, after: "Cost") -> "Cost":
        """Add the costs of two collectives, if the second cannot begin before the first is done everywhere."""
        return Cost(
            tuple(a + b for a, b in zip(self.bytes, after.bytes, strict=True)),
            tuple(a + b for a, b in zip(self.messages, after.messages, strict=True)),
            self.seconds + after.seconds,
        )


def chunk_length(elements: int, chunks: int, index: int) -> int:
    """Return the length of chunk `index` (modulo `chunks`), cut like `torch.tensor_split`: longer chunks first."""
    return elements // chunks + (index % chunks < elements % chunks)


def require_sizes(elements: int, element_size: int, ranks: int) -> None:
    if not (elements >= 0 and element_size >= 1 and ranks >= 1):
        raise ValueError(
            f"{elements} elements of {element_size} bytes on {ranks} ranks: expected 0 or more elements, and at least "
            "1 byte and 1 rank"
        )
