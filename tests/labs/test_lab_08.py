"""Lab 08: the numbers of its prose."""

import pytest
from threeloops.training.cluster import fabric
from threeloops.training.collectives import ALL_REDUCES, Link

SLOW = Link(10e-6, 1e9)
NETWORK = Link(14e-6, 50e9)


def test_the_links_of_the_lab_are_those_of_the_virtual_cluster():
    two = fabric(2, 2)
    links = {pair: (two.routes[pair].latency, two.bandwidth(*pair)) for pair in ((0, 1), (0, 2))}
    assert links == {(0, 1): (3.4e-6, 450e9), (0, 2): (14e-6, 50e9)}


@pytest.mark.parametrize(
    ("name", "elements", "microseconds"),
    [("naive", 1000, 44), ("ring", 1000, 66), ("naive", 10**6, 24_020), ("ring", 10**6, 6060)],
)
def test_the_worked_table(name, elements, microseconds):
    shared = 2 * (SLOW.latency + 3 * 4 * elements / SLOW.bandwidth)  # one port into rank 0, and one out
    seconds = shared if name == "naive" else ALL_REDUCES[name].cost(elements, 4, 4, SLOW).seconds
    assert 1e6 * seconds == pytest.approx(microseconds)


@pytest.mark.parametrize(("name", "microseconds"), [("tree", 204), ("ring", 231)])
def test_eight_ranks_with_a_megabyte_each(name, microseconds):
    assert 1e6 * ALL_REDUCES[name].cost(250_000, 4, 8, NETWORK).seconds == pytest.approx(microseconds)


@pytest.mark.parametrize(("ranks", "tensors"), [(2, 1.0), (8, 1.75), (16, 1.875)])
def test_a_ring_sends_less_than_two_tensors_per_rank(ranks, tensors):
    assert set(ALL_REDUCES["ring"].cost(2**20, 4, ranks, NETWORK).bytes) == {tensors * 2**22}


def test_doubling_sends_more_and_waits_less():
    doubling, ring = (ALL_REDUCES[name].cost(2**20, 4, 8, NETWORK) for name in ("recursive doubling", "ring"))
    assert (max(doubling.bytes) / 2**22, max(ring.bytes) / 2**22) == (3.0, 1.75)
    assert (max(doubling.messages), max(ring.messages)) == (3, 14)
