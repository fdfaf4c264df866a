"""Bytes of tensors that are alive in a rank: model states as the formulas say, and what is in flight beside them."""

import pytest
import torch
from threeloops.training.cluster import Cluster
from threeloops.training.data_parallel import DDP
from threeloops.training.sharded import FSDP, LiveBytes, ZeroOptimizer, model_states
from torch import nn

LAYERS, WIDTH, RANKS = 8, 128, 4
LAYER = WIDTH**2
SIZES = [LAYER] * LAYERS
NARROW = {"parameter_bytes": 2, "gradient_bytes": 2, "master_bytes": 4}
WIDE = {"parameter_bytes": 4, "gradient_bytes": 4, "master_bytes": 0}
ACTIVATIONS = 0.02
"""Of the states: one sample's activations, and whatever else is small."""


def measured(dtype, limits):
    """By stage and limit: bytes alive between backward and step, the peak of a whole step, and after zero_grad."""
    x, made = torch.ones(1, WIDTH, dtype=dtype), {}
    for stage in (0, 1, 2, 3):
        for limit in limits if stage > 1 else limits[:1]:
            with LiveBytes() as live:
                model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]).to(dtype)
                cap = {"bucket_cap_mb": LAYER * dtype.itemsize / 2**20}
                if stage in (0, 3):
                    wrapped = FSDP(model, model, units_in_flight=limit) if stage else DDP(model, **cap)
                    optimizer = torch.optim.AdamW(wrapped.parameters())
                else:
                    wrapped = model
                    optimizer = ZeroOptimizer(
                        model, torch.optim.AdamW, stage=stage, first_bucket_mb=1e-3, buckets_in_flight=limit, **cap
                    )
                for _ in range(2):
                    live.reset()
                    wrapped(x).square().mean().backward()
                    states, peak = live.now(), live.peak
                    optimizer.step()
                    optimizer.zero_grad()
                made[stage, limit] = states, peak, live.now()
                del model, wrapped, optimizer
    return made


@pytest.mark.parametrize(("dtype", "bytes_each"), [(torch.float32, WIDE), (torch.bfloat16, NARROW)], ids=str)
def test_model_states_are_within_2_percent_of_the_formula_and_the_rest_is_in_flight(dtype, bytes_each):
    run = Cluster(RANKS).run(measured, dtype, [1, 2, 3])
    narrow = dtype is torch.bfloat16
    one = LAYER * dtype.itemsize
    for made in run.results:
        for (stage, limit), (states, peak, after) in made.items():
            if stage == 0 and narrow:
                continue  # DDP has no masters
            formula = model_states(SIZES, RANKS, stage, **bytes_each)
            assert abs(states / formula.total - 1) < 0.02, (stage, limit)
            slack = ACTIVATIONS * formula.total
            if stage == 2:  # buckets whose gradients are not reduced, and the gradient that backward has just made
                assert peak <= formula.total + (limit + 1) * one + slack
                assert after <= formula.total - formula.gradients + slack
            if stage == 3:  # gathered units, their gradients, and the one that backward has just made
                assert peak <= formula.total + (2 * limit + 1) * one + slack
                assert after <= 12 * LAYER * LAYERS // RANKS + slack  # parameters, or masters, and two of Adam
    first = run.results[0]
    assert first[3, 1][1] < first[3, 2][1] < first[3, 3][1]
    assert first[2, 1][1] < first[2, 2][1] < first[2, 3][1]


def test_each_storage_counts_once_as_long_as_it_lives_and_in_its_present_size():
    with LiveBytes() as live:
        x = torch.ones(100)
        assert live.now() == 400
        y = x.view(10, 10)[:2]
        assert live.now() == 400
        z = x + 1
        assert live.now() == live.peak == 800
        del z
        assert (live.now(), live.peak) == (400, 800)
        live.reset()
        assert live.peak == 400
        x.untyped_storage().resize_(0)
        assert live.now() == 0
        x.untyped_storage().resize_(4000)
        torch.ones(1)
        assert live.peak == 4004
        del x
        assert live.now() == 4000
        del y
    assert live.now() == 0
