"""The planner's predictions beside training runs that others have published."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from threeloops.training.planning import ALLOCATED_SHARE, PUBLISHED, PublishedRun, memory, plans, step_time

from benchmarks.result import Prediction

__all__ = ["plan_facts", "plan_note", "plan_predictions"]


def plan_predictions() -> list[Prediction]:
    """Memory that the allocator reserves, where it is published, and step times."""
    found = []
    for run in PUBLISHED:
        case = f"{run.name}, {run.source}" + (f" ({run.unlike})" if run.unlike else "")
        if run.memory_gib:
            reserved = max(each.total for each in memory(run.model, run.plan)) / ALLOCATED_SHARE
            found.append(Prediction("memory reserved", case, run.source, "bytes", reserved, run.memory_gib * 2**30))
        seconds = step_time(run.model, run.machine, run.plan).seconds
        found.append(Prediction("step time", case, run.source, "s", seconds, run.seconds))
    return found


def plan_facts() -> list[dict[str, Any]]:
    """Placements: how much longer the published one takes, as we predict it, than our best of the same kind (stage of
    ZeRO, recomputation, microbatches of one sequence, no chunks)."""
    return [_placement(run) for run in PUBLISHED if run.plan.microbatch == 1 and run.source != "torchtitan"]


def _placement(run: PublishedRun) -> dict[str, Any]:
    plan = replace(run.plan, chunks=1)
    best = plans(
        run.model, run.machine, plan.gpus, plan.batch, plan.sequence,
        context=plan.cp > 1, zero=(plan.zero,), recompute=(plan.recompute,), chunks=(1,),
    )[0]  # fmt: skip
    axes = {
        who: " × ".join(f"{name} {getattr(each, name)}" for name in ("tp", "cp", "pp", "dp"))
        for who, each in (("published", plan), ("ours", best.plan))
    }
    longer = step_time(run.model, run.machine, plan).seconds / best.seconds - 1
    return {"run": f"{run.name}, {run.source}", **axes, "published takes longer by": longer}


def plan_note(placements: list[dict[str, Any]]) -> str:
    """How many published placements are among our best, and which are not."""
    longer = {each["run"]: each["published takes longer by"] for each in placements}
    far = [f"{run} ({more:.0%})" for run, more in longer.items() if more > 0.1]
    near = max(more for more in longer.values() if more <= 0.1)
    return (
        f"plans: as we predict them, {len(longer) - len(far)} of {len(longer)} published placements take at most "
        f"{near:.1%} longer than our best; not so {', '.join(far) or 'none'}"
    )
