"""The tables of pipeline schedules: torch's tables are those it executes, and ours are never longer at equal costs."""

import pytest
from threeloops.training.pipeline import check, interleaved, one_f_one_b, simulate
from torch.distributed.pipelining import schedules as torchs

from benchmarks import parallel_pipeline
from benchmarks.parallel_pipeline import (
    COSTS,
    MEASURED,
    OURS,
    PAIRS,
    SHOWN,
    SLEEPS,
    pipeline_facts,
    pipeline_predictions,
    pipeline_rows,
    torch_table,
)

EQUAL, UNEQUAL, FAR = COSTS


def test_torchs_schedules_are_legal_and_those_that_both_have_are_the_same():
    for pair in PAIRS:
        assert hasattr(torchs, pair.theirs)
        check(torch_table(pair.theirs, 3, 6, pair.chunks))
    assert torch_table("Schedule1F1B", 4, 8, 1) == one_f_one_b(4, 8)
    assert torch_table("ScheduleInterleaved1F1B", 4, 8, 2) == interleaved(4, 8, 2)
    assert torch_table("ScheduleZBVZeroBubble", 3, 6, 2).placement == (0, 1, 2, 2, 1, 0)


def test_torch_refuses_what_it_does_not_allow():
    with pytest.raises(ValueError, match="microbatches"):
        torch_table("Schedule1F1B", 4, 2, 1)


def test_ours_are_never_longer_where_forward_and_both_gradients_take_as_long():
    facts = pipeline_facts(range(1, 7), (1, 2, 3, 4, 5, 6, 8, 11, 12))
    assert len(facts) == len(PAIRS)
    for found in facts.values():
        assert found[EQUAL]["longer"] == 0 and found["compared"] > 10
        for costs in COSTS:
            counts = found[costs]
            assert counts["shorter"] + counts["as long"] + counts["longer"] == found["compared"]
            assert counts["at most longer by"] < 0.03 and (counts["at most longer by"] > 0) == (counts["longer"] > 0)
    v = facts["ScheduleZBVZeroBubble, 2 stages per rank"]
    assert v[EQUAL]["shorter"] > 0 and v[FAR]["longer"] > 0, "losses are counted as well"
    assert {name for name, found in facts.items() if found[UNEQUAL]["longer"]} == {
        "ScheduleInterleavedZeroBubble, 2 stages per rank"
    }


def test_rows_have_a_peer_each_and_say_what_the_simulator_finds(monkeypatch):
    monkeypatch.setattr(parallel_pipeline, "SHOWN", ((4, 8), (2, 4)))
    rows = pipeline_rows()
    assert len(rows) == len(PAIRS) * 2 * (len(COSTS) + 1) * 2 and len(SHOWN) == 4
    for ours, theirs in zip(rows[::2], rows[1::2], strict=True):
        assert (ours.what, ours.by, theirs.peer, ours.peer) == (theirs.what, OURS, True, False)
        assert ours.median <= theirs.median or FAR in ours.what or UNEQUAL in ours.what or "kept" in ours.what
    found = {row.what: row.median for row in rows[::2]}
    assert found[f"Schedule1F1B, 1 stage per rank, 4 ranks, 8 microbatches: {EQUAL}"] == (8 + 3) * 3
    assert found["Schedule1F1B, 1 stage per rank, 4 ranks, 8 microbatches: activations kept"] == 4


def test_steps_that_sleep_are_compared_with_their_predictions(monkeypatch):
    """With the processes' part done by the simulator, a little late."""

    def processes(backend, ranks, program, rounds, seconds):
        assert (backend, ranks) == ("gloo", 4)
        lines = [simulate(schedule, SLEEPS, 1e-3).rows for schedule in MEASURED.values() for _ in range(rounds)]
        return [[rows[rank] for rows in lines] for rank in range(ranks)]

    monkeypatch.setattr(parallel_pipeline, "run_on_processes", processes)
    found = pipeline_predictions(rounds=2)
    assert [each.case.rpartition(", ")[2] for each in found] == ["round 1", "round 2"] * len(MEASURED)
    assert found[2].case == "1F1B, 4 ranks, 8 microbatches, round 1"
    assert found[2].predicted == pytest.approx((8 + 3) * 3 * 30e-3)
    assert all(0 < each.difference < 0.05 for each in found)
