"""The contents of a plan's figures, as data."""

import math

from threeloops.capstone.costing import Candidate
from threeloops.capstone.plan import Bars, Figure, Gantt, Lines, Series, Span
from threeloops.capstone.serving import ServingPart
from threeloops.capstone.sheet import evaluate
from threeloops.capstone.training import TrainingPart
from threeloops.training.elastic.goodput import useful_share
from threeloops.training.pipeline import Durations, Timeline, interleaved, one_f_one_b, simulate
from threeloops.units import readable_duration

__all__ = ["figures"]

_RANKS = 8
_MICROBATCHES = 12
_POINTS = 48


def figures(best: Candidate) -> tuple[Figure, ...]:
    pictures: list[Figure] = []
    if best.training is not None:
        pictures += [_memory(best.training), _schedule(best.training), _goodput(best.training)]
    if best.serving is not None:
        pictures.append(_replicas(best.serving))
    if "own_per_gpu_hour" in best.sheet.rows:
        pictures.append(_ownership(best))
    return tuple(pictures)


def _memory(part: TrainingPart) -> Bars:
    """Return the memory of a limited number of pipeline ranks, including the first and the last."""
    ranks = _spread(len(part.memory), _RANKS)
    names = ("states", "gradients", "gathered", "activations", "working")
    labels = ("masters and optimizer states", "gradients", "gathered parameters", "activations", "working memory")
    places = tuple(map(float, range(len(ranks))))
    parts = tuple(
        Series(label, places, tuple(getattr(part.memory[rank], name) for rank in ranks))
        for name, label in zip(names, labels, strict=True)
    )
    most = max(rank.total for rank in part.memory)
    return Bars(
        "memory",
        f"Memory of a {part.gpu.name} at its peak",
        f"Stacked bars of the memory of {len(ranks)} pipeline ranks; the fullest takes {most / 2**30:.1f} GiB of "
        f"{part.machine.memory_bytes / 2**30:.0f} GiB.",
        tuple(f"stage {rank}" if len(part.memory) > 1 else "each GPU" for rank in ranks),
        "bytes",
        parts,
        part.machine.memory_bytes,
        f"memory of a {part.gpu.name}",
    )


def _schedule(part: TrainingPart) -> Gantt:
    """The beginning of a step, or all of it if it is short: a few microbatches of a few stages."""
    step = part.step
    plan = part.step.plan
    model = part.scenario.trained
    count = min(plan.microbatches, max(_MICROBATCHES, plan.pp))
    if plan.chunks > 1:
        count = max(plan.pp, count - count % plan.pp)
    forward = model.layer_flops(plan.tokens, plan.sequence)
    again = model.recomputed_flops(plan.tokens, plan.sequence, plan.recompute)
    backward = model.backward_flops(plan.tokens, plan.sequence)
    per_chunk = (step.compute + step.tensor + step.context + step.expert) / plan.microbatches / plan.chunks
    share = forward / (forward + backward + again)
    durations = Durations(forward=share * per_chunk, backward=(1 - share) * per_chunk)
    if plan.chunks > 1:
        schedule = interleaved(plan.pp, count, plan.chunks)
    else:
        schedule = one_f_one_b(plan.pp, count)
    timeline: Timeline = simulate(schedule, durations)
    rows = _spread(plan.pp, _RANKS)
    spans = tuple(
        Span(
            row,
            timed.start,
            timed.end,
            "forward" if timed.action.kind == "F" else "backward",
            str(timed.action.microbatch),
            timed.action.stage // plan.pp,
        )
        for row, rank in enumerate(rows)
        for timed in timeline.rows[rank]
    )
    what = "a step" if count == plan.microbatches else f"the first {count} of {plan.microbatches} microbatches"
    return Gantt(
        "schedule",
        f"{what[0].upper()}{what[1:]} on {plan.pp} pipeline stage{'s' if plan.pp > 1 else ''}",
        f"Forward and backward passes of {count} microbatches on {len(rows)} of {plan.pp} stages; a step takes "
        f"{readable_duration(step.seconds)}.",
        tuple(f"stage {rank}" for rank in rows),
        spans,
    )


def _goodput(part: TrainingPart) -> Lines:
    """Useful share against the interval, for a save in the background and for one that stops the job."""
    background = []
    blocking = []
    low = max(part.step.seconds, part.flush, 1.0)
    high = max(20 * low, min(part.mtbf, 20 * max(part.interval, part.synchronous[0])))
    for place in range(_POINTS):
        interval = low * (high / low) ** (place / (_POINTS - 1))
        background.append((interval, useful_share(interval, part.save, part.recovery, part.mtbf, part.flush)))
        blocking.append((interval, useful_share(interval, part.flush, part.recovery, part.mtbf)))
    return Lines(
        "goodput",
        "Useful share of the time",
        f"Two curves over the time between checkpoints; saving in the background is best at "
        f"{readable_duration(part.interval)} with {part.share:.2%}, and stopping the job for it at "
        f"{readable_duration(part.synchronous[0])} with {part.synchronous[1]:.2%}.",
        "seconds of work between two checkpoints",
        "useful share",
        (_series("saved in the background", background), _series("saved while the job stops", blocking)),
        log_x=True,
        mark=part.interval,
        mark_label="planned",
    )


def _ownership(best: Candidate) -> Lines:
    """Cost of the plan, rented and owned, against the share of time in which owned hardware has work."""
    sheet = best.sheet
    values = {quantity.name: quantity.value for quantity in sheet.rows.values()}
    hours = sheet["total_cost"] / sheet["gpu_hour_price"]
    uses = [0.1 + 0.9 * place / (_POINTS - 1) for place in range(_POINTS)]
    owned = [
        (use, hours * evaluate(sheet.rows["own_per_gpu_hour"].formula, {**values, "owned_utilisation": use}))
        for use in uses
    ]
    rented = [(use, hours * sheet["rent_per_gpu_hour"]) for use in uses]
    mark = values.get("break_even_utilisation")
    mark = mark if mark is not None and mark <= 1 else None
    crossing = f"they cross at {mark:.0%}" if mark else "owning is dearer at every utilisation"
    return Lines(
        "ownership",
        "Renting against owning",
        f"Cost of the plan against the utilisation of owned hardware; {crossing}.",
        "share of its life in which owned hardware has work",
        "USD",
        (_series("owned", owned), _series("rented", rented)),
        mark=mark,
        mark_label="break-even" if mark else "",
    )


def _replicas(part: ServingPart) -> Lines:
    """Return the replicas of a day: those that exist, and the number that the current demand would need."""
    day = part.day
    rate = part.replica.requests_per_second
    step = max(1, len(day.at) // 288)
    hours = tuple(at / 3600 for at in day.at[::step])
    ready = tuple(map(float, day.ready[::step]))
    paid = tuple(float(a + b) for a, b in zip(day.ready[::step], day.starting[::step], strict=True))
    needed = tuple(demand / rate for demand in day.demand[::step])
    return Lines(
        "replicas",
        "Replicas over the day",
        f"Replicas that are paid for, ready and needed over 24 hours; at most {part.most_replicas} are paid for, "
        f"{part.replica_hours:.0f} replica-hours in all.",
        "hour of the day",
        "replicas",
        (
            Series("paid for", hours, paid, step=True),
            Series("ready", hours, ready, step=True),
            Series("busy, if none were to spare", hours, needed),
        ),
    )


def _series(label: str, points: list[tuple[float, float]]) -> Series:
    return Series(label, tuple(x for x, _ in points), tuple(y for _, y in points))


def _spread(count: int, most: int) -> list[int]:
    """Choose at most `most` of `count` places, including the first and the last."""
    if count <= most:
        return list(range(count))
    return sorted({math.floor(place * (count - 1) / (most - 1)) for place in range(most)})
