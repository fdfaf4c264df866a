"""Recovery by restart on the virtual cluster, like torchrun and Slurm: runs whose clocks follow one another.

When a rank dies, the agent notices it after `detect` seconds and ends all ranks. It starts all of them again `restart`
seconds later, on the same machine or on what is left of it. A run knows only what the runs before it have saved. So the
job reaches its state at the death again after

    recovery = detect + restart + load + (death − last save)

seconds. The last term is the repeated work, if the machine is as fast as before. It counts from the moment when
training continued after that save. An asynchronous save contains the state of that moment, however late it is usable.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from threeloops.training.cluster import Cluster, RankDies, RankLost, Run, Topology

__all__ = ["Attempt", "recovery_seconds", "run_with_restarts"]


@dataclass(frozen=True)
class Attempt:
    """One start of the job. Times are seconds since the job's beginning, except those of `run`, which count from
    `start`."""

    start: float
    died: float | None
    """The time at which its first rank died, or None if it completed."""
    run: Run

    @property
    def end(self) -> float:
        """The time at which the job was done. It has no meaning for an attempt in which a rank died."""
        return self.start + self.run.seconds


def recovery_seconds(death: float, last_save: float, detect: float, restart: float, load: float) -> float:
    """Return the time from a death until the job is as far as it was then. `last_save` is when training continued after
    the last save that is usable at the death."""
    if not last_save <= death:
        raise ValueError(f"last_save = {last_save} s, death = {death} s: expected a save before the death")
    return detect + restart + load + (death - last_save)


def run_with_restarts(
    program: Callable[..., Any],
    *arguments: Any,
    machines: Sequence[Topology | int],
    deaths: Sequence[RankDies],
    detect: float,
    restart: float,
) -> list[Attempt]:
    """Start `program(*arguments)` on the first machine, and after each death on the next one (the last for all others).

    Args:
        machines: for example four ranks, and then the two that are left.
        deaths: at most one per attempt, at times of the whole job, in order. The rank is that of its attempt. A death
            between two attempts is ignored.

    Raises:
        ValueError: the deaths are not in order.
        RankFailed: a rank failed for another reason than the death of one.
    """
    if [death.at for death in deaths] != sorted(death.at for death in deaths):
        raise ValueError(f"deaths at {[death.at for death in deaths]} s: expected them in order of time")
    attempts: list[Attempt] = []
    start = 0.0
    remaining = list(deaths)
    while True:
        while remaining and remaining[0].at < start:
            remaining.pop(0)
        faults = [RankDies(remaining[0].rank, remaining[0].at - start)] if remaining else []
        cluster = Cluster(machines[min(len(attempts), len(machines) - 1)], faults, timeout=detect)
        run = cluster.run(_until_lost, program, arguments)
        died = start + min(run.died.values()) if run.died else None
        attempts.append(Attempt(start, died, run))
        if died is None:
            return attempts
        remaining.pop(0)
        start = died + detect + restart


def _until_lost(program: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Run the program until a rank is lost. The agent ends the ranks that wait for it."""
    try:
        return program(*arguments)
    except RankLost:
        return None
