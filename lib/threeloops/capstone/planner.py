"""Make a plan: choose the cheapest accelerator that suffices, and give the decisions and their reasons.

>>> plan = make_plan(read_scenario("70b_pretraining"))
>>> plan.decision("parallelism").choice, plan["training_days"], plan["total_cost"]
"""

from dataclasses import replace
from typing import get_args

from threeloops.capstone.costing import Candidate, candidates
from threeloops.capstone.pictures import figures
from threeloops.capstone.plan import Decision, Option, Plan
from threeloops.capstone.scenario import Prices, Refusal, Scenario, read_prices
from threeloops.capstone.serving import ServingPart
from threeloops.capstone.training import TrainingPart
from threeloops.capstone.variations import infeasible, sensitivity
from threeloops.training.elastic.goodput import MEASURED, RSC1_PER_NODE_DAY, cluster_mtbf, failures_per_node_day
from threeloops.training.planning import ALLOCATED_SHARE, StepTime, memory, step_time
from threeloops.training.planning import Plan as Parallelism
from threeloops.training.planning.model import Recompute
from threeloops.units import readable_bytes, readable_duration, readable_seconds

__all__ = ["decisions", "make_plan"]


def make_plan(scenario: Scenario, prices: Prices | None = None) -> Plan:
    """The plan for a scenario, at these prices or the library's own.

    Raises:
        Infeasible: no accelerator of the scenario can do it; with the smallest changes that would make it feasible.
        ScenarioError: no accelerator of the scenario has a price.
    """
    prices = prices or read_prices()
    outcomes = candidates(scenario, prices)
    best = next((outcome for outcome in outcomes.values() if isinstance(outcome, Candidate)), None)
    if best is None:
        raise infeasible(scenario, prices, outcomes)
    return Plan(
        scenario,
        decisions(best, outcomes),
        tuple(best.sheet.rows.values()),
        best.costs,
        tuple(_option(name, outcome) for name, outcome in outcomes.items()),
        sensitivity(best, prices, decisions),
        figures(best),
    )


def decisions(best: Candidate, outcomes: dict[str, Candidate | Refusal]) -> tuple[Decision, ...]:
    """Everything that the plan decides, in the order in which a reader asks."""
    made = [_accelerator(best, outcomes)]
    if best.training is not None:
        made += [_parallelism(best.training), _recomputation(best.training), _training_precision(best.training)]
        made += [_interval(best.training), _spares(best.training)]
    if best.serving is not None:
        made += [_replica(best.serving), _serving_precision(best), _fleet(best.serving)]
    return (*made, _ownership(best))


def _option(name: str, outcome: Candidate | Refusal) -> Option:
    if isinstance(outcome, Refusal):
        return Option(name, None, None, None, outcome.message)
    gpus = 0.0
    notes = []
    if outcome.training is not None:
        gpus += outcome.training.gpus
        notes.append(_words(outcome.training.step.plan))
    if outcome.serving is not None:
        gpus += outcome.serving.most_replicas * outcome.serving.replica.gpus
        notes.append(
            f"{outcome.serving.replica.gpus} GPU(s) per replica, {outcome.serving.most_replicas} replicas at most"
        )
    return Option(name, outcome.total, outcome.days, gpus, "; ".join(notes))


def _accelerator(best: Candidate, outcomes: dict[str, Candidate | Refusal]) -> Decision:
    others = [outcome for outcome in outcomes.values() if isinstance(outcome, Candidate) and outcome.name != best.name]
    refusals = {name: outcome.problem for name, outcome in outcomes.items() if isinstance(outcome, Refusal)}
    refused = [f"{name} ({problem})" for name, problem in refusals.items() if problem != "price"]
    unpriced = [name for name, problem in refusals.items() if problem == "price"]
    reason = f"the cheapest of {len(outcomes) - len(unpriced)} that does it: {best.total:,.0f} USD"
    if best.training is not None:
        low, high = (best.sheet[f"total_cost_{word}"] for word in ("low", "high"))
        reason += f" ({low:,.0f} to {high:,.0f} at the errors of published runs)"
    reason += f"; not feasible: {', '.join(refused)}" if refused else ""
    reason += f"; left out, because no price of a cloud is known: {', '.join(unpriced)}" if unpriced else ""
    margin = "the only one"
    if others:
        dearer = others[0].total / best.total - 1
        error = _errors(best, others[0])
        tie = f": a tie, because predictions spread by {error:.0%} around published runs" if dearer < error else ""
        margin = f"the next costs {dearer:.0%} more{tie}"
    return Decision(
        "accelerator", best.name, reason, margin, others[0].name if others else "none", "threeloops.capstone.costing"
    )


def _parallelism(part: TrainingPart) -> Decision:
    step = part.step
    plan = part.step.plan
    axes = (plan.dp, plan.cp, plan.pp, plan.tp)
    other = next((e for e in part.candidates if (e.plan.dp, e.plan.cp, e.plan.pp, e.plan.tp) != axes), None)
    return Decision(
        "parallelism",
        _words(plan),
        f"the fastest of {len(part.candidates)} that fit: {readable_seconds(step.seconds)} per step, MFU {step.mfu:.0%}"
        f"; {_exposed(step)}{_idle(part)}",
        _margin(part, other) if other else "the only one that fits",
        _words(other.plan) if other else "none",
        "threeloops.training.planning.plans",
    )


def _errors(one: Candidate, other: Candidate) -> float:
    """The error of a comparison of two accelerators: the larger spread of published runs around their predictions."""
    if one.training is None:
        return 0.0
    return max(part.error.spread for candidate in (one, other) if (part := candidate.training) is not None)


def _margin(part: TrainingPart, other: StepTime) -> str:
    faster = other.seconds / part.step.seconds - 1
    spread = part.error.spread
    tie = f": a tie, because predictions spread by {spread:.0%} around published runs" if faster < spread else ""
    return f"{faster:.1%} faster{tie}"


def _idle(part: TrainingPart) -> str:
    if not part.idle_gpus:
        return ""
    return (
        f"; {part.idle_gpus} of {part.scenario.cluster.gpus} GPUs stay idle and are not paid for, because no plan with "
        "more of them is done much sooner"
    )


def _exposed(step: StepTime) -> str:
    """Name the largest part of the time that is not computation."""
    parts = {"tensor parallelism": step.tensor, "context parallelism": step.context, "the bubble": step.bubble}
    parts |= {"expert parallelism": step.expert, "gradients and parameters": step.data}
    name = max(parts, key=lambda name: parts[name])
    return f"{parts[name] / step.seconds:.1%} of it waits for {name}" if parts[name] else "nothing in it waits"


def _words(plan: Parallelism) -> str:
    axes = [f"{name.upper()} {size}" for name in ("dp", "cp", "pp", "tp") if (size := getattr(plan, name)) > 1]
    experts = f", EP {plan.ep}" if plan.ep > 1 else ""
    chunks = f", {plan.chunks} chunks per stage" if plan.chunks > 1 else ""
    loss = f", loss in {plan.loss_chunks} parts" if plan.loss_chunks > 1 else ""
    return f"{' × '.join(axes) or 'one GPU'}{experts}, ZeRO-{plan.zero}{chunks}, recompute {plan.recompute}{loss}"


def _recomputation(part: TrainingPart) -> Decision:
    """Compare what backward computes again with the other ways, on the same axes."""
    step = part.step
    model = part.scenario.trained
    most = max(rank.total for rank in part.memory)
    usable = ALLOCATED_SHARE * part.machine.memory_bytes
    others = []
    for name in get_args(Recompute):
        if name != step.plan.recompute:
            plan = replace(step.plan, recompute=name)
            need = max(rank.total for rank in memory(model, plan))
            slower = part.timed(plan).seconds / step.seconds - 1
            verdict = f"{abs(slower):.1%} {'slower' if slower >= 0 else 'faster'}"
            fits = "" if need <= usable else ", which does not fit"
            others.append((need > usable, slower, f"{name}: {readable_bytes(need)}{fits}, {verdict}"))
    return Decision(
        "recomputation",
        step.plan.recompute,
        f"the fastest parallelism needs {readable_bytes(most)} with it, and tensors can have {readable_bytes(usable)}",
        f"{readable_bytes(usable - most)} are left",
        min(others)[-1],
        "threeloops.training.planning.memory",
    )


def _training_precision(part: TrainingPart) -> Decision:
    model = part.scenario.trained
    half = "BF16" if "bf16" in part.gpu.rates else "FP16"
    if part.machine.product_flops is not None:
        slower = step_time(model, replace(part.machine, product_flops=None), part.step.plan, part.costs_of)
        return Decision(
            "training precision",
            "FP8",
            f"as asked for: the matmuls of layers run in FP8, attention and head in {half}, with float32 masters and "
            "gradients. The planner has no model of what this does to the loss",
            f"{slower.seconds / part.step.seconds:.2f} times as fast as {half}",
            f"{half} matmuls",
            "threeloops.training.planning.step_time",
        )
    reason = f"{half} matmuls with float32 masters and gradients"
    reason += "; needs no loss scaling" if half == "BF16" else f"; {part.gpu.name} has no BF16, so the loss is scaled"
    if "fp8" not in part.gpu.rates:
        return Decision("training precision", half, reason, "the only one", "none", "threeloops.hardware.accelerators")
    share = part.machine.flops / part.machine.peak_flops
    faster = replace(part.machine, product_flops=share * part.gpu.rate("fp8"))
    best = step_time(model, faster, part.step.plan, part.costs_of).seconds
    return Decision(
        "training precision",
        half,
        f"{reason}. The planner has no model of what FP8 does to the loss, so it is not chosen unasked",
        f"FP8 would make a step of this parallelism {part.step.seconds / best:.2f} times as fast",
        'FP8 matmuls (training.precision = "fp8")',
        "threeloops.training.planning.step_time",
    )


def _interval(part: TrainingPart) -> Decision:
    interval, share = part.synchronous
    size = readable_bytes(part.checkpoint_bytes)
    stop = readable_seconds(part.save)
    later = readable_duration(part.flush)
    nodes = -(-part.gpus // part.scenario.cluster.gpus_per_node)
    rates = [*(failures_per_node_day(run) for run in MEASURED), RSC1_PER_NODE_DAY]
    often, seldom = (readable_duration(cluster_mtbf(86400 / rate, nodes)) for rate in (max(rates), min(rates)))
    return Decision(
        "checkpoint interval",
        f"every {readable_duration(part.interval)}, in the background",
        f"the job fails every {readable_duration(part.mtbf)} (at the rates of four published clusters: every {often} "
        f"to {seldom}); a save of {size} stops it for {stop} and is on storage {later} later; {part.share:.2%} of the "
        "time is useful",
        f"{part.share - share:.2%} of the time",
        f"stop for each save, every {readable_duration(interval)}: {share:.2%} useful",
        "threeloops.training.elastic.goodput.best_interval",
    )


def _spares(part: TrainingPart) -> Decision:
    hours = part.scenario.cluster.repair_hours
    reason = f"the job fails every {readable_duration(part.mtbf)}, and a node is repaired in {hours:g} h"
    if part.spares:
        reason += "; one failure in a hundred may find no spare"
        other = f"none: the job waits for each repair, {part.other_share:.1%} useful"
    else:
        reason += "; waiting for that costs less than a node that stands by"
        other = f"{part.other_spares}: {part.other_share:.2%} useful"
    return Decision(
        "spare nodes",
        str(part.spares),
        reason,
        f"{part.spares_saving:.1%} fewer GPU-hours",
        other,
        "threeloops.training.elastic.goodput.spares_needed",
    )


def _replica(part: ServingPart) -> Decision:
    best = part.replica
    other = part.others[0] if part.others else None
    limit = "memory" if best.model.seats == best.room else "the promised time per token, or by what an engine runs"
    fewer = f"{1 - best.fleet_gpus / other.fleet_gpus:.0%} fewer GPUs" if other else "the only size"
    return Decision(
        "replica",
        f"{best.gpus} × {part.gpu.name}, {best.model.seats} seats",
        f"{best.requests_per_second:.3g} requests/s each; the highest rate keeps {best.fleet_gpus:.3g} GPUs busy, the "
        f"fewest of all sizes; the seats are limited by {limit}",
        fewer,
        f"{other.gpus} × {part.gpu.name}" if other else "none",
        "threeloops.product.fleet.shared_model",
    )


def _serving_precision(best: Candidate) -> Decision:
    part = best.serving
    assert part is not None
    chosen = part.serving.precision
    other = next(
        (precision for precision in ("fp8", "int8", "bf16") if precision != chosen and precision in part.gpu.rates),
        None,
    )
    return Decision(
        "serving precision",
        chosen.upper(),
        f"as asked for: weights take {readable_bytes(part.replica.weights_bytes)}, keys and values of all seats "
        f"{readable_bytes(part.replica.cache_bytes)}",
        "what a smaller type costs in quality has to be measured (threeloops.product.quantized)",
        other.upper() if other else "none",
        "threeloops.product.batching.RooflineCost",
    )


def _fleet(part: ServingPart) -> Decision:
    busy = max(part.day.demand) / part.replica.requests_per_second
    fixed = 24 * part.most_replicas
    return Decision(
        "fleet",
        f"{part.autoscaler.minimum} to {part.most_replicas} replicas, {part.autoscaler.target:.0f} requests on each",
        f"in the worst burst {part.attainment:.1%} of requests get what was promised to {part.serving.slo_share:.0%}; "
        f"the highest rate keeps {busy:.1f} replicas busy",
        f"{1 - part.replica_hours / fixed:.0%} fewer replica-hours",
        f"{part.most_replicas} replicas all day: {fixed} replica-hours instead of {part.replica_hours:.0f}",
        "threeloops.product.fleet.simulate",
    )


def _ownership(best: Candidate) -> Decision:
    sheet = best.sheet
    rent = sheet["rent_per_gpu_hour"]
    model = "threeloops.capstone.costing"
    if "own_per_gpu_hour" not in sheet.rows:
        reason = f"{rent:.2f} USD per GPU-hour; no price of owning is known"
        return Decision("rent or own", "rent", reason, "the only one", "none", model)
    own = sheet["own_per_gpu_hour"]
    use = sheet["owned_utilisation"]
    outlay = sheet["outlay"]
    even = f"{sheet['break_even_utilisation']:.0%}" if "break_even_utilisation" in sheet.rows else "no utilisation"
    reason = (
        f"buying {sheet['owned_gpus']:.0f} GPUs takes {outlay:,.0f} USD at once; an owned GPU-hour costs {own:,.2f} "
        f"USD if the hardware has work {100 * use:.2g}% of its life, a rented one {rent:.2f}; owning is cheaper "
        f"from {even} on"
    )
    budget = best.scenario.budget.total
    if not best.scenario.prices.owning:
        reason = f"prices.owning = false; {reason}"
    elif budget is not None and outlay > budget:
        reason = f"the budget of {budget:,.0f} USD does not pay for the hardware: {reason}"
    return Decision(
        "rent or own",
        "own" if best.owned else "rent",
        reason,
        f"{abs(rent - own) / max(rent, own):.0%} per GPU-hour",
        "rent" if best.owned else "own",
        model,
    )
