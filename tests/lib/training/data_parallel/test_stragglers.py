"""Slow ranks: the cost of noise against closed forms and sampling, detection, and shares of a batch."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from threeloops.training.cluster import Cluster
from threeloops.training.data_parallel import (
    DDP,
    StragglerDetector,
    batch_weights,
    expected_slowest,
    gather_seconds,
    proportional_batches,
)

ROOT_PI = math.sqrt(math.pi)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (1, 0.0),
        (2, 1 / ROOT_PI),
        (3, 1.5 / ROOT_PI),
        (4, 3 / ROOT_PI * (0.5 + math.asin(1 / 3) / math.pi)),
        (5, 5 / ROOT_PI * (0.25 + 1.5 / math.pi * math.asin(1 / 3))),
    ],
)
def test_the_expected_slowest_of_few_ranks_is_the_closed_form(ranks, expected):
    assert expected_slowest(0.0, 1.0, ranks) == pytest.approx(expected, abs=1e-13)
    assert expected_slowest(2.0, 0.1, ranks) == pytest.approx(2 + 0.1 * expected, abs=1e-13)


@pytest.mark.parametrize("ranks", [8, 64, 1024, 10**6])
def test_the_expected_slowest_of_many_ranks_is_another_integral_of_the_same(ranks):
    """E[max] = ∫ F⁻¹(u) n uⁿ⁻¹ du; with v = uⁿ it is the mean of F⁻¹(v^(1/n)) over v in (0, 1)."""
    v = (np.arange(20_000) + 0.5) / 20_000
    normal = NormalDist()
    mean = np.mean([-normal.inv_cdf(-math.expm1(math.log(each) / ranks)) for each in v])
    assert expected_slowest(0.0, 1.0, ranks) == pytest.approx(mean, abs=2e-4)


def test_equal_ranks_without_noise_wait_for_nobody():
    assert expected_slowest(0.3, 0.0, 1000) == 0.3


@pytest.mark.parametrize(("deviation", "ranks"), [(-1.0, 2), (float("nan"), 2), (1.0, 0)])
def test_a_noise_that_is_none_is_named(deviation, ranks):
    with pytest.raises(ValueError, match="ranks, deviation = .* s: expected"):
        expected_slowest(1.0, deviation, ranks)


def test_a_rank_is_flagged_after_that_many_slow_steps_in_a_row():
    detector = StragglerDetector(4, factor=1.1, patience=3)
    slow, even = [1.0, 1.0, 1.2, 1.0], [1.0, 1.05, 1.0, 1.0]
    assert [detector.update(each) for each in (slow, slow, even, slow, slow, slow, slow)] == [[]] * 5 + [[2], [2]]
    assert detector.update(even) == []


def test_exactly_the_factor_is_not_yet_slow_and_all_slow_alike_are_none():
    detector = StragglerDetector(3, factor=1.5, patience=1)
    assert detector.update([2.0, 2.0, 3.0]) == [] and detector.update([2.0, 2.0, 3.001]) == [2]
    assert detector.update([9.0, 9.0, 9.0]) == []


def test_of_two_ranks_the_faster_is_the_measure():
    assert StragglerDetector(2, patience=1).update([1.0, 1.2]) == [1]


def test_noise_that_makes_some_rank_slow_in_most_steps_flags_none():
    rng = np.random.default_rng(0)
    impatient, patient = StragglerDetector(64, patience=1), StragglerDetector(64, patience=4)
    steps = [list(rng.normal(1.0, 0.05, 64)) for _ in range(200)]
    assert sum(bool(impatient.update(step)) for step in steps) > 100
    assert not any(patient.update(step) for step in steps)


@pytest.mark.parametrize("seconds", [[1.0], [1.0, 0.0], [1.0, float("nan")], [1.0, math.inf]])
def test_times_that_are_none_are_named(seconds):
    with pytest.raises(ValueError, match="expected 2 positive, finite numbers"):
        StragglerDetector(2).update(seconds)


@pytest.mark.parametrize("options", [{"factor": 1.0}, {"patience": 0}, {"factor": float("nan")}])
def test_a_detector_that_could_not_work_is_refused(options):
    with pytest.raises(ValueError, match="expected ≥ 1, > 1 and ≥ 1"):
        StragglerDetector(2, **options)


@pytest.mark.parametrize(
    ("speeds", "total", "expected"),
    [
        ([1, 1, 1, 1], 32, [8, 8, 8, 8]),
        ([1, 1, 1], 32, [11, 11, 10]),
        ([3, 1], 8, [6, 2]),
        ([0.1, 0.2, 0.7], 10, [1, 2, 7]),
        ([1, 1, 1, 0.5], 100, [29, 29, 28, 14]),
        ([1000, 1, 1], 10, [8, 1, 1]),
        ([5], 7, [7]),
    ],
)
def test_batches_are_proportional_to_speed_by_largest_remainder(speeds, total, expected):
    assert proportional_batches(speeds, total) == expected


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=16), st.integers(64, 5000))
def test_batches_sum_to_the_global_batch_and_are_within_one_of_the_exact_share(speeds, total):
    batches = proportional_batches(speeds, total)
    assert sum(batches) == total and min(batches) >= 1
    assert all(
        abs(batch - total * speed / sum(speeds)) < 1 + 1e-9 for batch, speed in zip(batches, speeds, strict=True)
    )


@pytest.mark.parametrize(
    ("speeds", "total", "said"),
    [([1, 0], 8, "samples_per_second = "), ([], 8, "samples_per_second = "), ([1, 1, 1], 2, "global_batch = 2"),
     ([1, float("inf")], 8, "finite")],
)  # fmt: skip
def test_shares_that_cannot_be_are_named(speeds, total, said):
    with pytest.raises(ValueError, match=said):
        proportional_batches(speeds, total)


@pytest.mark.parametrize("batches", [[], [3, 0]])
def test_a_rank_without_samples_has_no_weight(batches):
    with pytest.raises(ValueError, match="expected at least one sample per rank"):
        batch_weights(batches)


SPEEDS, TOTAL = [1.0, 0.5, 2.0], 23


def unequal():
    rank = dist.get_rank()
    seconds = gather_seconds(1.0 + rank / 3)
    batches = proportional_batches(SPEEDS, TOTAL)
    x = torch.randn(TOTAL, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).split(batches)[rank]
    torch.manual_seed(1)
    ddp = DDP(torch.nn.Linear(4, 2).double())
    (batch_weights(batches)[rank] * ddp(x).square().mean()).backward()
    return seconds, ddp.module.weight.grad


def test_unequal_batches_with_their_weights_have_the_gradient_of_the_mean_over_the_global_batch():
    torch.manual_seed(1)
    alone = torch.nn.Linear(4, 2).double()
    x = torch.randn(TOTAL, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alone(x).square().mean().backward()
    for seconds, gradient in Cluster(3).run(unequal).results:
        assert seconds == [1.0, 1 + 1 / 3, 1 + 2 / 3]
        torch.testing.assert_close(gradient, alone.weight.grad, rtol=1e-13, atol=1e-16)
