"""Lab 10: the numbers of its prose."""

import pytest
from threeloops.training.sharded import bytes_sent, model_states

GATHER = 3 * (10e-6 + 65536 / 1e9)
"""Seconds for a layer of 256 KiB on 4 ranks, as an all-gather or a reduce-scatter."""


def test_the_worked_example_of_states():
    states = model_states([10], 4, 1)
    assert (2 * 10, 2 * 10, states.masters + states.optimizer) == (20, 20, 36)


@pytest.mark.parametrize(("billions", "ranks", "stage", "gigabytes"), [
    (20, 16, 0, 320), (20, 16, 1, 95), (20, 16, 2, 57.5), (20, 16, 3, 20), (13, 8, 2, 48.75), (13, 8, 3, 26),
    (70, 8, 3, 140), (70, 1, 0, 1120),
])  # fmt: skip
def test_the_states_of_large_models(billions, ranks, stage, gigabytes):
    assert model_states([billions * 10**9], ranks, stage).total == gigabytes * 1e9


@pytest.mark.parametrize(
    ("stage", "ranks", "factor"), [(1, 8, 2.9), (2, 8, 4.3), (1, 64, 3.8), (2, 64, 7.2), (3, 64, 64)]
)
def test_how_much_less_each_stage_holds(stage, ranks, factor):
    held = model_states([64 * 10**6], ranks, stage).total
    assert 16 * 64 * 10**6 / held == pytest.approx(factor, abs=0.05)


def test_the_times_of_the_examples():
    assert pytest.approx(0.227, abs=5e-4) == 1e3 * GATHER
    assert pytest.approx(2.627, abs=5e-4) == 1e3 * (GATHER + 8 * 0.3e-3)
    assert pytest.approx(4.213, abs=5e-4) == 1e3 * 8 * (GATHER + 0.3e-3)


@pytest.mark.parametrize(("stage", "factor", "batch", "seconds", "rate"), [(2, 2, 11, 3, 20.7), (3, 3, 30, 4.5, 24.6)])
def test_the_worked_example_of_stages(stage, factor, batch, seconds, rate):
    free = 80e9 - model_states([20 * 10**9], 16, stage).total
    assert free // 2e9 == batch
    sent = bytes_sent([20 * 10**9], 16, stage)[0]
    assert sent == factor * 15 / 16 * 2 * 20e9 and sent / 25e9 == seconds
    assert 16 * batch / (0.5 * batch + seconds) == pytest.approx(rate, abs=0.05)
