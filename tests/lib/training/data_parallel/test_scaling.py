"""The model of a step, equal to the virtual cluster's time for DDP."""

from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from charged import ChargedLinear
from threeloops.simulation.link import SharedLink
from threeloops.training.cluster import Cluster, advance_to, compute, now, uniform
from threeloops.training.data_parallel import (
    DDP,
    DataParallelStep,
    Gradient,
    bucketed_step,
    overlapped_step,
    ring_all_reduce_ends,
    scaling_efficiency,
)

LINK = SharedLink(10e-6, 1e9)
WIDTHS = [(64, 33), (33, 128), (128, 7), (7, 65), (65, 1)]
"""Layers whose gradients divide by no number of ranks; each has a bias too."""
CAPS = [(100.0, 100.0), (0.01, 0.01), (0.01, 0.001), (1e-6, 1e-6)]
PERIOD = 0.02


def measured():
    """Seconds of a step for each cap."""
    taken = []
    for number, (cap, first) in enumerate(CAPS):
        layers = [
            ChargedLinear(*width, forward=1e-5 * (i + 1), backward=3e-5 / (i + 1), bias=True)
            for i, width in enumerate(WIDTHS)
        ]
        ddp = DDP(torch.nn.Sequential(*layers), bucket_cap_mb=cap, first_bucket_mb=first)
        advance_to(PERIOD * (number + 1))
        ddp(torch.ones(2, 64)).sum().backward()
        taken.append(now() - PERIOD * (number + 1))
    return taken


def gradients():
    now, made = sum(1e-5 * (i + 1) for i in range(5)), []
    for i in reversed(range(5)):
        now += 3e-5 / (i + 1)
        made += [Gradient(now, WIDTHS[i][1]), Gradient(now, WIDTHS[i][0] * WIDTHS[i][1])]
    return made[::-1], now


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_step_of_buckets_is_the_virtual_clusters_to_the_last_digits(ranks):
    run = Cluster(uniform(ranks, LINK.latency, LINK.bandwidth)).run(measured)
    made, alone = gradients()
    steps = [bucketed_step(made, alone, ranks, LINK, *cap) for cap in CAPS]
    assert [len(step.buckets) for step in steps] == [1, 2, 3, 10]
    for number, step in enumerate(steps):
        assert max(taken[number] for taken in run.results) == pytest.approx(step.seconds, rel=1e-12)
        begin = PERIOD * (number + 1)
        jobs = [s for s in run.spans if s.timeline == 1 and begin <= s.start < begin + PERIOD / 2]
        for bucket, (start, end) in enumerate(step.buckets):
            same = [[s for s in jobs if s.rank == rank][bucket] for rank in range(ranks)]
            assert min(s.start for s in same) - begin == pytest.approx(start, rel=1e-10)
            assert max(s.end for s in same) - begin == pytest.approx(end, rel=1e-10)


def skewed(seconds, elements):
    advance_to(PERIOD)
    compute(seconds[dist.get_rank()])
    dist.all_reduce(torch.ones(elements))
    return now() - PERIOD


@pytest.mark.parametrize("elements", [0, 1, 3, 64, 1001])
def test_an_all_reduce_that_ranks_start_at_different_times_ends_when_the_virtual_cluster_says(elements):
    starts = [3e-4, 0.0, 1e-5, 5e-4]
    run = Cluster(uniform(4, 10e-6, 1e7)).run(skewed, starts, elements)
    ends = ring_all_reduce_ends(starts, elements, 4, SharedLink(10e-6, 1e7))
    assert sorted(run.results) == pytest.approx(sorted(ends), rel=1e-12)


@pytest.mark.parametrize("ranks", [1, 2, 7, 64])
def test_an_even_all_reduce_has_its_closed_form(ranks):
    ends = ring_all_reduce_ends([0.5] * ranks, 1000 * ranks, 4, LINK)
    assert ends == pytest.approx([0.5 + 2 * (ranks - 1) * (10e-6 + 4000 / 1e9)] * ranks, rel=1e-12)


def layers(count, elements, forward, backward):
    """Gradients of equal layers, and the seconds of a step without communication."""
    return [Gradient(count * forward + (count - i) * backward, elements) for i in range(count)], count * (
        forward + backward
    )


def test_communication_is_hidden_where_it_fits_behind_backward_and_exposed_at_the_end():
    made, alone = layers(8, 2**16, 1e-4, 1e-3)
    step = bucketed_step(made, alone, 4, LINK, 0.25, 0.25)
    all_reduce = 6 * (10e-6 + 2**16 / 1e9)
    assert step.seconds == pytest.approx(alone + all_reduce) and step.hidden == pytest.approx(7 / 8)
    assert step.efficiency == pytest.approx(alone / (alone + all_reduce))
    one = bucketed_step(made, alone, 4, LINK, 100, 100)
    assert one.hidden == pytest.approx(0) and one.seconds == pytest.approx(alone + one.communication)


def test_buckets_follow_one_another_even_where_a_later_one_is_ready_first():
    made = [Gradient(1.0, 1000), Gradient(5.0, 1000)]
    step = bucketed_step(made, 6.0, 2, LINK, 1e-6, 1e-6)
    assert step.buckets[0][0] == 5.0 and all(a[1] <= b[0] for a, b in pairwise(step.buckets))


def test_one_rank_has_nothing_to_communicate():
    made, alone = layers(3, 100, 1.0, 2.0)
    step = bucketed_step(made, alone, 1, LINK)
    assert (step.seconds, step.communication, step.hidden, step.efficiency) == (9.0, 0.0, 1.0, 1.0)


@pytest.mark.parametrize(("hidden", "faster"), [(0.0, 1.0), (0.5, 18 / 14.5), (0.8, 18 / 12.4), (1.0, 18 / 11)])
def test_hiding_a_share_of_7_seconds_behind_11_makes_a_step_that_much_faster(hidden, faster):
    step = overlapped_step(compute=11.0, communication=7.0, hidden=hidden, ranks=4)
    assert 18 / step.seconds == pytest.approx(faster) and step.hidden == pytest.approx(hidden)
    assert step.throughput(8) == pytest.approx(4 * 8 / step.seconds)
    assert step.efficiency == pytest.approx(scaling_efficiency(step.throughput(8), 4, 8 / 11.0))


def test_efficiency_is_throughput_over_that_of_as_many_single_ranks():
    assert scaling_efficiency(380.0, 4, 100.0) == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: overlapped_step(1.0, 1.0, 1.5, 2), "hidden = 1.5"),
        (lambda: overlapped_step(1.0, 9.0, 0.5, 2), "fits into the computation"),
        (lambda: overlapped_step(0.0, 9.0, 0.0, 2), r"compute = 0.0 s"),
        (lambda: DataParallelStep(0, 1.0, 1.0, 2.0), "0 ranks"),
        (lambda: scaling_efficiency(1.0, 0, 1.0), "on 0 ranks"),
        (lambda: scaling_efficiency(0.0, 2, 1.0), "throughput = 0.0"),
    ],
)
def test_numbers_that_are_none_are_named(made, said):
    with pytest.raises(ValueError, match=said):
        made()
