"""Probes over time: what a kubelet does with a container that loads, hangs, or never answers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.product.fleet import Kubelet, Probe, Probes, probe_timeline


def loads_for(seconds: float):
    """A server with one endpoint for all, which answers once the model is loaded."""
    return lambda path, age: 0.01 if age >= seconds else math.inf


def what(events, *kinds: str) -> list[tuple[float, str]]:
    return [(event.at, event.what) for event in events if not kinds or event.what in kinds]


def test_a_model_that_loads_for_minutes_behind_a_liveness_probe_alone_restarts_for_ever():
    """svc-4: one /health for both probes, liveness after 30 s."""
    probes = Probes(readiness=Probe("/health"), liveness=Probe("/health", initial_delay=30))
    events = probe_timeline(probes, loads_for(150), 24 * 3600)
    kills = [at for at, _ in what(events, "killed")]
    assert not what(events, "ready")
    assert kills[:5] == [50, 100, 160, 230, 320], "50 s after each start, which waits for 0, 10, 20 and 40 s more"
    assert len(kills) > 200 and {round(b - a) for a, b in zip(kills[8:], kills[9:], strict=False)} == {350}
    assert "liveness probe failed 3 times" in next(event.why for event in events if event.what == "killed")


def test_a_startup_probe_lets_the_same_model_start_and_then_liveness_watches_it():
    probes = Probes(Probe("/health", failure_threshold=30), Probe("/health"), Probe("/health"))
    assert what(probe_timeline(probes, loads_for(150), 3600)) == [(0, "runs"), (150, "started"), (150, "ready")]


@given(st.floats(0, 400), st.integers(1, 20), st.floats(0.5, 30), st.floats(0, 60))
def test_a_startup_probe_admits_exactly_the_loading_times_up_to_its_patience(seconds, threshold, period, delay):
    probe = Probe("/ready", initial_delay=delay, period=period, failure_threshold=threshold)
    events = probe_timeline(Probes(startup=probe), loads_for(seconds), 3600)
    if seconds <= probe.patience - 1e-6:
        assert not what(events, "killed")
        started = next(at for at, kind in what(events) if kind == "started")
        assert seconds <= started + 1e-6 and started <= max(seconds, delay) + period + 1e-6
    elif seconds > probe.patience + 1e-6:
        assert not what(events, "started") and what(events, "killed")[0][0] == pytest.approx(probe.patience)


def test_readiness_takes_a_replica_out_and_lets_it_back_without_a_restart():
    probes = Probes(readiness=Probe("/ready", period=5, failure_threshold=2, success_threshold=2))
    busy = lambda path, age: math.inf if 20 <= age < 41 else 0.0  # noqa: E731
    events = probe_timeline(probes, busy, 100)
    assert what(events) == [(0, "runs"), (0, "started"), (5, "ready"), (25, "unready"), (50, "ready")]


def test_liveness_ends_a_container_that_hangs_and_the_next_one_is_ready_again():
    """The container's age begins anew, so the second one hangs after an hour as well."""
    probes = Probes(Probe("/ready", failure_threshold=30), Probe("/ready", period=5), Probe("/health"), grace=30)
    respond = lambda path, age: math.inf if age >= 3600 else loads_for(60)(path, age)  # noqa: E731
    events = probe_timeline(probes, respond, 4000)
    assert what(events) == [
        (0, "runs"), (60, "started"), (60, "ready"), (3610, "unready"), (3620, "killed"),
        (3650, "runs"), (3710, "started"), (3710, "ready"),
    ]  # fmt: skip


def test_without_a_readiness_probe_a_replica_gets_requests_while_it_loads():
    events = probe_timeline(Probes(liveness=Probe(failure_threshold=100)), loads_for(150), 10)
    assert what(events) == [(0, "runs"), (0, "started"), (0, "ready")]


def test_an_answer_after_the_timeout_is_a_failure():
    slow = lambda path, age: 1.5  # noqa: E731
    assert what(probe_timeline(Probes(liveness=Probe(timeout=1)), slow, 60), "killed")
    assert not what(probe_timeline(Probes(liveness=Probe(timeout=2)), slow, 60), "killed")


def test_ten_good_minutes_forgive_the_crashes_before():
    kubelet, waits = Kubelet(Probes(), loads_for(0)), []
    for life in (1, 1, 1, 1, 1, 1, 1, 1, 700, 1, 1):
        kubelet.tick(kubelet.next)
        died = kubelet.running_since + life
        events = kubelet.exited(died, "out of memory")
        assert [event.what for event in events] == ["unready", "exited"] and events[-1].why == "out of memory"
        waits.append(kubelet.next - died)
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300, 0, 10, 20]
    assert kubelet.restarts == 11


def test_a_container_that_does_not_run_cannot_exit_and_without_probes_nothing_is_due():
    kubelet = Kubelet(Probes(), loads_for(0), now=5)
    assert kubelet.exited(1) == [] and kubelet.tick(4) == [] and kubelet.next == 5
    kubelet.tick(5)
    assert kubelet.ready and kubelet.next == math.inf


@given(st.floats(0, 200), st.integers(1, 5), st.sampled_from([1.0, 7.0, 10.0]), st.floats(20, 500))
def test_leaving_out_probes_that_change_nothing_changes_nothing(seconds, threshold, period, hangs):
    """The simulation asks no probes between the moment at which a replica is ready and its next failure."""
    probes = Probes(Probe(failure_threshold=60), Probe(period=5), Probe(period=period, failure_threshold=threshold))
    dead = seconds + hangs
    respond = lambda path, age: math.inf if age < seconds or age >= dead else 0.0  # noqa: E731
    whole = probe_timeline(probes, respond, dead + 200)
    kubelet, events = Kubelet(probes, respond), []
    while not kubelet.ready:
        events += kubelet.tick(kubelet.next)
    kubelet.skip_to(dead)
    while kubelet.next <= dead + 200:
        events += kubelet.tick(kubelet.next)
    assert [(round(event.at, 6), event.what) for event in events] == [(round(e.at, 6), e.what) for e in whole]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Probe(period=0), "period = 0"),
        (lambda: Probe(initial_delay=-1), "initial_delay = -1"),
        (lambda: Probe(timeout=math.inf), "timeout = inf"),
        (lambda: Probe(failure_threshold=0), "failure_threshold = 0"),
        (lambda: Probe(success_threshold=1.5), "success_threshold = 1.5"),
        (lambda: Probes(liveness=Probe(success_threshold=2)), "of the liveness probe: Kubernetes admits 1 only"),
        (lambda: Probes(grace=-1), "grace = -1"),
    ],
)
def test_settings_out_of_range_are_named(make, named):
    with pytest.raises(ValueError, match=named):
        make()
