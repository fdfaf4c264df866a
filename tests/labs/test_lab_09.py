"""Lab 09: the numbers of its prose."""

import pytest
from threeloops.training.collectives import Link, ring_all_reduce_cost
from threeloops.training.data_parallel import expected_slowest
from threeloops.training.data_parallel.buckets import assign_buckets
from threeloops.training.data_parallel.scaling import Gradient, bucketed_step

LINK = Link(10e-6, 1e9)
LAYERS = [Gradient(0.8e-3 + (8 - layer) * 0.2e-3, 65536, 4) for layer in range(8)]
"""Of the lab's model, in the order of registration: the last layer's gradient comes first."""


@pytest.mark.parametrize(("buckets", "seconds"), [(1, 5.605728e-3), (2, 4.865728e-3), (8, 4.625728e-3)])
def test_the_steps_of_eight_layers(buckets, seconds):
    cap = 2 / buckets
    assert bucketed_step(LAYERS, 2.4e-3, 4, LINK, cap, cap).seconds == pytest.approx(seconds)


def test_the_worked_bucket_example():
    assert assign_buckets([4, 4, 2, 6, 1], 6 / 2**20, 2 / 2**20) == [[4, 3], [2, 1], [0]]


@pytest.mark.parametrize(("ranks", "seconds", "percent"), [(4, 0.406, 62), (16, 0.28, 22), (64, 0.339, 5)])
def test_the_worked_example_of_strong_scaling(ranks, seconds, percent):
    ring = ring_all_reduce_cost(25_000_000, 4, ranks, Link(1e-3, 1e9)).seconds
    assert 1 / ranks + ring == pytest.approx(seconds, abs=6e-4)
    assert round(100 / (ranks * (1 / ranks + ring))) == percent


def test_the_slowest_of_many_equal_ranks():
    assert expected_slowest(0, 1, 8) == pytest.approx(1.42, abs=5e-3)
    assert expected_slowest(0, 1, 1024) == pytest.approx(3.2, abs=0.05)
    assert round(expected_slowest(100, 3, 1024)) == 110
