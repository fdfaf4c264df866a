"""Memory of the cache that holds no token (claim cb-2): blocks beside what has to be reserved in one piece.

In virtual time, as it depends on no machine. Kwon et al. 2023 (figure 2) measured 4% for blocks, and 62 to 80% for
systems that reserve.
"""

from __future__ import annotations

from dataclasses import replace

from threeloops.product.batching import CHUNKED, Engine, SimulatedExecutor
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.loadgen import lognormal, poisson, requests_of, trace, uniform
from threeloops.simulation.clock import VirtualClock

from benchmarks.result import Series

__all__ = ["waste_rows"]

LONGEST = 2048
"""Tokens that a model can have: what is reserved by who does not know how long an answer will be."""


def waste_rows(requests: int = 300) -> list[Series]:
    """A sample per step, of the share of the memory that its requests hold in which there is no token."""
    arrivals = trace(poisson(1e6), requests, lognormal(400, 0.5, 100, 1200), uniform(100, 400), seed=3)
    found: dict[str, list[float]] = {}
    held: list[float] = []
    for block_size in (8, 16, 32, 128):
        clock, manager = VirtualClock(), BlockManager(64 * LONGEST // block_size, block_size)
        engine = Engine(
            SimulatedExecutor(clock, lambda step: 1e-3), manager, replace(CHUNKED, token_budget=2048), clock
        )
        for request in requests_of(arrivals, 50_000):
            engine.add(request)
        shares, known, longest = [], [], []
        while engine.requests:
            engine.step()
            running = engine.scheduler.running
            if len(running) < 16:
                continue  # it fills, or empties
            tokens = sum(request.computed for request in running)
            shares.append(1 - tokens / sum(len(request.block_table) * block_size for request in running))
            known.append(1 - tokens / sum(len(request.prompt) + request.sampling.max_tokens for request in running))
            longest.append(1 - tokens / (LONGEST * len(running)))
            held.append(tokens / len(running))
        found[f"blocks of {block_size}"] = shares
        found["reserved: prompt and longest answer asked for"] = known
        found[f"reserved: the model's {LONGEST} tokens"] = longest
    what = f"waste of the cache, {sum(held) / len(held):.0f} tokens per request on average"
    return [
        Series(what, name, "of the memory held", tuple(samples), peer=name.startswith("reserved: the model"))
        for name, samples in found.items()
    ]
