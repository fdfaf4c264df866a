"""Blocks of prompts in tiers: what each rule for eviction keeps, on three loads, and how long users wait for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from threeloops.hardware import accelerator
from threeloops.product.batching import KernelCost, StepShape, block_keys
from threeloops.product.disaggregated import (
    CacheShape,
    Eviction,
    Tier,
    TieredCache,
    by_reuse_and_cost,
    first_in,
    lru,
)
from threeloops.product.loadgen import Arrival, conversations, poisson, requests_of, trace, uniform

from benchmarks.disaggregated_services import LLAMA_8B
from benchmarks.result import Series

__all__ = ["TIERS", "tier_rows"]

BLOCK = 16
BLOCK_BYTES = BLOCK * CacheShape.of(LLAMA_8B).token_bytes
TOKEN_SECONDS = KernelCost(LLAMA_8B)(StepShape(((0, 2048, True),))) / 2048
HOST_LINK = accelerator("H100").host_link_bandwidth or 0.0
TIERS = (Tier("HBM", 1000), Tier("host", 3000, 20e-6, HOST_LINK), Tier("NVMe", 8000, 100e-6, 6e9))
"""Latencies, and the bandwidth of the NVMe drive, are assumptions."""
POLICIES: dict[str, Eviction] = {
    "least recently used": lru,
    "first in, first out": first_in,
    "by reuse and cost": by_reuse_and_cost,
}
Load = Callable[[int, int], list[Arrival]]


def _popular(requests: int, seed: int) -> list[Arrival]:
    """Forty long instructions, which many share, and as many prompts that come once."""
    shared = trace(
        poisson(1, seed), requests // 2, uniform(50, 150), uniform(1, 2), prefixes=40, prefix_length=2000, seed=seed
    )
    alone = trace(poisson(1, seed), requests // 2, uniform(1500, 3000), uniform(1, 2), seed=seed)
    others = [Arrival(each.at, tuple((number + 10**6, tokens) for number, tokens in each.prompt), 1) for each in alone]
    return sorted(shared + others, key=lambda each: each.at)


LOADS: dict[str, Load] = {
    "conversations": lambda requests, seed: conversations(
        poisson(0.5, seed), requests, 6, 500, uniform(50, 400), uniform(50, 300), think=20.0, seed=seed
    ),
    "instructions": lambda requests, seed: trace(
        poisson(1, seed), requests, uniform(50, 150), uniform(1, 2), prefixes=80, prefix_length=2000, seed=seed
    ),
    "instructions among documents": _popular,
}


def tier_rows(requests: int, seeds: int) -> list[Series]:
    """Return the share of blocks that were found, and the mean time of a prompt, for each load and policy."""
    series = []
    for name, load in LOADS.items():
        prompts = [_keys(load(requests, seed)) for seed in range(1, seeds + 1)]
        outcomes = {rule: [_play(some, eviction) for some in prompts] for rule, eviction in POLICIES.items()}
        for rule, pairs in outcomes.items():
            peer = POLICIES[rule] is lru
            rates, seconds = zip(*pairs, strict=True)
            series.append(Series(f"{name}: share of blocks found", rule, "", rates, "higher", peer))
            series.append(Series(f"{name}: loading and computing a prompt", rule, "s", seconds, "lower", peer))
    return series


def _keys(arrivals: Sequence[Arrival]) -> list[list[bytes]]:
    """Return the keys of each prompt's full blocks."""
    return [block_keys(request, BLOCK, len(request.prompt)) for request in requests_of(arrivals, 256)]


def _play(prompts: Sequence[Sequence[bytes]], eviction: Eviction) -> tuple[float, float]:
    """Return the share of blocks that were found, and the mean seconds of loading those and computing the others."""
    cache = TieredCache(TIERS, BLOCK_BYTES, eviction)
    seconds = 0.0
    for keys in prompts:
        hits = cache.use(keys, BLOCK * TOKEN_SECONDS)
        seconds += hits.seconds + hits.missing * BLOCK * TOKEN_SECONDS
    return cache.hit_rate, seconds / len(prompts)
