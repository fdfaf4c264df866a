"""Variations of a scenario: what a plan is sensitive to, and what would make an infeasible one feasible."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from threeloops.capstone.costing import Candidate, candidate
from threeloops.capstone.plan import Change, Decision
from threeloops.capstone.scenario import Infeasible, Prices, Problem, Proposal, Refusal, Scenario, ScenarioError
from threeloops.capstone.training import checkpoint_bytes, least_gpu_seconds
from threeloops.hardware.accelerators import accelerator
from threeloops.training.planning import ALLOCATED_SHARE

__all__ = ["changed", "infeasible", "sensitivity"]

_Decide = Callable[[Candidate, dict[str, Candidate | Refusal]], tuple[Decision, ...]]


def changed(scenario: Scenario, key: str, value: Any) -> Scenario:
    """The scenario with another value of a key such as "training.tokens"."""
    section, name = key.split(".")
    if getattr(scenario, section, None) is None:
        raise ScenarioError(f"{key}: the scenario has no section [{section}] to change; add it first")
    return replace(scenario, **{section: replace(getattr(scenario, section), **{name: value})})


def sensitivity(best: Candidate, prices: Prices, decide: _Decide) -> tuple[Change, ...]:
    """Return how the decisions, the cost and the days change on the chosen accelerator, one change at a time."""
    before = {decision.topic: decision.choice for decision in decide(best, {best.name: best})}
    return tuple(_change(best, before, decide, *variation) for variation in _variations(best.scenario, prices))


def _variations(scenario: Scenario, prices: Prices) -> Iterator[tuple[str, Scenario, Prices]]:
    cluster = scenario.cluster
    if scenario.training is not None:
        for word, factor in (("halves", 0.5), ("doubles", 2.0)):
            link = factor * cluster.link_gbits
            yield f"bandwidth between nodes {word}", changed(scenario, "cluster.link_gbits", link), prices
            mtbf = factor * cluster.node_mtbf_days
            yield f"time between failures {word}", changed(scenario, "cluster.node_mtbf_days", mtbf), prices
        for word, factor in (("slower", 0.8), ("faster", 1.2)):
            yield f"kernels are 20% {word}", changed(scenario, "cluster.speed", factor * cluster.speed), prices
    yield "clouds are 30% dearer", scenario, prices.with_cloud(1.3)
    yield "clouds are 30% cheaper", scenario, prices.with_cloud(0.7)
    if scenario.serving is not None:
        for word, factor in (("halves", 0.5), ("doubles", 2.0)):
            rate = factor * scenario.serving.peak_requests_per_second
            yield f"demand {word}", changed(scenario, "serving.peak_requests_per_second", rate), prices
        for word, factor in (("less", 0.8), ("more", 1.2)):
            if (reached := factor * scenario.serving.reached) <= 1:
                yield f"the engine reaches 20% {word}", changed(scenario, "serving.reached", reached), prices


def _change(
    best: Candidate, before: dict[str, str], decide: _Decide, what: str, scenario: Scenario, prices: Prices
) -> Change:
    try:
        outcome = candidate(scenario, prices, best.name)
    except Refusal as refusal:
        return Change(what, None, None, (f"not feasible: {refusal.message}",))
    after = {decision.topic: decision.choice for decision in decide(outcome, {outcome.name: outcome})}
    differ = [f"{topic}: {before[topic]} → {choice}" for topic, choice in after.items() if choice != before.get(topic)]
    if outcome.refused:
        differ.insert(0, f"not feasible: {outcome.refused.message}")
    return Change(what, outcome.total, outcome.days, tuple(differ))


_MILDEST: tuple[Problem, ...] = ("budget", "deadline", "slo", "tpot", "failures", "memory", "price")
_KEYS: dict[Problem, tuple[str, ...]] = {
    "budget": ("budget.total", "training.tokens", "serving.days"),
    "deadline": ("cluster.gpus", "training.deadline_days"),
    "slo": ("serving.maximum_replicas", "serving.ttft_seconds"),
    "tpot": ("serving.tpot_seconds",),
    "failures": ("cluster.node_mtbf_days", "cluster.storage_gbytes"),
    "memory": ("cluster.gpus", "serving.precision"),
    "price": (),
}
"""The keys that may be changed to solve each problem."""

_GRIDS = {
    "training.deadline_days": 0.1,
    "training.tokens": -1e6,
    "serving.days": -0.01,
    "serving.maximum_replicas": 1.0,
    "serving.ttft_seconds": 0.01,
    "serving.tpot_seconds": 0.001,
    "cluster.node_mtbf_days": 0.01,
    "cluster.storage_gbytes": 0.1,
    "budget.total": 1.0,
}
"""A proposed value is a multiple of this step, and the least change that suffices. With a negative step the value is
lowered."""

_DOUBLINGS = 16
_SIZES = 400
_SIMULATED_DOUBLINGS = 6


def infeasible(scenario: Scenario, prices: Prices, outcomes: dict[str, Candidate | Refusal]) -> Infeasible:
    """Return the error for a scenario that no accelerator can do. It describes the closest accelerator, and the changes
    that would make it feasible. Raises ScenarioError if no accelerator has a price."""
    refusals = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Refusal)}
    name = min(refusals, key=lambda name: (_MILDEST.index(refusals[name].problem), refusals[name].excess))
    problem = refusals[name].problem
    if problem == "price":
        raise ScenarioError(refusals[name].message)
    proposals = [_proposal(scenario, prices, name, key) for key in _KEYS[problem]]
    return Infeasible(
        problem, refusals[name].message, tuple(proposal for proposal in proposals if proposal is not None)
    )


def _proposal(scenario: Scenario, prices: Prices, name: str, key: str) -> Proposal | None:
    """Return the smallest change of this key that keeps everything but the budget, and a change of the budget if
    needed. None if no change of the key suffices."""
    section, field = key.split(".")
    if getattr(scenario, section) is None or (key == "cluster.gpus" and scenario.training is None):
        return None
    saves = key in ("budget.total", "training.tokens", "serving.days")

    def good(value: Any) -> bool:
        try:
            refused = candidate(changed(scenario, key, value), prices, name).refused
        except Refusal:
            return False
        return refused is None or (refused.problem == "budget" and not saves)

    value: float | str | None
    if key == "cluster.gpus":
        value = _gpus(scenario, name, good)
    elif key == "serving.precision":
        value = next((precision for precision in ("fp8", "int8") if good(precision)), None)
    else:
        doublings = _SIMULATED_DOUBLINGS if key == "serving.maximum_replicas" else _DOUBLINGS
        value = _least(getattr(getattr(scenario, section), field), _GRIDS[key], doublings, good)
    if value is None:
        return None
    changes: list[tuple[str, float | str]] = [(key, value)]
    there = candidate(changed(scenario, key, value), prices, name)
    if there.refused is not None:
        changes.append(("budget.total", float(math.ceil(there.total))))
    return Proposal(tuple(changes), " and ".join(_text(scenario, *change) for change in changes))


def _text(scenario: Scenario, key: str, value: float | str) -> str:
    section, field = key.split(".")
    before = getattr(getattr(scenario, section), field)
    if isinstance(value, str):
        return f"{key} = {value!r} instead of {before!r}"
    share = f" ({abs(value / before - 1):.0%} {'more' if value > before else 'less'})"
    return f"{key} = {_number(value)} instead of {_number(before)}{share}"


def _number(value: float) -> str:
    """Write a number as in a TOML file: 690_908."""
    return f"{value:_.0f}" if 1e4 <= value < 1e10 else f"{value:.6g}"


def _least(before: float, grid: float, doublings: int, good: Callable[[float], bool]) -> float | None:
    """The multiple of the grid nearest to `before` in the grid's direction that is good, by doubling and bisection."""
    whole = isinstance(before, int)
    sign = math.copysign(1, grid)
    unit = abs(grid)

    def value(step: int) -> float:
        return int(step * unit) if whole else round(step * unit, 6)

    bad = math.floor(before / unit) if sign > 0 else math.ceil(before / unit)
    for doubling in range(doublings):
        reach = bad + max(1, abs(bad) * (2**doubling - 1) // 64 + 2**doubling) if sign > 0 else bad >> (doubling + 1)
        if reach <= 0:
            return None
        if good(value(reach)):
            break
    else:
        return None
    while abs(reach - bad) > 1:
        middle = (reach + bad) // 2
        bad, reach = (bad, middle) if good(value(middle)) else (middle, reach)
    return value(reach)


def _gpus(scenario: Scenario, name: str, good: Callable[[float], bool]) -> int | None:
    """The smallest number of GPUs above the present one that is good; or the largest below it."""
    now = scenario.cluster.gpus
    per_node = scenario.cluster.gpus_per_node
    least = _fewest(scenario, name)
    within = [size for size in range(now + 1, per_node + 1) if size >= least]
    first = -(-max(now + 1, per_node + 1, least) // per_node)
    above = [*within, *(nodes * per_node for nodes in range(first, first + _SIZES))]
    below = [size for size in range(now - 1, 0, -1) if size <= per_node or size % per_node == 0]
    return next((size for size in (*above, *below[:_SIZES]) if good(size)), None)


def _fewest(scenario: Scenario, name: str) -> int:
    """Return a number below which no plan is possible: the states would not fit, or the deadline would be missed."""
    training = scenario.training
    model = scenario.trained
    assert training is not None
    memory = ALLOCATED_SHARE * accelerator(name).memory_bytes
    steps = training.tokens / (training.batch * training.sequence)
    work = steps * least_gpu_seconds(scenario, name)
    return max(1, math.floor(checkpoint_bytes(model) / memory), math.floor(work / (training.deadline_days * 86400)))
