"""Four services on four GPUs: the goodput of machines that do both, and of every split into prefill and decode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean

from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import CHUNKED, KernelCost, Policy
from threeloops.product.disaggregated import (
    CacheShape,
    Deployment,
    Handover,
    Link,
    Pool,
    decode_rate,
    prefill_rate,
    simulate,
)
from threeloops.product.loadgen import SLO, Arrival, Lengths, highest_rate, lognormal, poisson, trace, uniform

from benchmarks.result import Prediction, Series

__all__ = [
    "CHUNKS", "DEVICE", "GPUS", "HANDOVER", "LLAMA_8B", "SERVICES", "WHOLE", "Service", "Ways", "balance_rows",
    "goodput_rows", "split_name",
]  # fmt: skip

LLAMA_8B = GPTConfig(128_256, 32, 32, 8, 4096, 14_336, 8192, tied_embeddings=False)
DEVICE, GPUS = "H100 SXM", 4
COST = KernelCost(LLAMA_8B, DEVICE)
HANDOVER = Handover(Link(latency=10e-6, bandwidth=50e9), CacheShape.of(LLAMA_8B), "layers")
"""One network card of 400 Gbit/s per GPU is assumed."""
BLOCKS = 24_000
"""The cache of one GPU, in blocks of 16 tokens: 50 GB of its 80 GB, beside 16 GB of weights."""
SEATS = 128
BASE = replace(CHUNKED, max_running=SEATS, prefix_cache=False)
PREFILL = Pool(1, replace(BASE, token_budget=8192), BLOCKS)
WHOLE, CHUNKS = "both kinds of work, whole prompts", "both kinds of work, chunks of 512"
GOODPUT = "goodput per GPU"


@dataclass(frozen=True)
class Service:
    """A load and its limits. `prompt` and `output` are the mean lengths."""

    name: str
    prompt: int
    output: int
    prompts: Lengths
    outputs: Lengths
    slo: SLO
    requests: int
    """The length of a trace. At the highest rate it takes many times as long as a request may."""
    guess: float
    """A rate of requests per second for four GPUs, from which the search begins."""


SERVICES = (
    Service("chat", 800, 220, lognormal(600, 0.8, 50, 6000), lognormal(200, 0.5, 20, 600), SLO(0.25, 0.015), 300, 40.0),
    Service("summaries", 4500, 100, uniform(3000, 6000), uniform(60, 140), SLO(0.6, 0.015), 120, 10.0),
    Service("completion", 2000, 30, uniform(1000, 3000), uniform(20, 40), SLO(0.2, 0.012), 200, 20.0),
    Service("reasoning", 200, 300, uniform(100, 300), uniform(200, 400), SLO(0.2, 0.011), 400, 30.0),
)


def split_name(prefill: int) -> str:
    return f"{prefill} for prefill, {GPUS - prefill} for decode"


@dataclass(frozen=True)
class Ways:
    """The ways of serving one service, and the goodput of each on some traces."""

    service: Service
    seeds: int
    precision: float

    @cached_property
    def deployments(self) -> dict[str, Deployment]:
        """Return each way by its name."""
        decodes = {WHOLE: replace(BASE, chunked=False, token_budget=8192), CHUNKS: BASE}
        alone = replace(PREFILL, machines=0)
        ways = {name: self._deployment(alone, GPUS, policy) for name, policy in decodes.items()}
        for prefill in range(1, GPUS):
            ways[split_name(prefill)] = self._deployment(replace(PREFILL, machines=prefill), GPUS - prefill, BASE)
        return ways

    @staticmethod
    def _deployment(prefill: Pool, decodes: int, policy: Policy) -> Deployment:
        return Deployment(COST, HANDOVER, prefill, Pool(decodes, policy, BLOCKS))

    @cached_property
    def rates(self) -> dict[str, tuple[float, ...]]:
        """Return the highest rates at which 90% meet the SLO, for all GPUs together, one for each trace."""
        return {
            name: tuple(self._highest(deployment, seed) for seed in range(1, self.seeds + 1))
            for name, deployment in self.deployments.items()
        }

    def _highest(self, deployment: Deployment, seed: int) -> float:
        service = self.service
        arrivals = trace(poisson(1.0, seed), service.requests, service.prompts, service.outputs, seed=seed)

        def attainment(rate: float) -> float:
            compressed = [Arrival(each.at / rate, each.prompt, each.max_tokens) for each in arrivals]
            return simulate(compressed, deployment).metrics(service.slo).attainment

        return highest_rate(attainment, service.slo.share, high=service.guess, precision=self.precision)


def goodput_rows(ways: Ways) -> list[Series]:
    """Return the goodput per GPU of each way. The peer is the best that does both kinds of work on each GPU."""
    what = f"{ways.service.name}: {GOODPUT}"
    peer = max((WHOLE, CHUNKS), key=lambda name: sum(ways.rates[name]))
    return [
        Series(what, name, "requests/s", tuple(rate / GPUS for rate in rates), "higher", peer=name == peer)
        for name, rates in ways.rates.items()
    ]


def balance_rows(ways: Ways) -> list[Prediction]:
    """Compare flow balance with the simulation, for each split."""
    service = ways.service
    prefill = prefill_rate(COST, service.prompt)
    decode = decode_rate(COST, service.prompt, service.output, service.slo.tpot, seats=SEATS, blocks=BLOCKS)
    return [
        Prediction(
            "goodput of a split",
            f"{service.name}, {split_name(number)}",
            "the simulation, beside flow balance",
            "requests/s",
            min(number * prefill, (GPUS - number) * decode),
            mean(ways.rates[split_name(number)]),
        )
        for number in range(1, GPUS)
    ]
