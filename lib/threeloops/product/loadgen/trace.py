"""Load as data: when each request arrives, the length of its prompt, and its number of output tokens. A trace is made
from a seed, and saved with one request per line.

Prompts are kept as segments, (seed, tokens). Equal segments at the beginning are equal tokens. That is all that a
prefix cache needs to know of shared system prompts and conversations. (The Mooncake traces keep hashes of blocks for
the same reason: Qin et al. 2024.)

Arrivals are open-loop: they do not wait for answers, because users of a service do not know of one another. A closed
loop of n clients can never have more than n requests in the system, so it shows no overload (Schroeder et al. 2006,
"Open Versus Closed: A Cautionary Tale").
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from random import Random

from threeloops.files import replace_text
from threeloops.product.request import Request, Sampling

__all__ = [
    "Arrival", "Lengths", "bursty", "conversations", "load_trace", "lognormal", "mixture", "on_off", "poisson",
    "prompt_tokens", "requests_of", "save_trace", "trace", "uniform",
]  # fmt: skip

Lengths = Callable[[Random], int]
"""Draws a number of tokens."""


@dataclass(frozen=True)
class Arrival:
    """One request of a trace: `at` in seconds from its beginning, `prompt` as segments (seed, tokens)."""

    at: float
    prompt: tuple[tuple[int, int], ...]
    max_tokens: int
    client: str = ""
    priority: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", tuple((int(seed), int(tokens)) for seed, tokens in self.prompt))
        if not 0 <= self.at < math.inf:
            raise ValueError(f"at = {self.at!r}: expected seconds from the beginning of the trace, at least 0")
        if not self.prompt or min(tokens for _, tokens in self.prompt) < 1 or self.max_tokens < 1:
            raise ValueError(
                f"prompt = {self.prompt!r}, max_tokens = {self.max_tokens!r}: expected segments (seed, tokens) of at "
                "least one token each, and at least one token to generate"
            )

    @property
    def prompt_length(self) -> int:
        return sum(tokens for _, tokens in self.prompt)


def poisson(rate: float, seed: int = 0) -> Iterator[float]:
    """Moments of arrivals that are independent of each other, `rate` per second: exponential gaps."""
    return bursty(rate, 1.0, seed)


def bursty(rate: float, variation: float, seed: int = 0) -> Iterator[float]:
    """Gaps from a gamma distribution with mean 1/rate and coefficient of variation `variation`: 1 is Poisson, 0 is a
    metronome, and the larger, the more arrivals come in bursts (as vLLM's and SGLang's benchmarks make them)."""
    _require(rate=rate)
    if not 0 <= variation < math.inf:
        raise ValueError(f"variation = {variation!r}: expected a coefficient of variation, at least 0 (1: Poisson)")
    random = Random(seed)
    now = 0.0
    while True:
        if variation == 0:
            now += 1 / rate
        else:
            now += random.gammavariate(1 / variation**2, variation**2 / rate)
        yield now


def on_off(rate: float, on: float, off: float, seed: int = 0) -> Iterator[float]:
    """Poisson arrivals for `on` seconds, none for `off` seconds, and so on; `rate` per second is the mean of both."""
    _require(rate=rate, on=on)
    if not 0 <= off < math.inf:
        raise ValueError(f"off = {off!r}: expected seconds, at least 0")
    for busy in poisson(rate * (on + off) / on, seed):  # time that only passes while it is on
        yield busy + off * (busy // on)


def uniform(low: int, high: int) -> Lengths:
    """Draw lengths from `low` to `high` tokens, all equally likely."""
    if not 1 <= low <= high:
        raise ValueError(f"low = {low}, high = {high}: expected 1 ≤ low ≤ high")
    return lambda random: random.randint(low, high)


def lognormal(median: float, sigma: float, low: int = 1, high: int = 1 << 20) -> Lengths:
    """exp of a normal distribution around log(median), cut to `low` and `high`. The prompts and answers of chats are
    roughly like that: a few are very long."""
    _require(median=median)
    return lambda random: min(high, max(low, round(random.lognormvariate(math.log(median), sigma))))


def mixture(*parts: tuple[float, Lengths]) -> Lengths:
    """One of several, each with its weight: (0.9, uniform(5, 20)), (0.1, uniform(200, 300)) is skewed."""
    if not parts:
        raise ValueError("a mixture of nothing: expected at least one (weight, lengths)")
    weights, lengths = zip(*parts, strict=True)
    return lambda random: random.choices(lengths, weights)[0](random)


def trace(
    arrivals: Iterator[float],
    requests: int,
    prompts: Lengths,
    outputs: Lengths,
    *,
    prefixes: int = 0,
    prefix_length: int = 0,
    clients: int = 1,
    seed: int = 0,
) -> list[Arrival]:
    """`requests` arrivals of independent prompts; each begins with one of `prefixes` shared ones, if there are any."""
    random = Random(seed)
    own = count(prefixes)
    workload = []
    for _, at in zip(range(requests), arrivals, strict=False):
        shared = [(random.randrange(prefixes), prefix_length)] if prefixes and prefix_length else []
        prompt = (*shared, (next(own), prompts(random)))
        client = f"client-{random.randrange(clients)}" if clients > 1 else ""
        workload.append(Arrival(at, prompt, outputs(random), client))
    return workload


def conversations(
    arrivals: Iterator[float],
    requests: int,
    turns: int,
    system: int,
    prompts: Lengths,
    outputs: Lengths,
    *,
    think: float = 1.0,
    seed: int = 0,
) -> list[Arrival]:
    """Conversations that begin at `arrivals`. Each of their turns repeats the conversation so far and adds to it.

    All begin with a system prompt of `system` tokens. The next turn comes after `think` seconds on average, whether
    there was an answer or not. Random tokens of the answer's length stand in for it, because it is not known
    beforehand.
    """
    random = Random(seed)
    own = count(1)
    workload: list[Arrival] = []
    for _, start in zip(range(-(-requests // turns)), arrivals, strict=False):
        at = start
        conversation = [(0, system)] if system else []
        for _ in range(turns):
            conversation.append((next(own), prompts(random)))
            answer = outputs(random)
            workload.append(Arrival(at, tuple(conversation), answer))
            conversation.append((next(own), answer))
            at += random.expovariate(1 / think)
    return sorted(workload, key=lambda arrival: arrival.at)[:requests]


def requests_of(arrivals: Sequence[Arrival], vocabulary: int, start: float = 0.0) -> list[Request]:
    """Requests with the tokens of a trace that begins at `start` seconds on the engine's clock."""
    return [
        Request(
            str(number),
            prompt_tokens(arrival, vocabulary),
            Sampling(max_tokens=arrival.max_tokens),
            arrival=start + arrival.at,
            priority=arrival.priority,
            client=arrival.client,
        )
        for number, arrival in enumerate(arrivals)
    ]


def prompt_tokens(arrival: Arrival, vocabulary: int) -> tuple[int, ...]:
    return tuple(token for seed, tokens in arrival.prompt for token in _segment(seed, tokens, vocabulary))


@lru_cache(maxsize=256)
def _segment(seed: int, tokens: int, vocabulary: int) -> tuple[int, ...]:
    return tuple(Random(seed).choices(range(vocabulary), k=tokens))


def save_trace(path: Path, arrivals: Sequence[Arrival]) -> None:
    """A line of JSON per request."""
    replace_text(path, "".join(json.dumps(asdict(arrival)) + "\n" for arrival in arrivals))


def load_trace(path: Path) -> list[Arrival]:
    """Load a trace. Raises ValueError naming the line that is not an arrival, or is earlier than the line above it."""
    arrivals: list[Arrival] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            arrival = Arrival(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number}: {error}; expected {{'at': …, 'prompt': [[seed, tokens], …], …}}"
            ) from None
        if arrivals and arrival.at < arrivals[-1].at:
            raise ValueError(f"{path}, line {number}: at = {arrival.at} is before the line above: sort the trace")
        arrivals.append(arrival)
    return arrivals


def _require(**positive: float) -> None:
    for name, value in positive.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} = {value!r}: expected a number above 0")
