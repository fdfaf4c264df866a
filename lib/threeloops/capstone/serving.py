"""The serving half of a plan, for one accelerator: a replica, a fleet of them, and whether its users get what they are
promised. It uses `product.batching` and `product.fleet`.

Replica-hours come from the flow of a whole day. The promise is checked request by request in the worst burst of that
day. The simulation covers the whole fleet, unless it is large. Then it covers a part of the fleet with the same share
of the requests.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from threeloops.capstone.scenario import Model, Refusal, Scenario, Serving
from threeloops.hardware.accelerators import Accelerator, accelerator
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import RooflineCost, StepShape
from threeloops.product.fleet import (
    Autoscaler,
    ColdStart,
    Demand,
    Fleet,
    FleetRun,
    Flow,
    SharedModel,
    bursty_day,
    flow,
    shared_model,
    simulate,
)
from threeloops.product.loadgen import SLO, Lengths, uniform
from threeloops.training.collectives import Link, recursive_doubling_all_reduce_cost, ring_all_reduce_cost
from threeloops.training.planning import ALLOCATED_SHARE, node
from threeloops.training.tensor_parallel import block_traffic
from threeloops.units import readable_bytes

__all__ = ["Replica", "ServingPart", "plan_serving"]

_BYTES = {"bf16": 2, "fp8": 1, "int8": 1}
_MOST_SEATS = 256
_TARGETS = (0.8, 0.6, 0.4, 0.25, 0.15)
"""Shares of a replica's seats that the autoscaler aims at. The first that keeps the promise is the cheapest."""
_SIMULATED_REQUESTS = 2000
_PERIOD = 60.0
"""Seconds between two looks of the autoscaler in the flow of a day."""


@dataclass(frozen=True)
class Replica:
    """One server on `gpus` GPUs with tensor parallelism, and as many seats as memory and the promised TPOT allow."""

    gpus: int
    precision: str
    model: SharedModel
    weights_bytes: float
    cache_bytes: float
    """Keys and values of all seats."""
    room: int
    """Seats that memory has room for; `model.seats` are fewer if the TPOT would not be kept otherwise."""
    requests_per_second: float
    tpot: float
    """Seconds per output token with all seats taken."""
    fleet_gpus: float
    """The GPUs that the highest rate of the day would keep busy, and at least those of the smallest fleet."""


@dataclass(frozen=True)
class ServingPart:
    serving: Serving
    gpu: Accelerator
    replica: Replica
    others: tuple[Replica, ...]
    """Other sizes of a replica, those first that need the fewest GPUs."""
    autoscaler: Autoscaler
    target: float
    """Share of the seats that the autoscaler aims at."""
    demand: Demand
    day: Flow
    burst: FleetRun | None
    """The run of a burst, or None if the flow already shows that the promise is broken."""
    attainment: float
    """The share of the worst burst's requests for which the promise is kept."""

    @property
    def replica_hours(self) -> float:
        """Replica-hours per day."""
        return self.day.replica_seconds / 3600

    @property
    def tokens_per_day(self) -> float:
        """Output tokens per day."""
        return self.demand.requests * self.serving.output_tokens

    @property
    def most_replicas(self) -> int:
        return max(ready + starting for ready, starting in zip(self.day.ready, self.day.starting, strict=True))


def plan_serving(scenario: Scenario, name: str) -> ServingPart:
    """Plan serving on the accelerator of this name. Raises Refusal if no replica fits, or the promise cannot be
    kept."""
    serving = scenario.serving
    assert serving is not None
    gpu = accelerator(name)
    best = 0.0
    replicas = _replicas(scenario.model, _without_promise(serving), scenario.cluster.gpus_per_node, gpu)
    for target in _TARGETS:
        part = _with_target(serving, gpu, replicas, target)
        if part.attainment >= serving.slo_share:
            return part
        best = max(best, part.attainment)
    raise Refusal(
        "slo",
        f"{gpu.name}: in the worst burst of the day {best:.1%} of the requests get their first token within "
        f"{serving.ttft_seconds:g} s and the others every {serving.tpot_seconds * 1e3:g} ms, and "
        f"{serving.slo_share:.1%} were promised; at most {serving.maximum_replicas} replicas of "
        f"{replicas[0].requests_per_second:.3g} requests/s each are allowed",
        1 - best,
    )


def _least(serving: Serving) -> int:
    """Replicas at any time: one may fail."""
    return min(2, serving.maximum_replicas)


def _without_promise(serving: Serving) -> Serving:
    """Return `serving` with fixed values in the fields on which its simulation does not depend."""
    return replace(serving, days=1.0, ttft_seconds=1.0, slo_share=1.0)


def _with_target(serving: Serving, gpu: Accelerator, replicas: tuple[Replica, ...], target: float) -> ServingPart:
    """The fleet whose autoscaler aims at this share of the seats. If too many requests wait in the flow of the day
    already, single requests are not simulated."""
    part = _day(_without_promise(serving), gpu, replicas, target)
    day = part.day
    rate = part.replica.requests_per_second
    late = [
        waiting > serving.ttft_seconds * ready * rate for waiting, ready in zip(day.waiting, day.ready, strict=True)
    ]
    in_time = 1 - sum(demand for demand, is_late in zip(day.demand, late, strict=True) if is_late) / sum(day.demand)
    part = replace(part, serving=serving, attainment=in_time)
    if in_time < serving.slo_share:
        return part
    burst = _worst_burst(_without_promise(serving), gpu, replicas, target)
    attainment = burst.attainment(SLO(serving.ttft_seconds, serving.tpot_seconds, serving.slo_share))
    return replace(part, burst=burst, attainment=attainment)


@lru_cache(maxsize=256)
def _day(serving: Serving, gpu: Accelerator, replicas: tuple[Replica, ...], target: float) -> ServingPart:
    """Remembered, because prices and promises can change without a change here."""
    demand = bursty_day(
        serving.peak_requests_per_second,
        trough=serving.trough,
        bursts=serving.bursts,
        height=serving.height,
        seed=serving.seed,
    )
    model = replicas[0].model
    autoscaler = Autoscaler(max(1.0, target * model.seats), _least(serving), serving.maximum_replicas)
    day = flow(
        demand,
        model,
        serving.prompt_tokens,
        serving.output_tokens,
        autoscaler,
        cold_start=serving.cold_start_seconds,
        period=_PERIOD,
    )
    return ServingPart(serving, gpu, replicas[0], replicas[1:], autoscaler, target, demand, day, None, 0.0)


@lru_cache(maxsize=256)
def _replicas(model: Model, serving: Serving, gpus_per_node: int, gpu: Accelerator) -> tuple[Replica, ...]:
    """Every size of a replica that fits and keeps the TPOT, by the GPUs of the fleet; Refusal if there is none."""
    config = model.gpt(serving.prompt_tokens + serving.output_tokens)
    if serving.precision not in gpu.rates:
        raise Refusal("memory", f"{gpu.name} has no {serving.precision} arithmetic")
    replicas: list[Replica] = []
    slowest = math.inf
    sizes = [gpus for gpus in (1, 2, 4, 8, 16) if gpus <= gpus_per_node and config.kv_heads % gpus == 0]
    for gpus in sizes:
        if len(replicas) > 1 and replicas[-1].fleet_gpus > replicas[-2].fleet_gpus:
            break  # larger ones only wait more for each other
        for replica in _seated(serving, config, gpu, gpus, node(gpu.name, 1e9).inside):
            if replica.tpot <= serving.tpot_seconds:
                replicas.append(replica)
                break
            slowest = min(slowest, replica.tpot)
    if replicas:
        return tuple(sorted(replicas, key=lambda replica: replica.fleet_gpus))
    weights = config.parameters_count() * _BYTES[serving.precision]
    if math.isinf(slowest):
        usable = ALLOCATED_SHARE * gpu.memory_bytes * sizes[-1]
        raise Refusal(
            "memory",
            f"the weights ({readable_bytes(weights)} in {serving.precision}) and the keys of one request do not fit: "
            f"{readable_bytes(usable)} of {sizes[-1]} {gpu.name} can be used",
        )
    raise Refusal(
        "tpot",
        f"{gpu.name}: a token takes {slowest * 1e3:.3g} ms even for one request alone, and "
        f"{serving.tpot_seconds * 1e3:.3g} ms were promised",
    )


def _seated(serving: Serving, config: GPTConfig, gpu: Accelerator, gpus: int, link: Link) -> Iterator[Replica]:
    """Yield replicas of this many GPUs, first with as many seats as there is room for, then with fewer and fewer."""
    size = _BYTES[serving.precision]
    device = replace(
        gpu,
        memory_bandwidth=gpus * gpu.memory_bandwidth,
        rates={dtype: gpus * rate for dtype, rate in gpu.rates.items()},
    )
    compute = RooflineCost(config, device, serving.precision, size, serving.reached)
    weights = config.parameters_count() * size
    of_request = compute.kv_bytes_per_token * (serving.prompt_tokens + serving.output_tokens)
    room = int((ALLOCATED_SHARE * gpu.memory_bytes * gpus - weights) // of_request)
    if room < 1:
        return

    def cost(step: StepShape) -> float:
        return compute(step) + _all_reduces(config, step.tokens, gpus, link)

    whole = shared_model(cost, min(room, _MOST_SEATS), serving.prompt_tokens, serving.output_tokens)
    for seats in range(whole.seats, 0, -1):
        model = SharedModel(whole.step_seconds[:seats], whole.prompt_seconds)
        rate = model.requests_per_second(serving.prompt_tokens, serving.output_tokens)
        tpot = seats / (rate * serving.output_tokens)  # Little's law; prompts of others included
        busy = max(_least(serving), serving.height * serving.peak_requests_per_second / rate)
        yield Replica(gpus, serving.precision, model, weights, seats * of_request, room, rate, tpot, gpus * busy)


def _all_reduces(config: GPTConfig, tokens: int, gpus: int, link: Link) -> float:
    """Return the seconds that tensor parallelism adds to a step: all-reduces of 16-bit activations in every block, by
    the faster of two algorithms for this size."""
    if gpus == 1:
        return 0.0
    forward, _ = block_traffic(tokens, config.width, gpus, 2)
    costs = (
        cost(tokens * config.width, 2, gpus, link)
        for cost in (ring_all_reduce_cost, recursive_doubling_all_reduce_cost)
    )
    return config.layers * forward.collectives * min(cost.seconds for cost in costs)


@lru_cache(maxsize=256)
def _worst_burst(serving: Serving, gpu: Accelerator, replicas: tuple[Replica, ...], target: float) -> FleetRun:
    """Around the time at which replicas have most to do: from 5 minutes before, until those must be there that are
    asked for then. Where that is too much for a simulation of single requests, a part of the fleet gets as large a part
    of the requests; and of a fleet that is too small for that, a shorter time is simulated."""
    part = _day(serving, gpu, replicas, target)
    demand = part.demand
    day = part.day
    load = [rate / max(1, ready) for rate, ready in zip(day.demand, day.ready, strict=True)]
    worst = max(range(len(load)), key=load.__getitem__)
    begin = day.at[worst] - 300
    end = day.at[worst] + serving.cold_start_seconds + _PERIOD
    longest = _SIMULATED_REQUESTS / load[worst]  # with a single replica
    if end - begin > longest:
        begin = day.at[worst] - 0.4 * longest
        end = day.at[worst] + 0.6 * longest
    begin = max(0.0, begin)
    end = min(demand.seconds, end)
    ready = max(1, day.ready[int(begin / day.period)])
    few = max(1, min(ready, math.floor(_SIMULATED_REQUESTS / (load[worst] * (end - begin)))))
    share = few / ready
    moments = [(end - begin) * step / 32 for step in range(33)]
    window = Demand(tuple(moments), tuple(share * demand.rate(begin + moment) for moment in moments))
    arrivals = window.arrivals(_around(serving.prompt_tokens), _around(serving.output_tokens), seed=serving.seed)
    most = max(few, math.floor(part.autoscaler.maximum * share))
    autoscaler = replace(part.autoscaler, minimum=1, maximum=most)
    fleet = Fleet(
        part.replica.model, few, autoscaler, cold_start=ColdStart(pull=serving.cold_start_seconds), timeout=60.0
    )
    return simulate(arrivals, fleet, seed=serving.seed)


def _around(mean: int) -> Lengths:
    """Half of the mean to one and a half times as much."""
    return uniform(max(1, mean // 2), max(1, 2 * mean - max(1, mean // 2)))
