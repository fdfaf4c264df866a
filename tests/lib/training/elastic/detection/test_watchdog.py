"""Who holds up whom: on records made by hand, on the virtual cluster with exact times, and on real processes."""

import dataclasses
import datetime
import functools
import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from threeloops.training.cluster import Cluster, RankDies, RankLost, compute, now, run_on_processes, uniform
from threeloops.training.elastic.detection import Called, FlightRecorder, Watchdog, diagnose, first_alarm

WORLD = (0, 1, 2, 3)


def call(number, begun, ended=None, what="all_reduce", elements=8, where="train.py:88", group="world", ranks=WORLD):
    return Called(number, group, ranks, what, elements, where, begun, ended)


def test_the_rank_that_has_not_entered_is_named_with_its_last_collective():
    records = {rank: [call(1040, 1, 2), call(1041, 10.0 + rank / 10)] for rank in (0, 1, 3)}
    records[2] = [call(1040, 1, 2.5, what="broadcast", where="train.py:70")]
    assert diagnose(records, 22.5) == (
        "rank 2 has not entered all_reduce #1041 of group world, in which ranks 0, 1, 3 wait for 12.5 s (train.py:88). "
        "The last of rank 2 was broadcast #1040 (train.py:70), which ended 20.0 s ago"
    )
    assert diagnose(records, 5.0) == "", "then nobody waited"
    assert first_alarm(records, 3.0) == 13.0 and first_alarm({2: records[2]}, 3.0) is None


def test_a_rank_without_a_record_is_named_first():
    records = {rank: [call(7, 1.0)] for rank in (0, 1, 3)}
    said = diagnose(records, 2.0, WORLD).splitlines()
    assert said[0].startswith("rank 2 has left no record") and said[1].startswith(
        "rank 2 has not entered all_reduce #7"
    )


def test_the_first_collective_that_lacks_a_rank_counts():
    """Rank 0 has gone on to launch #6 while rank 1 is not even in #5."""
    records = {0: [call(5, 1.0), call(6, 2.0)], 1: [call(4, 0.5, 0.6)], 2: [call(5, 1.0)], 3: [call(5, 1.1)]}
    assert diagnose(records, 9.0).startswith(
        "rank 1 has not entered all_reduce #5 of group world, in which ranks 0, 2, 3"
    )


def test_ranks_that_call_different_things():
    records = {rank: [call(3, 1.0)] for rank in (0, 1)}
    records |= {2: [call(3, 1.0, what="broadcast", where="train.py:91")], 3: [call(3, 1.0, elements=9)]}
    assert diagnose(records, 2.0) == (
        "ranks disagree about collective #3 of group world: ranks 0, 1: all_reduce of 8 (train.py:88); "
        "rank 2: broadcast of 8 (train.py:91); rank 3: all_reduce of 9 (train.py:88)"
    )


@pytest.mark.parametrize("what", ["all_to_all", "all_to_all_single"])
def test_ranks_may_exchange_different_numbers_of_elements(what):
    records = {rank: [call(3, 1.0, what=what, elements=100 - 40 * (rank == 2))] for rank in WORLD}
    assert "no rank is behind" in diagnose(records, 2.0)
    records[1] = [call(3, 1.0, elements=60)]
    assert diagnose(records, 2.0) == (
        f"ranks disagree about collective #3 of group world: ranks 0, 2, 3: {what} (train.py:88); "
        "rank 1: all_reduce of 60 (train.py:88)"
    )


def test_where_all_have_entered_it_is_the_network():
    assert "no rank is behind" in diagnose({rank: [call(3, 1.0)] for rank in WORLD}, 2.0)
    records = {rank: [call(3, 1.0, 1.5)] for rank in (0, 1, 2)} | {3: [call(3, 1.0)]}
    assert "rank 3 waits for the end of all_reduce #3" in diagnose(records, 2.0)


def test_each_group_has_a_word_of_its_own():
    records = {
        0: [call(1, 1.0, group="tp", ranks=(0, 1))], 1: [], 2: [call(4, 1.0, group="dp", ranks=(2, 3))], 3: [],
    }  # fmt: skip
    said = diagnose(records, 2.0).splitlines()
    assert said[0].startswith("rank 3 has not entered all_reduce #4 of group dp, in which rank 2 waits")
    assert said[1].startswith("rank 1 has not entered all_reduce #1 of group tp")


STUCK, SECONDS = 3, 0.25


def hangs(rank):
    """A rank computes for 100 s in one step, as if it hung."""
    with FlightRecorder(capacity=4, clock=now) as recorder:
        for step in range(5):
            compute(100.0 if dist.get_rank() == rank and step == STUCK else SECONDS)
            dist.all_reduce(torch.ones(64))
        work = dist.all_gather_into_tensor(torch.empty(8), torch.ones(2), async_op=True)
        compute(1.0)
        work.wait()
    plain = dist.all_reduce.__module__
    return recorder.calls, plain


def test_on_the_virtual_cluster_the_alarm_has_an_exact_time():
    run = Cluster(uniform(4, 2**-10, 2**20)).run(hangs, 2)
    records = {rank: result[0] for rank, result in enumerate(run.results)}
    step = SECONDS + 6 * (2**-10 + 64 / 2**20)
    began = STUCK * step + SECONDS
    assert first_alarm(records, timeout=10.0) == began + 10
    said = diagnose(records, began + 10)
    assert said.startswith(
        f"rank 2 has not entered all_reduce #{STUCK + 1} of group world, in which ranks 0, 1, 3 wait"
    )
    assert f"for 10.0 s (test_watchdog.py:{hangs.__code__.co_firstlineno + 5})" in said
    for calls, plain in run.results:
        assert [each.number for each in calls] == [3, 4, 5, 6], "the ring holds the last four"
        assert calls[-1].what == "all_gather_into_tensor" and calls[-1].ended - calls[-1].begun >= 1.0
        assert plain.startswith("torch."), "outside nothing is noted"


def dies():
    with FlightRecorder(clock=now) as recorder:
        try:
            for _ in range(9):
                compute(SECONDS)
                dist.all_reduce(torch.ones(64))
        except RankLost:
            return recorder.calls
    return None


def test_a_dead_rank_leaves_no_record():
    run = Cluster(uniform(4, 2**-10, 2**20), [RankDies(1, 1.1)], timeout=8.0).run(dies)
    records = {rank: calls for rank, calls in enumerate(run.results) if calls}
    said = diagnose(records, first_alarm(records, 5.0), range(4))
    assert "rank 1 has left no record" in said and "rank 1 has not entered all_reduce #5" in said


def gathers_by(name, other):
    with FlightRecorder(clock=now) as recorder:
        getattr(dist, name)(torch.empty(4), torch.ones(2))
        getattr(dist, other)(torch.empty(2), torch.ones(4))
    return recorder.calls


NAMES = ("all_gather_into_tensor", "reduce_scatter_tensor"), ("all_gather_single", "reduce_scatter_single")


@pytest.mark.parametrize("names", [pair for pair in NAMES if hasattr(dist, pair[0])])
def test_collectives_are_seen_by_their_old_names_and_by_those_of_torch_2_13(names):
    for calls in Cluster(2).run(gathers_by, *names).results:
        assert [(each.number, each.what, each.elements) for each in calls] == [(1, names[0], 4), (2, names[1], 2)]


def goes_on_without_a_rank():
    """Rank 1 dies: the others are told in an all-reduce, or in the wait for one, and go on in a group of their own."""
    with FlightRecorder(clock=now) as recorder:
        for begin in (dist.all_reduce, functools.partial(dist.all_reduce, async_op=True)):
            try:
                compute(SECONDS)
                if (work := begin(torch.ones(64))) is not None:
                    work.wait(timeout=datetime.timedelta(hours=1))
            except RankLost:
                pass
        left = dist.new_group([0, 2, 3], use_local_synchronization=True)
        dist.all_reduce(torch.ones(64), group=left)
    return recorder.calls


def test_a_collective_that_raised_has_ended():
    run = Cluster(uniform(4, 2**-10, 2**20), [RankDies(1, 0.1)], timeout=8.0).run(goes_on_without_a_rank)
    for rank in (0, 2, 3):
        assert [call.group == "world" for call in run.results[rank]] == [True, True, False]
        assert all(call.ended is not None and call.ended >= call.begun for call in run.results[rank])
    assert diagnose({rank: run.results[rank] for rank in (0, 2, 3)}, run.seconds) == ""


def really_hangs(folder):
    """Rank 1 does not enter the third all-reduce before the diagnosis is there."""
    folder, said = Path(folder), []
    with FlightRecorder() as recorder:
        watchdog = Watchdog(recorder, folder, 0.3, said.append, poll=0.05)
        with watchdog:
            for step in range(4):
                deadline = time.monotonic() + 20
                while dist.get_rank() == 1 and step == 2 and time.monotonic() < deadline:
                    if len(os.listdir(folder)) == 4:  # "asked", and all three
                        break
                    time.sleep(0.01)
                dist.all_reduce(torch.ones(3))
            dist.barrier()
    return said


def test_on_real_processes_one_rank_says_who_is_behind(tmp_path):
    said = [each for result in run_on_processes("gloo", 3, really_hangs, str(tmp_path), seconds=60) for each in result]
    assert len(said) == 1, "one rank speaks for all"
    assert said[0].startswith("rank 1 has not entered all_reduce #3 of group world, in which ranks 0, 2 wait for 0.")
    assert "The last of rank 1 was all_reduce #2" in said[0]


def test_the_record_can_be_read_while_calls_are_added(monkeypatch):
    """As by the watchdog's thread; here the other thread's calls come at the worst time, within each copy."""
    recorder = FlightRecorder(capacity=8)
    recorder._calls.extend(call(number, 1.0) for number in range(5))

    def replace(each):
        recorder._calls.append(call(9, 1.0))
        return dataclasses.replace(each)

    monkeypatch.setattr("threeloops.training.elastic.detection.watchdog.replace", replace)
    assert [each.number for each in recorder.calls] == [0, 1, 2, 3, 4]


def watchdogs(monkeypatch, folder, ranks, **options):
    """One for each rank, all in this process, with what they say."""
    monkeypatch.setattr(dist, "get_world_size", lambda: ranks)
    found = []
    for rank in range(ranks):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        recorder, said = FlightRecorder(), []
        found.append((recorder, Watchdog(recorder, folder, 1.0, said.append, **options), said))
    return found


def comes_true(what, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not what() and time.monotonic() < deadline:
        time.sleep(0.01)
    return what()


def test_a_slow_collective_that_has_ended_is_no_hang_and_the_watch_goes_on(monkeypatch, tmp_path):
    ((recorder, watchdog, said),) = watchdogs(monkeypatch, tmp_path, 1, patience=0.0, poll=0.02)
    now = time.monotonic()
    recorder._calls.append(call(1, now - 60, now - 30, ranks=(0,)))
    with watchdog:
        time.sleep(0.3)
        assert not said and not os.listdir(tmp_path)
        recorder._calls.append(call(2, now - 20, ranks=(0,)))
        assert comes_true(lambda: said)
    assert len(said) == 1 and "rank 0 waits for the end of all_reduce #2" in said[0]


def test_a_rank_that_has_not_looked_yet_is_not_gone(monkeypatch, tmp_path):
    """Rank 1 looks half a poll after rank 0, and its patience is far shorter than that."""
    first, second = watchdogs(monkeypatch, tmp_path, 2, patience=0.1, poll=2.0)
    first[0]._calls.append(call(1, time.monotonic() - 60, ranks=(0, 1)))
    with first[1]:
        time.sleep(1.0)
        with second[1]:
            assert comes_true(lambda: first[2])
    assert first[2][0].startswith("rank 1 has not entered all_reduce #1") and not second[2]


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="capacity = 0"):
        FlightRecorder(0)
    with pytest.raises(ValueError, match="timeout = 0"):
        Watchdog(FlightRecorder(), "x", 0)
