"""A fleet of processes under load: replicas are killed, hang, come and go, and nobody's answer is lost in silence."""

import os
import signal
from collections import Counter
from dataclasses import replace

import httpx
import pytest
from real_fleet import Load, done_counts, needs_nginx, stand_in
from threeloops.product.fleet import Autoscaler, Probe, Probes, Rate, ScalingRules
from threeloops.product.fleet.real import RealFleet, scrape, serve_command
from threeloops.product.fleet.real.waiting import free_port, wait_until

pytestmark = needs_nginx

PROBES = Probes(
    startup=Probe("/ready", period=0.05, failure_threshold=400, timeout=2),
    readiness=Probe("/ready", period=0.1, failure_threshold=2, timeout=2),
    liveness=Probe("/health", period=0.1, failure_threshold=3, timeout=0.5),
)


def fleet(folder, replicas=1, **more):
    return RealFleet(stand_in(more.pop("load_seconds", 0.0)), folder, replicas, **{"probes": PROBES, **more})


def more_answers(load, number=20):
    before = len(load.answers)
    wait_until(lambda: len(load.answers) >= before + number, 30, lambda: f"no answers come: {load.statuses}")


def check_answers(load, folder):
    """Each request has one answer or one error of its own, and none was computed twice."""
    assert all(each.status in (200, 502, 503) for each in load.answers), load.statuses
    assert all(each.error_code for each in load.answers if each.status != 200)
    done = done_counts(folder)
    assert set(done.values()) <= {1}
    assert {each.id for each in load.answers if each.status == 200} <= set(done)


def test_a_replica_is_killed_under_load_and_nothing_is_lost_without_an_error(tmp_path):
    with fleet(tmp_path, 3) as running:
        running.wait_for(3)
        with Load(running.url, clients=6, body={"max_tokens": 10}) as load:
            more_answers(load)
            victim = running.containers[1]
            pid = victim.pid
            os.kill(pid, signal.SIGKILL)
            is_back = lambda: victim.pid not in (None, pid) and victim.port in running.serving  # noqa: E731
            recovered = running.wait_until(is_back, 5)
            more_answers(load)
            failed = Counter(load.statuses)
            more_answers(load)
        assert recovered < 5
        check_answers(load, tmp_path)
        assert load.statuses[502] <= 6, "as many as were there when it died, one for each client"
        assert {**load.statuses, 200: 0} == {**failed, 200: 0}, "and none afterwards"
        life = running.lives[1]
        assert life.restarts == 1 and [event.what for event in life.events][:3] == ["runs", "started", "ready"]
        assert "signal 9" in {event.why for event in life.events}


def test_scaling_up_and_down_breaks_off_nothing(tmp_path):
    with fleet(tmp_path, 1, load_seconds=0.3) as running:
        running.wait_for(1)
        with Load(running.url, clients=6, body={"max_tokens": 20}) as load:
            for replicas in (3, 1, 2):
                running.scale(replicas)
                running.wait_for(replicas)
                more_answers(load, 30)
        assert set(load.statuses) == {200}
        check_answers(load, tmp_path)
        drained = [life for life in running.lives if life.gone == life.gone]
        assert len(drained) == 2 and all(life.asked < life.ready < life.drains <= life.gone for life in drained)


def test_an_autoscaler_follows_what_real_replicas_report(tmp_path):
    """Its decisions are those of the same data in virtual time; only the metrics are scraped."""
    quick = ScalingRules(0, (Rate(4, "replicas", 0.3),))
    autoscaler = Autoscaler(target=2, minimum=1, maximum=3, up=quick, down=replace(quick, window=1.0))
    with fleet(tmp_path, 1, autoscaler=autoscaler, period=0.3) as running:
        running.wait_for(1)
        with Load(running.url, clients=8, body={"max_tokens": 40}) as load:
            running.wait_for(3)
            more_answers(load)
        running.wait_for(1)
        assert set(load.statuses) == {200}
        assert any("of a target of 2" in each.reason and each.desired == 3 for each in running.samples)
        assert running.replica_seconds >= running.now()


def test_a_replica_that_hangs_is_killed_by_its_liveness_probe_and_started_again(tmp_path):
    quick = {"timeout": 0.3, "period": 0.1}
    probes = replace(
        PROBES, readiness=Probe("/ready", **quick), liveness=Probe("/health", failure_threshold=5, **quick)
    )
    with fleet(tmp_path, 2, probes=probes) as running:
        running.wait_for(2)
        victim = running.containers[0]
        os.kill(victim.pid, signal.SIGSTOP)
        running.wait_until(lambda: running.serving == (running.containers[1].port,), 30)
        running.wait_until(lambda: len(running.serving) == 2 and victim.kubelet.restarts >= 1, 30)
        kinds = [event.what for event in victim.events]
        assert kinds.index("unready") < kinds.index("killed") < len(kinds) - 1 and kinds[-1] == "ready"
        assert httpx.post(f"{running.url}/v1/completions", json={"max_tokens": 1}).status_code == 200


def test_a_replica_that_never_starts_is_tried_again_with_pauses_and_the_others_serve(tmp_path):
    made = []

    def command(port):
        made.append(port)
        return ["false"] if port == made[0] else stand_in()(port)

    with RealFleet(command, tmp_path, 2, probes=PROBES) as running:
        running.wait_until(lambda: len(running.serving) == 1 and running.lives[0].restarts >= 2, 30)
        assert {event.why for event in running.lives[0].events} >= {"exit code 1"}
        assert running.containers[0].kubelet.next - running.containers[0].kubelet.now > 5, "CrashLoopBackOff"


def test_what_does_not_end_in_its_time_to_drain_is_killed(tmp_path):
    with fleet(tmp_path, 2, drain=0.3) as running:
        running.wait_for(2)
        with Load(running.url, clients=8, body={"max_tokens": 1, "token_seconds": 100}) as load:
            running.wait_until(lambda: all(scrape(port) == 4 for port in running.serving), 30)
            load.stop()
            running.scale(1)
            running.wait_for(1)
            gone = Counter(load.statuses)
            wait_until(lambda: load.statuses[502] == 4, 20, lambda: f"{gone}")
            running.containers[0].kill()
        check_answers(load, tmp_path)


def test_what_fails_in_the_loop_is_told_to_whoever_waits(tmp_path):
    def command(port):
        raise PermissionError("this program may not be run")

    with pytest.raises(PermissionError, match="may not be run"), RealFleet(command, tmp_path, 1) as running:
        running.wait_until(lambda: running.failed is not None, 20)


def test_a_port_where_nobody_listens_has_no_metric():
    assert scrape(free_port()) is None


def test_the_courses_own_service_is_killed_under_load_behind_nginx(tmp_path):
    """Two engines on this machine: the model `tiny`, real tokens."""
    settings = tmp_path / "serve.toml"
    settings.write_text("threads = 1\nblocks = 128\ndrain_seconds = 5\n")
    with RealFleet(serve_command("tiny", settings), tmp_path / "fleet", replicas=2) as running:
        running.wait_for(2, 180)
        body = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 8}
        with Load(running.url, clients=3, body=body) as load:
            more_answers(load, 5)
            assert all(scrape(port) is not None for port in running.serving)
            pid = running.containers[0].pid
            os.kill(pid, signal.SIGKILL)
            more_answers(load, 10)
            running.wait_until(lambda: len(running.serving) == 1, 30)
            more_answers(load, 5)
        failed = [each for each in load.answers if each.status != 200]
        assert len(failed) <= 3 and {each.error_code for each in failed} <= {"no_replica", "cut off"}, failed
        assert all('"completion_tokens":8' in each.text for each in load.answers if each.status == 200)
