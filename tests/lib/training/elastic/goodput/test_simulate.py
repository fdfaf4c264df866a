"""The simulator against scenarios computed by hand, against closed forms, and its accounts."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.training.elastic.goodput import (
    Account,
    Job,
    best_interval,
    expected_seconds,
    simulate,
    spares_needed,
    useful_share,
)

YEAR = 365 * 86400.0


def with_lives(monkeypatch, lives):
    """Nodes live as long as this, in the order in which they come into use, and then for ever."""
    left = iter([*lives, *[1e9] * 100])
    monkeypatch.setattr("random.Random.weibullvariate", lambda self, scale, shape: next(left))


def test_a_failure_destroys_the_work_since_the_last_checkpoint(monkeypatch):
    """Work 0–10, save 10–12, work 12–15, failure; detected at 16, working at 21; saves 31–33, 43–45; ends at 50."""
    with_lives(monkeypatch, [15])
    found = simulate(Job(1, 1, 10, save=2, restart=5, detect=1), 50)
    assert found == Account(useful=30, lost=3 + 5, save=6, detect=1, restart=5, idle=0, failures=1)


def test_a_checkpoint_counts_when_its_flush_is_over(monkeypatch):
    """The save of 10–11 would be usable at 15. A failure at 14 loses both the 10 s in it and the 3 s after it; one at
    15.5 loses 4.5 s."""
    job = Job(1, 1, 10, save=1, restart=2, flush=4)
    with_lives(monkeypatch, [14])
    assert simulate(job, 16) == Account(useful=0, lost=13, save=1, restart=2, failures=1)
    with_lives(monkeypatch, [15.5])
    assert simulate(job, 17.5) == Account(useful=10, lost=4.5, save=1, restart=2, failures=1)


def test_a_save_waits_for_the_flush_before(monkeypatch):
    """The first save ends at 5, and the next would begin at 9: it waits for the flush until 12, and so on. The
    simulation ends at 29 with a save, whose work is not usable yet."""
    with_lives(monkeypatch, [])
    found = simulate(Job(1, 1, 4, save=1, restart=0, flush=7), 29)
    assert found == Account(useful=3 * 4, lost=4, save=4, idle=3 * 3, failures=0)


def test_a_job_without_a_spare_waits_for_the_repair(monkeypatch):
    """Failure at 5; node back at 35, work at 37. The second of two fails at 10, while the job waits: back at 40."""
    with_lives(monkeypatch, [5])
    found = simulate(Job(1, 1, 10, save=0, restart=2, detect=1, spares=0, repair=30), 50)
    assert found == Account(useful=10, lost=5 + 3, detect=1, idle=29, restart=2, failures=1)
    with_lives(monkeypatch, [5, 10])
    found = simulate(Job(2, 1, 10, save=0, restart=2, detect=1, spares=0, repair=30), 60)
    assert found == Account(useful=10, lost=5 + 8, detect=2, idle=33, restart=2, failures=2)


def test_a_spare_takes_over_and_the_repaired_node_is_the_next_spare(monkeypatch):
    """One spare: the failure at 5 costs detection and restart alone, that at 35 (the spare's life of 30) as well, since
    the first node is repaired by then, and a third at 36 waits for the repair that ends at 55."""
    with_lives(monkeypatch, [5, 30, 1])
    found = simulate(Job(1, 1, 100, save=0, restart=2, detect=1, spares=1, repair=20), 60)
    assert found.failures == 3 and found.detect == 1 + 1 + 1 and found.idle == 55 - 37
    assert found.restart == 2 + 2 and found.useful == 0


def test_a_repair_that_ends_before_the_failure_is_noticed_saves_no_time(monkeypatch):
    """Failure at 5, node back at 7, noticed at 9, work at 11."""
    with_lives(monkeypatch, [5])
    found = simulate(Job(1, 1, 100, save=0, restart=2, detect=4, spares=0, repair=2), 20)
    assert found == Account(lost=5 + 9, detect=4, restart=2, failures=1)


def test_a_failure_during_a_restart_begins_it_anew(monkeypatch):
    with_lives(monkeypatch, [5, 4])
    found = simulate(Job(1, 1, 100, save=0, restart=6, detect=1), 30)
    assert found == Account(lost=5 + 14, detect=2, restart=3 + 6, failures=2)


@settings(deadline=None, max_examples=150)
@given(
    st.builds(
        Job,
        nodes=st.integers(1, 40),
        node_mtbf=st.floats(1, 1e4),
        interval=st.floats(0.1, 300),
        save=st.floats(0, 40),
        restart=st.floats(0, 90),
        flush=st.floats(0, 400),
        detect=st.floats(0, 30),
        spares=st.none() | st.integers(0, 4),
        repair=st.floats(0, 1000),
        shape=st.floats(0.5, 3),
    ),
    st.floats(0.5, 3000),
    st.integers(0, 99),
)
def test_the_seconds_add_up_exactly_and_the_same_seed_gives_the_same_run(job, seconds, seed):
    found = simulate(job, seconds, seed)
    assert found.seconds == round(seconds * 2**20) / 2**20
    assert min(found.useful, found.lost, found.save, found.detect, found.restart, found.idle) >= 0
    assert simulate(job, seconds, seed) == found
    if not found.failures:
        assert found.detect == found.restart == 0 and found.lost <= 2 * job.interval + 1e-5
    if job.spares is None and job.flush <= job.interval:
        assert found.idle == 0


JOBS = {
    "2,048 nodes as Llama 3's": Job(2048, 86400 / 3.79e-3, 800, save=30, restart=480, detect=120),
    "saves too often": Job(100, 1e6, 400, save=60, restart=300),
    "fails every 15 minutes": Job(10, 9000, 550, save=300, restart=60),
    "asynchronous": Job(2048, 86400 / 3.79e-3, 600, save=2, restart=480, flush=500),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_goodput_is_within_one_percent_of_the_closed_form_and_what_is_lost_within_three(job):
    """Over 8,000 failures; the share that is not useful is the harder test, since it is small."""
    seconds = 800 * job.node_mtbf / job.nodes
    found = sum((simulate(job, seconds, seed) for seed in range(10)), Account())
    recovery = job.detect + job.restart
    expected = useful_share(job.interval, job.save, recovery, job.node_mtbf / job.nodes, job.flush)
    assert found.useful_share == pytest.approx(expected, rel=0.01)
    assert 1 - found.useful_share == pytest.approx(1 - expected, rel=0.03)
    assert found.failures == pytest.approx(8_000, rel=0.03)


def test_the_best_interval_is_best_in_simulation():
    job = Job(512, 2e6, 1, save=60, restart=200)
    best = best_interval(60, 2e6 / 512)

    def goodput(interval):
        return sum((simulate(replace(job, interval=interval), YEAR, seed) for seed in range(2)), Account()).useful_share

    there = goodput(best)
    assert there > goodput(best / 2) + 0.003 and there > goodput(best * 2) + 0.003
    assert there == pytest.approx(best / expected_seconds(best, 60, 200, 2e6 / 512), rel=0.02)


def test_enough_spares_leave_little_waiting_and_one_fewer_than_needed_more():
    """Repairs take three times the mean time between failures."""
    job = Job(1000, 1e7, 900, save=5, restart=60, repair=3e4)
    needed = spares_needed(1e4, 3e4, risk=0.02)
    waits = {spares: simulate(replace(job, spares=spares), 2 * YEAR).idle / (2 * YEAR) for spares in (2, needed)}
    assert waits[needed] < 0.005 < 0.1 < waits[2]


def test_early_deaths_cost_a_new_cluster_more():
    """Weibull lives of shape 0.6 and the same mean: more failures in the first months of new nodes, fewer later on."""
    job = Job(500, 2e7, 600, save=5, restart=300)
    early, even = (simulate(replace(job, shape=shape), YEAR / 4, seed=3) for shape in (0.6, 1.0))
    assert early.failures > 1.3 * even.failures and early.useful_share < even.useful_share


@pytest.mark.parametrize("shape", [0.6, 1.0, 3.0])
def test_in_the_long_run_nodes_fail_once_per_mean_life_whatever_the_distribution(shape):
    found = simulate(Job(20, 1000, 1e6, save=1, restart=1, shape=shape), 400_000)
    assert found.failures == pytest.approx(20 * 400, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": 0}, "0 nodes"),
        ({"spares": -1}, "-1 spares"),
        ({"node_mtbf": 0}, "node_mtbf = 0"),
        ({"node_mtbf": float("inf")}, "node_mtbf = inf"),
        ({"interval": 0}, "interval = 0"),
        ({"shape": 0}, "shape = 0"),
        ({"flush": float("inf")}, "flush = inf"),
        ({"restart": -1}, "restart = -1"),
    ],
)
def test_jobs_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(Job(1, 1, 1, 1, 1), **changes)


def test_a_simulation_takes_time():
    with pytest.raises(ValueError, match="seconds = 0"):
        simulate(Job(1, 1, 1, 1, 1), 0)
