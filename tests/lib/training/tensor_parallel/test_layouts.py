"""Changes of layout: what each of the six does forward, and that backward is the conjugate change."""

import pytest
import torch
import torch.distributed as dist
from collectives_seen import bytes_sent, collectives
from threeloops.training.cluster import Cluster, advance_to
from threeloops.training.tensor_parallel import (
    COPIED,
    REPLICATED,
    TERMS,
    all_gather,
    change_layout,
    copy_to_ranks,
    gather,
    reduce_scatter,
    sharded,
    split,
    sum_over_ranks,
)

RANKS, SHAPE = 3, (6, 3, 9)
WHOLE_BYTES = 6 * 3 * 9 * 8


def numbers(seed, shape=SHAPE):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def part(whole, dim, rank):
    length = whole.shape[dim] // RANKS
    return whole.narrow(dim, rank * length, length)


X = numbers(0)
WEIGHTS = [numbers(100 + rank) for rank in range(RANKS)]
"""What each rank multiplies its output by, so that its loss is its own."""
SAME = numbers(99)
TERM_VALUES = [numbers(200 + rank) for rank in range(RANKS)]

CASES = {
    # name: (function, what rank r has, weight of its output, expected output, expected gradient)
    "copy_to_ranks": (copy_to_ranks, lambda r: X, lambda r: WEIGHTS[r], lambda r: X, lambda r: sum(WEIGHTS)),
    "sum_over_ranks": (
        sum_over_ranks, lambda r: TERM_VALUES[r], lambda r: SAME, lambda r: sum(TERM_VALUES), lambda r: SAME,
    ),
    **{
        f"{name} {dim}": case
        for dim in (0, 1, -1)
        for name, case in {
            "all_gather": (
                lambda x, d=dim: all_gather(x, d), lambda r, d=dim: part(X, d, r), lambda r: WEIGHTS[r],
                lambda r: X, lambda r, d=dim: part(sum(WEIGHTS), d, r),
            ),
            "reduce_scatter": (
                lambda x, d=dim: reduce_scatter(x, d), lambda r: TERM_VALUES[r],
                lambda r, d=dim: part(SAME, d, r), lambda r, d=dim: part(sum(TERM_VALUES), d, r), lambda r: SAME,
            ),
            "split": (
                lambda x, d=dim: split(x, d), lambda r: X, lambda r, d=dim: part(SAME, d, r),
                lambda r, d=dim: part(X, d, r), lambda r: SAME,
            ),
            "gather": (
                lambda x, d=dim: gather(x, d), lambda r, d=dim: part(X, d, r), lambda r: SAME, lambda r: X,
                lambda r, d=dim: part(SAME, d, r),
            ),
        }.items()
    },
}  # fmt: skip


def every_case():
    found = {}
    for number, (name, (function, given, weight, _, _)) in enumerate(CASES.items()):
        x = given(dist.get_rank()).clone().requires_grad_()
        advance_to(1 + 2 * number)
        out = function(x)
        advance_to(2 + 2 * number)
        (out * weight(dist.get_rank())).sum().backward()
        found[name] = out.detach(), x.grad
    return found


@pytest.fixture(scope="module")
def run():
    return Cluster(RANKS).run(every_case)


@pytest.mark.parametrize("name", CASES)
def test_values_go_forward_and_gradients_come_back(run, name):
    _, _, _, out, gradient = CASES[name]
    for rank, result in enumerate(run.results):
        torch.testing.assert_close(result[name], (out(rank), gradient(rank)), rtol=1e-13, atol=1e-13)


FORWARD_AND_BACKWARD = {
    "copy_to_ranks": ([], ["all_reduce"]),
    "sum_over_ranks": (["all_reduce"], []),
    "all_gather": (["all_gather"], ["reduce_scatter"]),
    "reduce_scatter": (["reduce_scatter"], ["all_gather"]),
    "split": ([], ["all_gather"]),
    "gather": (["all_gather"], []),
}
COST = {"all_reduce": 2 * (RANKS - 1) * WHOLE_BYTES, "all_gather": (RANKS - 1) * WHOLE_BYTES}
COST["reduce_scatter"] = COST["all_gather"]


@pytest.mark.parametrize("name", CASES)
def test_each_is_one_collective_or_none_and_backward_is_its_conjugate(run, name):
    at = 1 + 2 * list(CASES).index(name)
    for start, expected in zip((at, at + 1), FORWARD_AND_BACKWARD[name.split()[0]], strict=True):
        for rank in range(RANKS):
            assert collectives(run, start, start + 1, rank) == expected
        assert bytes_sent(run, start, start + 1) == sum(COST[each] for each in expected)


def test_an_input_of_any_strides_will_do_and_stays_as_it_is():
    def program():
        x = X.transpose(0, 2).contiguous().transpose(0, 2).requires_grad_()
        kept = x.detach().clone()
        out = copy_to_ranks(x)
        (sum_over_ranks(out) * 2).sum().backward()
        assert torch.equal(x, kept) and not x.is_contiguous()
        return x.grad

    for gradient in Cluster(RANKS).run(program).results:  # from each of the three copies a gradient of 2
        assert torch.equal(gradient, torch.full(SHAPE, 2.0 * RANKS, dtype=torch.float64))


def test_no_change_is_no_step_of_autograd():
    x = X.clone().requires_grad_()
    assert all(change_layout(x, layout, layout) is x for layout in (REPLICATED, COPIED, TERMS, sharded(1)))
