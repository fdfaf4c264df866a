"""Norms of replicated and of sharded gradients, on the virtual cluster, beside torch on the whole gradient."""

import math

import pytest
import torch
import torch.distributed as dist
from charged import between
from threeloops.training.cluster import Cluster, advance_to
from threeloops.training.data_parallel import clip_grad_norm, total_norm

NORMS = (2.0, 1.0, 3.0, math.inf)


def parameters_of(*gradients):
    made = []
    for gradient in gradients:
        made.append(torch.zeros(gradient.shape, dtype=gradient.dtype, requires_grad=True))
        made[-1].grad = gradient.clone()
    return [*made, torch.zeros(3, requires_grad=True)]  # one without a gradient


def whole(dtype=torch.float64):
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=dtype)


def shards():
    """Rows 0 … 5 on three ranks: three, three, and none."""
    rank = dist.get_rank()
    mine = [whole()[:3], whole()[3:], whole()[6:]][rank]
    norms, clipped = [], []
    advance_to(1)
    for norm_type in NORMS:
        parameters = parameters_of(mine) if rank < 2 else []
        norms.append(float(clip_grad_norm(parameters, 0.5, norm_type=norm_type, sharded=True)))
        clipped.append(parameters[0].grad if parameters else mine)
    advance_to(2)
    local = float(clip_grad_norm(parameters_of(whole()), 0.5))
    wrong = float(torch.nn.utils.clip_grad_norm_(parameters_of(mine), 0.5))
    advance_to(3)
    group = dist.new_group([0, 1])
    if rank < 2:
        both = parameters_of(whole())
        replicated, sharded = total_norm(both), total_norm(parameters_of(mine), group, sharded=True)
        norms.append(float((replicated**2 + sharded**2).sqrt()))
    return norms, clipped, local, wrong


@pytest.fixture(scope="module")
def run_of_shards():
    return Cluster(3).run(shards)


def test_shards_have_the_norm_of_the_whole_gradient_for_one_number_each_and_replicas_for_none(run_of_shards):
    run = run_of_shards
    for rank, (norms, _, local, _) in enumerate(run.results):
        assert norms == run.results[0][0][: len(norms)], rank
        for norm, norm_type in zip(norms, NORMS, strict=False):
            expected = torch.linalg.vector_norm(whole(), norm_type).item()
            assert norm == pytest.approx(expected, rel=1e-14)
        assert local == pytest.approx(torch.linalg.vector_norm(whole()).item(), rel=1e-14)
    for number, norm_type in enumerate(NORMS):
        found = torch.cat([clipped[number] for _, clipped, _, _ in run.results])
        alone = parameters_of(whole())
        torch.nn.utils.clip_grad_norm_(alone, 0.5, norm_type)
        torch.testing.assert_close(found, alone[0].grad, rtol=1e-12, atol=0)
    assert sum(message.size for message in between(run, 1, 2)) == len(NORMS) * 2 * 2 * 8
    assert between(run, 2, 3) == []
    assert run.results[0][0][-1] == pytest.approx(math.sqrt(2) * whole().norm().item(), rel=1e-14)


def test_torchs_own_norm_of_a_plain_shard_is_that_of_the_shard_and_differs_between_ranks(run_of_shards):
    results = run_of_shards.results
    wrong = [result[3] for result in results]
    assert wrong[:2] == pytest.approx([whole()[:3].norm().item(), whole()[3:].norm().item()])
    assert wrong[0] != wrong[1] and max(wrong) < results[0][2]


@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 1e9, math.inf])
@pytest.mark.parametrize("norm_type", NORMS)
def test_gradients_are_clipped_as_torch_clips_them(max_norm, norm_type):
    ours, theirs = (parameters_of(whole(), 3 * whole()[0], *([whole()[:0]] if norm_type < 9 else [])) for _ in range(2))
    norm = clip_grad_norm(ours, max_norm, norm_type=norm_type)
    assert norm == torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours[:-1], theirs[:-1], strict=True))
    assert ours[-1].grad is None


def test_norms_of_16_bit_gradients_are_computed_in_float32():
    gradient = torch.full((1 << 16,), 0.1, dtype=torch.bfloat16)
    norm = total_norm(parameters_of(gradient, gradient))
    assert norm.dtype == torch.float32
    exact = gradient.double().norm().item() * math.sqrt(2)
    assert norm.item() == pytest.approx(exact, rel=2e-5)  # bfloat16 would be 3e-4 off


def test_without_gradients_the_norm_is_0():
    assert total_norm(parameters_of(whole()[:0]), norm_type=math.inf) == 0  # torch raises
    assert total_norm([]) == 0 and total_norm([torch.zeros(3, requires_grad=True)]) == 0


@pytest.mark.parametrize("max_norm", [0, -1, float("nan")])
def test_a_max_norm_that_is_none_is_named(max_norm):
    with pytest.raises(ValueError, match="max_norm = (0|-1|nan): expected a number above 0"):
        clip_grad_norm([], max_norm)


@pytest.mark.parametrize("norm_type", [0, -2.0, float("nan")])
def test_a_norm_that_is_none_is_named(norm_type):
    with pytest.raises(ValueError, match="norm_type = .*: expected a number above 0, or inf"):
        total_norm([], norm_type=norm_type)
