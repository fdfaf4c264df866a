"""Choose the replica for a request: pure functions of the outstanding requests, a counter, and the prompt's key.

A router gets the loads of the replicas that may take a request, the number of requests that were routed before
(`turn`), and a key that is equal for prompts with an equal beginning. It returns a place in the list.

- `round_robin` ignores the loads. It is fair in requests, not in work.
- `least_outstanding` (NGINX's least_conn) compares all loads. Ties are taken in turn, so an idle fleet is used evenly.
- `two_choices` compares two random replicas, which is nearly as good (Mitzenmacher 2001, "The Power of Two Choices in
  Randomized Load Balancing"), and does not herd if many routers see the same outdated loads.
- `prefix_aware` sends equal beginnings to the same replica, whose prefix cache then has them. It uses rendezvous
  hashing (Thaler and Ravishankar 1998), so adding or removing a replica moves few keys, and no replica gets more than
  `imbalance` times the mean (Mirrokni, Thorup and Zadimoghaddam 2018, "Consistent Hashing with Bounded Loads").
"""

import hashlib
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = [
    "Load", "Router", "least_in_turn", "least_outstanding", "prefix_aware", "prefix_key", "round_robin", "two_choices",
]  # fmt: skip


@dataclass(frozen=True)
class Load:
    """A replica that may take a request, and how many requests it has that are not answered yet."""

    replica: str
    outstanding: int


Router = Callable[[Sequence[Load], int, bytes], int]


def round_robin(loads: Sequence[Load], turn: int, key: bytes) -> int:
    """Choose one replica after another. Raises ValueError if there is no replica, as all routers do."""
    _require(loads)
    return turn % len(loads)


def least_outstanding(loads: Sequence[Load], turn: int, key: bytes) -> int:
    """Choose the replica with the fewest requests. Ties are taken in turn."""
    _require(loads)
    return least_in_turn([load.outstanding for load in loads], turn)


def least_in_turn(values: Sequence[float] | Sequence[tuple[float, ...]], turn: int) -> int:
    """Return the place of the least value. Equals are taken in turn."""
    return min(range(len(values)), key=lambda place: (values[place], (place - turn) % len(values)))


def two_choices(loads: Sequence[Load], turn: int, key: bytes) -> int:
    """Draw two replicas at random, with `turn` as the seed, and choose the one with fewer requests."""
    _require(loads)
    if len(loads) == 1:
        return 0
    drawn = int.from_bytes(_hash(turn.to_bytes(8, "little")), "little")
    first = drawn % len(loads)
    second = (first + 1 + drawn // len(loads) % (len(loads) - 1)) % len(loads)
    return min(first, second, key=lambda place: loads[place].outstanding)


def prefix_aware(imbalance: float = 1.25) -> Router:
    """Return a router by the prompt's beginning. No replica gets more than `imbalance` times the mean number of
    requests.

    The first that has room is taken, in an order that depends on the key and the replica's name alone. Raises
    ValueError unless `imbalance` is at least 1: with less, there may be no replica that can take the next request.
    """
    if not imbalance >= 1:
        raise ValueError(f"imbalance = {imbalance!r}: expected at least 1, the load of a replica over the mean")

    def route(loads: Sequence[Load], turn: int, key: bytes) -> int:
        _require(loads)
        limit = math.ceil(imbalance * (sum(load.outstanding for load in loads) + 1) / len(loads))
        free = [place for place, load in enumerate(loads) if load.outstanding < limit]
        return max(free, key=lambda place: _hash(loads[place].replica.encode() + b"\0" + key))

    return route


def prefix_key(tokens: Sequence[int], block_size: int = 16, blocks: int = 4) -> bytes:
    """Return a key that is equal for prompts whose first `blocks` blocks are equal. For a shorter prompt, the key is
    made from its full blocks. A prompt shorter than one block is hashed as a whole."""
    full = min(blocks, len(tokens) // block_size) * block_size
    return _hash(array("q", tokens[: full or len(tokens)]).tobytes())


def _require(loads: Sequence[Load]) -> None:
    if not loads:
        raise ValueError("no replica may take a request: hold it until one is ready, or answer 503")


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()
