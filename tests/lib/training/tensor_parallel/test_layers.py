"""Linear layers cut by columns and by rows, against the whole layers in one process, in float64."""

import pytest
import torch
import torch.distributed as dist
from collectives_seen import bytes_sent, collectives
from threeloops.training.cluster import Cluster, RankFailed, advance_to
from threeloops.training.tensor_parallel import (
    COPIED,
    REPLICATED,
    ColumnParallelLinear,
    RowParallelLinear,
    copy_to_ranks,
    sharded,
)
from torch import nn
from torch.nn import functional

BATCH, TOKENS, INPUTS, HIDDEN, OUTPUTS = 3, 8, 7, 20, 5
ACTIVATION_BYTES = BATCH * TOKENS * OUTPUTS * 8
INPUT_BYTES = BATCH * TOKENS * INPUTS * 8


def whole_layers():
    torch.manual_seed(0)
    return nn.Linear(INPUTS, HIDDEN).double(), nn.Linear(HIDDEN, OUTPUTS).double()


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def mlp(sequence_parallel):
    """A column and a row parallel layer around an activation; returns output and gradients, at times 1 and 2."""
    outside = sharded(1) if sequence_parallel else REPLICATED
    first, second = whole_layers()
    column = ColumnParallelLinear(first, input=outside)
    row = RowParallelLinear(second, output=outside)
    x, weight = numbers(BATCH, TOKENS, INPUTS), numbers(BATCH, TOKENS, OUTPUTS)
    if sequence_parallel:
        x, weight = (each.chunk(dist.get_world_size(), 1)[dist.get_rank()].clone() for each in (x, weight))
    x.requires_grad_()
    advance_to(1)
    y = row(functional.gelu(column(x)))
    advance_to(2)
    (y * weight).sum().backward()
    advance_to(3)
    parameters = [column.weight, column.bias, row.weight, row.bias]
    return y.detach(), x.grad, [p.detach() for p in parameters], [p.grad for p in parameters]


@pytest.fixture(scope="module", params=[(n, sp) for n in (1, 2, 4) for sp in (False, True)], ids=str)
def run(request):
    ranks, sequence_parallel = request.param
    return ranks, sequence_parallel, Cluster(ranks).run(mlp, sequence_parallel)


def test_values_and_gradients_are_those_of_one_process(run):
    ranks, sequence_parallel, found = run
    first, second = whole_layers()
    x = numbers(BATCH, TOKENS, INPUTS).requires_grad_()
    y = second(functional.gelu(first(x)))
    (y * numbers(BATCH, TOKENS, OUTPUTS)).sum().backward()
    whole = [first.weight, first.bias, second.weight, second.bias]
    for rank, (out, gradient, values, gradients) in enumerate(found.results):
        expected = [y.detach(), x.grad]
        if sequence_parallel:
            expected = [each.chunk(ranks, 1)[rank] for each in expected]
        torch.testing.assert_close([out, gradient], expected, rtol=1e-12, atol=1e-12)
        for value, mine, p, dim in zip(values, gradients, whole, (0, 0, 1, None), strict=True):
            own, grad = ((t if dim is None else t.chunk(ranks, dim)[rank]) for t in (p.detach(), p.grad))
            assert torch.equal(value, own)
            torch.testing.assert_close(mine, grad, rtol=1e-12, atol=1e-12)


def test_an_mlp_is_one_all_reduce_each_way_and_sequence_parallel_its_two_halves_of_the_same_bytes(run):
    """tp-1 and tp-2: the row parallel layer sums its terms; nothing is gathered."""
    ranks, sequence_parallel, found = run
    forward, backward = collectives(found, 1, 2), collectives(found, 2, 3)
    sent = bytes_sent(found, 1, 2), bytes_sent(found, 2, 3)
    if not sequence_parallel:
        assert (forward, backward) == (["all_reduce"], ["all_reduce"])
        assert sent == (2 * (ranks - 1) * ACTIVATION_BYTES, 2 * (ranks - 1) * INPUT_BYTES)
    else:
        assert forward == ["all_gather", "reduce_scatter"]
        assert sorted(backward) == ["all_gather", "all_reduce", "reduce_scatter"]  # all-reduce: the bias's gradient
        assert sent[0] == (ranks - 1) * (INPUT_BYTES + ACTIVATION_BYTES)
        assert sent[1] == sent[0] + 2 * (ranks - 1) * OUTPUTS * 8


def layers_on_their_own():
    """With outputs gathered, with inputs taken from all, and two column layers behind one copy."""
    first, second = whole_layers()
    x, h = numbers(TOKENS, INPUTS).requires_grad_(), numbers(TOKENS, HIDDEN).requires_grad_()
    gathered = ColumnParallelLinear(first, output=REPLICATED)(x)
    (gathered * numbers(TOKENS, HIDDEN)).sum().backward()
    taken = RowParallelLinear(second, input=REPLICATED)(h)
    (taken * numbers(TOKENS, OUTPUTS)).sum().backward()
    twice = numbers(TOKENS, INPUTS).requires_grad_()
    layer = ColumnParallelLinear(first, input=COPIED)
    advance_to(1)
    copied = copy_to_ranks(twice)
    (layer(copied) + 2 * layer(copied)).sum().backward()
    return gathered.detach(), x.grad, taken.detach(), h.grad, twice.grad


def test_layers_on_their_own_take_and_give_whole_tensors():
    first, second = whole_layers()
    x, h = numbers(TOKENS, INPUTS).requires_grad_(), numbers(TOKENS, HIDDEN).requires_grad_()
    (first(x) * numbers(TOKENS, HIDDEN)).sum().backward()
    (second(h) * numbers(TOKENS, OUTPUTS)).sum().backward()
    twice = numbers(TOKENS, INPUTS).requires_grad_()
    (3 * first(twice)).sum().backward()
    run = Cluster(4).run(layers_on_their_own)
    expected = first(x).detach(), x.grad, second(h).detach(), h.grad, twice.grad
    for result in run.results:
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    assert collectives(run, 1, 2) == ["all_reduce"], "one copy serves both layers"


def test_a_shard_does_not_keep_the_whole_weight_alive():
    def program():
        first, second = whole_layers()
        shards = ColumnParallelLinear(first).weight, RowParallelLinear(second).weight
        return [shard.untyped_storage().nbytes() for shard in shards]

    assert Cluster(2).run(program).results == ([HIDDEN // 2 * INPUTS * 8, OUTPUTS * HIDDEN // 2 * 8],) * 2


def test_a_layer_without_bias_and_a_frozen_one_stay_so():
    def program():
        layer = nn.Linear(4, 6, bias=False).requires_grad_(False)
        column, row = ColumnParallelLinear(layer), RowParallelLinear(layer)
        assert row(column(torch.ones(1, 4))[..., :2]).shape == (1, 6)
        return [(each.bias is None, each.weight.requires_grad) for each in (column, row)]

    assert Cluster(2).run(program).results == ([(True, False)] * 2,) * 2


@pytest.mark.parametrize("layer", [ColumnParallelLinear, RowParallelLinear])
def test_features_that_cannot_be_cut_are_named(layer):
    dim = 0 if layer is ColumnParallelLinear else 1
    with pytest.raises(RankFailed, match=rf"dimension {dim} of shape \(10, 10\) cannot be cut into 4 equal parts"):
        Cluster(4).run(lambda: layer(nn.Linear(10, 10)))
