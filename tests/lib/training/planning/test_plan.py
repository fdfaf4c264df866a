"""Plans: what may be cut how, where groups of ranks lie, and how many microbatches are in flight."""

import pytest
from threeloops.training.collectives import Link
from threeloops.training.pipeline import interleaved, most_in_flight, one_f_one_b
from threeloops.training.planning import LLAMA_8B, LLAMA_405B, Machine, Plan, Transformer, memory

MACHINE = Machine(8, 80e9, 5e14, 1e15, Link(1e-6, 400e9), Link(10e-6, 50e9))


@pytest.mark.parametrize("axes", [{"dp": 3, "cp": 2, "pp": 4, "tp": 2}, {"dp": 5}, {"tp": 8, "pp": 2}])
def test_groups_are_those_of_the_mesh(axes):
    plan = Plan(30, 64, **axes)
    assert plan.gpus == plan.mesh.size
    for name, of_mesh in (("tp", ("tp",)), ("cp", ("cp",)), ("pp", ("pp",)), ("replicas", ("dp", "cp"))):
        assert tuple(plan.groups[name]) == plan.mesh.groups(*of_mesh)[0]


def test_the_link_of_a_group():
    assert MACHINE.link(range(8)) == MACHINE.inside
    assert MACHINE.link(range(0, 64, 8)) == Link(10e-6, 50e9)
    four_per_node = MACHINE.link(range(0, 32, 2))
    assert four_per_node.bandwidth == 200e9
    assert four_per_node.latency == pytest.approx((4 * 10e-6 + 12 * 1e-6) / 16)
    assert MACHINE.link(range(64)).bandwidth == 400e9, "eight links of 50 GB/s, and each GPU's own of 400"


@pytest.mark.parametrize("pp", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_microbatches_in_flight_are_those_of_the_schedule(pp, chunks, rounds):
    if pp == 1 and chunks > 1:
        return
    microbatches = pp * rounds
    schedule = one_f_one_b(pp, microbatches) if chunks == 1 else interleaved(pp, microbatches, chunks)
    plan = Plan(microbatches, 8, pp=pp, chunks=chunks)
    for rank, row in enumerate(schedule.rows):
        assert plan.in_flight(rank) * chunks == most_in_flight(row)


@pytest.mark.parametrize(
    ("layers", "pp", "expected"),
    [
        (8, 4, [2, 2, 2, 2]),
        (7, 4, [2, 2, 2, 1]),
        (6, 4, [1, 2, 2, 1]),
        (5, 4, [1, 2, 1, 1]),
        (126, 16, [7, *14 * [8], 7]),
    ],
)
def test_first_and_last_have_no_more_layers_than_others(layers, pp, expected):
    assert Plan(pp, 8, pp=pp).layers(Transformer(layers, 64, 8, 8, 64, 10)) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pp": 0}, "pp = 0: expected 1 or more"),
        ({"dp": 3}, "batch = 16: expected a multiple of dp · microbatch = 3 · 1"),
        ({"microbatch": 5}, "multiple of dp · microbatch = 1 · 5"),
        ({"cp": 3}, "sequence = 64: expected a multiple of cp · tp = 3 · 1"),
        ({"chunks": 2}, "2 chunks with pp = 1"),
        ({"chunks": 2, "pp": 3}, "2 chunks with pp = 3 and 16 microbatches"),
    ],
)
def test_a_plan_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        Plan(**{"batch": 16, "sequence": 64} | options)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (LLAMA_8B, {"pp": 64}, r"pp · chunks = 64 · 1: expected at most 32, one per layer"),
        (LLAMA_405B, {"pp": 16, "chunks": 8}, "pp · chunks = 16 · 8: expected at most 126"),
        (LLAMA_8B, {"tp": 16}, "tp = 16: expected a divisor of 8 heads"),
    ],
)
def test_a_plan_that_does_not_suit_the_model(model, options, message):
    with pytest.raises(ValueError, match=message):
        memory(model, Plan(64, 8192, **options))
