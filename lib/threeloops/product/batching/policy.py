"""The settings of a scheduler: limits of a step, the order of service, and when a batch may begin. The four policies by
which servers batch are values of one class:

- static: wait until a batch is full. Nobody joins before the last request in it has finished.
- dynamic: the same, but a batch begins at the latest when its first request has waited for `door_opens` seconds (Triton
  Inference Server's dynamic batcher, TensorFlow Serving's `batch_timeout_micros`).
- continuous: waiting requests join at the next step (Yu et al. 2022, "Orca: A Distributed Serving System for
  Transformer-Based Generative Models", section 3.1). A prompt is computed whole, in a step without decoding requests.
- chunked: prompts are cut to the part of a step's budget that decoding requests leave, so that no prompt stalls them
  (Agrawal et al. 2024, "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", section 4).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from threeloops.product.request import Request
from threeloops.units import require_whole

__all__ = ["CHUNKED", "CONTINUOUS", "DYNAMIC", "POLICIES", "STATIC", "Order", "Policy", "by_arrival", "by_priority"]

Order = Callable[[Request], tuple[float, ...]]
"""The sort key of requests. The smallest is served first, and the largest is preempted first. Among equals the first
added is first. The key must not change while a request is in the engine. Otherwise two requests could preempt each
other forever."""


def by_arrival(request: Request) -> tuple[float, ...]:
    """First come, first served."""
    return (request.arrival,)


def by_priority(aging: float) -> Order:
    """The smallest `priority` first; every `aging` seconds of waiting count as one, so nobody starves.

    All requests age at the same rate, so the order of two requests never changes. A request is overtaken only by one
    whose priority is smaller by n, if that one arrives less than n · `aging` seconds later. Raises ValueError unless
    `aging` is a positive number.
    """
    if not 0 < aging < math.inf:
        raise ValueError(f"aging = {aging!r}: expected a positive number of seconds, after which a priority gains one")

    def order(request: Request) -> tuple[float, ...]:
        return (request.priority + request.arrival / aging,)  # less now / aging, which is the same for all

    return order


@dataclass(frozen=True)
class Policy:
    """Limits of a step, and the rules for joining it. Raises ValueError naming the limit that is out of range.

    `token_budget` limits the tokens of a step. Only an uncut prompt may exceed it, in a step of its own. `door_opens`
    is None for continuous batching. Otherwise nobody joins while a batch runs, and a new batch begins when
    `max_running` requests wait or the first has waited for `door_opens` seconds (infinity: static batching). `fair`
    admits the client who was served least (`fairness.py`), and `order` then decides between the requests of a client.
    `guesses` are tokens that a draft may propose for a decoding request.
    """

    max_running: int = 64
    token_budget: int = 512
    chunked: bool = True
    prefix_cache: bool = True
    door_opens: float | None = None
    fair: bool = False
    guesses: int = 0
    order: Order = by_arrival

    def __post_init__(self) -> None:
        require_whole(1, max_running=self.max_running, token_budget=self.token_budget)
        require_whole(0, guesses=self.guesses)
        if self.door_opens is not None and not self.door_opens >= 0:
            raise ValueError(
                f"door_opens = {self.door_opens!r}: expected seconds, at least 0, or None for continuous batching"
            )


STATIC = Policy(chunked=False, door_opens=math.inf)
DYNAMIC = Policy(chunked=False, door_opens=0.05)
CONTINUOUS = Policy(chunked=False)
CHUNKED = Policy()
POLICIES = {"static": STATIC, "dynamic": DYNAMIC, "continuous": CONTINUOUS, "chunked": CHUNKED}
"""The policies by name. Adapt them with `dataclasses.replace`."""
