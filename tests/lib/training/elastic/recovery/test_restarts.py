"""Restarts on the virtual cluster: what they cost is exact, and the loss is that of a run that nothing happened to."""

import pytest
import torch
import torch.distributed as dist
from elastic_training import Folder, Replicas, alone, values
from threeloops.training.cluster import Cluster, RankDies, RankFailed, compute, now, uniform
from threeloops.training.elastic.recovery import Members, recovery_seconds, run_with_restarts

ALPHA = 2**-10
STEPS, EVERY, STEP, SAVE, LOAD, DETECT, RESTART = 10, 3, 0.25, 0.5, 0.125, 2.0, 4.0


def job(folder, kind):
    """Train, save and resume; each step, and when it was done. `kind` "steps" computes and agrees, and has no model."""
    members = Members()
    saved = Folder(members, folder, SAVE, LOAD)
    trainer = Replicas(members, STEP) if kind == "training" else None
    done, times = 0, []
    if (found := saved.load()) is not None:
        done = found[0]
        if trainer:
            trainer.load(found[1])
    for number in range(done, STEPS):
        if trainer:
            trainer.step(number)
        else:
            compute(STEP)
            dist.barrier()
        times.append((number, now()))
        if (number + 1) % EVERY == 0:
            saved.save(number + 1, trainer.state() if trainer else None)
    return times, values(trainer.net) if trainer else None


def machines(*ranks):
    return [uniform(count, ALPHA, 2**20) for count in ranks]


def restarted(folder, deaths, kind="steps", ranks=(4,)):
    folder.mkdir(exist_ok=True)
    return run_with_restarts(
        job, str(folder), kind, machines=machines(*ranks), deaths=deaths, detect=DETECT, restart=RESTART
    )


def step_seconds(ranks):
    return STEP + (ranks - 1) * ALPHA


def save_seconds(ranks):
    """Two barriers."""
    return SAVE + 2 * (ranks - 1) * ALPHA


def finished(steps, ranks=4):
    """When so many steps are done and, where it is time, saved."""
    return steps * step_seconds(ranks) + steps // EVERY * save_seconds(ranks)


def test_without_deaths_there_is_one_attempt(tmp_path):
    (only,) = restarted(tmp_path, [])
    assert only.start == 0 and only.died is None and only.end == finished(STEPS)


@pytest.mark.parametrize(("rank", "at"), [(2, 2.5), (0, 2.375), (3, 0.1), (1, 3.0)])
def test_the_time_of_recovery_is_that_of_the_closed_form(rank, at, tmp_path):
    """As `recovery_seconds` says, and so is the end: no step takes longer than before."""
    first, second = restarted(tmp_path, [RankDies(rank, at)])
    saved = max(steps for steps in (0, 3, 6, 9) if finished(steps) <= at)
    load = LOAD if saved else 0.0
    assert first.died == at and second.start == at + DETECT + RESTART and second.died is None
    recovery = recovery_seconds(at, finished(saved), DETECT, RESTART, load)
    assert second.end == finished(STEPS) + recovery
    assert [number for number, _ in second.run.results[0][0]] == list(range(saved, STEPS))
    done = sum(finished(number + 1) - save_seconds(4) * ((number + 1) % EVERY == 0) <= at for number in range(STEPS))
    if done > saved:  # the last step that was done before the death is done again
        again = dict(second.run.results[0][0])[done - 1] + second.start
        assert again == at + recovery - (at - (finished(done) - save_seconds(4) * (done % EVERY == 0)))


def test_a_death_during_a_save_leaves_the_checkpoint_before(tmp_path):
    at = finished(6) - save_seconds(4) / 2
    _, second = restarted(tmp_path, [RankDies(2, at)])
    assert second.run.results[0][0][0][0] == 3
    assert second.end == finished(STEPS) + recovery_seconds(at, finished(3), DETECT, RESTART, LOAD)


def test_a_worker_and_then_its_node_are_killed_and_the_parameters_are_the_same(tmp_path):
    """Four ranks, of which a worker dies and is restarted; then a node with two of them is gone for good."""
    undisturbed = restarted(tmp_path / "undisturbed", [], "training")[0].run.results[0][1]
    worker = restarted(tmp_path / "worker", [RankDies(2, 1.9)], "training")
    assert len(worker) == 2
    assert all(torch.equal(result[1], undisturbed) for result in worker[-1].run.results)
    both = restarted(tmp_path / "both", [RankDies(2, 1.9), RankDies(3, 10.0)], "training", ranks=(4, 4, 2))
    assert [attempt.run.topology.ranks for attempt in both] == [4, 4, 2]
    assert [attempt.died for attempt in both] == [1.9, 10.0, None]
    for result in both[-1].run.results:
        torch.testing.assert_close(result[1], alone(STEPS)[0], rtol=1e-11, atol=1e-13)


def test_fewer_ranks_are_slower_and_the_end_says_so(tmp_path):
    first, second = restarted(tmp_path, [RankDies(2, 2.5)], ranks=(4, 2))
    assert second.start == 8.5 and finished(6) > 2.5 > finished(3)
    left = STEPS - 3
    assert second.run.seconds == LOAD + left * step_seconds(2) + 2 * save_seconds(2)


def test_a_death_while_nothing_runs_kills_nobody(tmp_path):
    deaths = [RankDies(1, 2.5), RankDies(1, 5.0), RankDies(0, 9.0)]
    attempts = restarted(tmp_path, deaths)
    assert [attempt.died for attempt in attempts] == [2.5, 9.0, None]


def test_a_death_after_the_end_changes_nothing(tmp_path):
    (only,) = restarted(tmp_path, [RankDies(1, 1000.0)])
    assert only.died is None


def test_other_failures_are_no_deaths():
    def fails():
        raise ZeroDivisionError("a bug")

    with pytest.raises(RankFailed, match="a bug"):
        run_with_restarts(fails, machines=[2], deaths=[], detect=1, restart=1)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"deaths at \[2.0, 1.0\] s"):
        run_with_restarts(dist.barrier, machines=[2], deaths=[RankDies(0, 2.0), RankDies(0, 1.0)], detect=1, restart=1)
    with pytest.raises(ValueError, match="last_save = 5"):
        recovery_seconds(4, 5, 1, 1, 1)
    assert Cluster(1).run(now).results == (0.0,)
