"""Choose the prefill machine and the decode machine of a request: pure functions of what a router sees.

A router gets the state of each machine that may take the request, the number of tokens of the prompt, and the number of
requests that were routed before (`turn`). It returns a place in the list. Ties are taken in turn, so that idle machines
are used evenly.

For the prefill pool:

- `shortest_queue` compares the tokens that are waiting to be computed. Requests are a worse measure, because one prompt
  may be a hundred times as long as another.
- `longest_prefix` takes the machine that has most of the prompt's blocks in its cache, unless its queue is much longer
  than the shortest.
- `least_cost` predicts the time to first token on each machine: the queue, the load of blocks from slower tiers, and
  the rest of the prompt. (Mooncake's scheduler compares such predictions: Qin et al. 2024, arXiv:2407.00079.)

For the decode pool: `fewest_running`, and `most_room`, which compares free blocks. `round_robin` works for both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from threeloops.product.fleet.policies.routing import least_in_turn

__all__ = [
    "DecodeRouter", "DecodeState", "PrefillRouter", "PrefillState", "fewest_running", "least_cost", "longest_prefix",
    "most_room", "round_robin", "shortest_queue",
]  # fmt: skip


@dataclass(frozen=True)
class PrefillState:
    """A machine that computes prompts, as a router sees it for one prompt.

    `queued_tokens` are those of all prompts here that still have to be computed, without tokens that its cache had.
    Its cache has `cached_tokens` of this prompt, `loadable_tokens` more are in slower tiers, and loading them takes
    `load_seconds`.
    """

    machine: str
    queued_tokens: int
    cached_tokens: int = 0
    loadable_tokens: int = 0
    load_seconds: float = 0.0


@dataclass(frozen=True)
class DecodeState:
    """A machine that continues answers, as a router sees it for one prompt.

    `running` counts the requests that decode there or for which it keeps blocks. The prompt's cache needs
    `needed_blocks` of its `free_blocks`.
    """

    machine: str
    running: int
    free_blocks: int
    needed_blocks: int


PrefillRouter = Callable[[Sequence[PrefillState], int, int], int]
DecodeRouter = Callable[[Sequence[DecodeState], int, int], int]


def round_robin(states: Sequence[PrefillState] | Sequence[DecodeState], tokens: int, turn: int) -> int:
    """Choose one machine after another. Raises ValueError if there is none, as all routers do."""
    _require(states)
    return turn % len(states)


def shortest_queue(states: Sequence[PrefillState], tokens: int, turn: int) -> int:
    """Choose the machine with the fewest tokens to compute."""
    _require(states)
    return least_in_turn([state.queued_tokens for state in states], turn)


def longest_prefix(most_ahead: int = 8192) -> PrefillRouter:
    """Return a router by cached tokens. Machines with a queue of over `most_ahead` tokens more than the shortest are
    left out.

    Without this limit, prompts that begin alike would all wait for one machine.
    """
    if most_ahead < 0:
        raise ValueError(f"most_ahead = {most_ahead!r}: expected a number of tokens, at least 0")

    def route(states: Sequence[PrefillState], tokens: int, turn: int) -> int:
        _require(states)
        shortest = min(state.queued_tokens for state in states)
        able = [state.queued_tokens <= shortest + most_ahead for state in states]
        return least_in_turn(
            [
                (not may, -state.cached_tokens - state.loadable_tokens, state.queued_tokens)
                for may, state in zip(able, states, strict=True)
            ],
            turn,
        )

    return route


def least_cost(seconds_per_token: float) -> PrefillRouter:
    """Return a router by the predicted time to first token: the queue, then loading, then the rest of the prompt.

    `seconds_per_token` is the time of a prompt's token. Raises ValueError unless it is above 0.
    """
    if not seconds_per_token > 0:
        raise ValueError(f"seconds_per_token = {seconds_per_token!r}: expected a time above 0")

    def route(states: Sequence[PrefillState], tokens: int, turn: int) -> int:
        _require(states)
        return least_in_turn([_predicted(state, tokens, seconds_per_token) for state in states], turn)

    return route


def fewest_running(states: Sequence[DecodeState], tokens: int, turn: int) -> int:
    """Choose the machine with the fewest requests."""
    _require(states)
    return least_in_turn([state.running for state in states], turn)


def most_room(states: Sequence[DecodeState], tokens: int, turn: int) -> int:
    """Choose the machine with the most free blocks. A long prompt counts for more than a short one."""
    _require(states)
    return least_in_turn([-state.free_blocks for state in states], turn)


def _predicted(state: PrefillState, tokens: int, seconds_per_token: float) -> float:
    """Return the predicted time to first token. Blocks are loaded only if that is faster than computing them."""
    loading = min(state.load_seconds, state.loadable_tokens * seconds_per_token)
    uncached = tokens - state.cached_tokens - state.loadable_tokens
    return (state.queued_tokens + uncached) * seconds_per_token + loading


def _require(states: Sequence[object]) -> None:
    if not states:
        raise ValueError("no machine may take the request: hold it until one is ready, or answer 503")
