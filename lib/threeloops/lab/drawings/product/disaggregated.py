"""A reader's router in front of a prefill process and a decode process of the course's engine."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from random import Random
from typing import Any

from threeloops.product.disaggregated.real import DisaggregatedService
from threeloops.product.request import Request, Sampling
from threeloops.product.service.engine import EngineSpec
from threeloops.product.service.engine.loading import load_engine

__all__ = ["serve_really"]

_SPEC = EngineSpec("tiny", blocks=256, block_size=8, threads=1, token_budget=64)
_LENGTHS = (16, 200, 180, 12, 220, 40)
_WARM_UP = 128
_OUTPUT = 24
_SECONDS = 90.0

_Route = Callable[[int, list[Any]], int]


def serve_really(route: _Route, target: Callable[..., Any]) -> list[tuple[str, str, str, str, str]]:
    """Serve six prompts at once. Return a row for each: its length, who computed it, the times, and whether its tokens
    are those of a single engine.

    `route(prompt, targets)` chooses between the prefill process, 0, and the decode process, 1. `target` makes a target
    from queued tokens, cached tokens, tokens per second, and seconds per token. The speeds are measured before. Raises
    TimeoutError after 90 s.
    """
    with ThreadPoolExecutor(1) as thread:  # a notebook's own thread runs a loop already
        return thread.submit(asyncio.run, asyncio.wait_for(_serve(route, target), _SECONDS)).result()


async def _serve(route: _Route, target: Callable[..., Any]) -> list[tuple[str, str, str, str, str]]:
    random = Random(20)
    prompts = [tuple(random.choices(range(32, 127), k=length)) for length in _LENGTHS]
    waiting = [0, 0]  # tokens of prompts that have no first token yet, by process
    speeds = [1.0, 1.0]
    places: dict[str, int] = {}

    def is_local(request: Request) -> bool:
        if request.id not in places:
            targets = [target(waiting[place], 0, speeds[place], 0.0) for place in (0, 1)]
            places[request.id] = int(route(len(request.prompt), targets))
        waiting[places[request.id]] += len(request.prompt)
        return places[request.id] == 1

    async with DisaggregatedService(_SPEC, _SPEC, local=is_local) as service:
        for place in (0, 1):
            warm = tuple(random.choices(range(32, 127), k=_WARM_UP))
            places[f"warm-up {place}"] = place
            seconds, _, _ = await _read(service, _request(f"warm-up {place}", warm), lambda: None)
            waiting[place] = 0
            speeds[place] = _WARM_UP / seconds
        requests = [_request(str(number), prompt) for number, prompt in enumerate(prompts)]

        async def one(request: Request) -> tuple[float, float, list[int]]:
            def has_begun() -> None:
                waiting[places[request.id]] -= len(request.prompt)

            return await _read(service, request, has_begun)

        served = await asyncio.gather(*(one(request) for request in requests))
    alone = _alone(prompts)
    names = ("the prefill process", "the decode process")
    return [
        (
            f"{len(prompt)} tokens",
            names[places[str(number)]],
            f"{first * 1000:.0f} ms",
            f"{rest * 1000:.1f} ms each",
            "yes" if tokens == expected else "NO",
        )
        for number, (prompt, (first, rest, tokens), expected) in enumerate(zip(prompts, served, alone, strict=True))
    ]


def _request(name: str, prompt: Sequence[int]) -> Request:
    return Request(name, tuple(prompt), Sampling(max_tokens=_OUTPUT))


async def _read(
    service: DisaggregatedService, request: Request, has_begun: Callable[[], None]
) -> tuple[float, float, list[int]]:
    """Return the seconds to the first token, those between two tokens, and the tokens."""
    start = time.perf_counter()
    first = start
    tokens: list[int] = []
    async with aclosing(service.generate(request)) as stream:
        async for token in stream:
            if not tokens:
                first = time.perf_counter()
                has_begun()
            tokens.append(token)
    return first - start, (time.perf_counter() - first) / max(1, len(tokens) - 1), tokens


def _alone(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the tokens that one engine gives."""
    engine, _ = load_engine(_SPEC, "")
    requests = [_request(str(number), prompt) for number, prompt in enumerate(prompts)]
    engine.run(requests)
    return [request.output for request in requests]
