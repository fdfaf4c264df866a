"""The outer steps of DiLoCo, on the virtual cluster, beside its equations in float64."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from threeloops.training.cluster import Cluster, RankDies, RankLost, compute, uniform
from threeloops.training.data_parallel import DiLoCo
from threeloops.training.elastic.recovery import Members

SHAPES = [(3, 4), (5,)]
ELEMENTS = 17


def weights(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in SHAPES]


def inner_move(rank, outer, inner):
    """How far an inner step moves the weights: any numbers will do."""
    generator = torch.Generator().manual_seed(1000 * rank + 10 * outer + inner)
    return torch.randn(ELEMENTS, generator=generator, dtype=torch.float64) / 10


def moves(outer_steps, inner_steps, dtype=torch.float64, **settings):
    """The weights after each outer step, flat."""
    parameters = weights(dtype)
    outer = DiLoCo(parameters, **settings)
    history = []
    for number in range(outer_steps):
        for inner in range(inner_steps):
            move = inner_move(dist.get_rank(), number, inner).to(dtype).split([p.numel() for p in parameters])
            with torch.no_grad():
                for parameter, part in zip(parameters, move, strict=True):
                    parameter -= part.view(parameter.shape)
        outer.step()
        history.append(torch.cat([p.detach().flatten() for p in parameters]))
    return history


def oracle(ranks, outer_steps, inner_steps, rate=0.7, momentum=0.9):
    """Algorithm 1 with Nesterov momentum, v ← μ v + Δ and θ ← θ − rate (Δ + μ v), in float64."""
    theta = torch.cat([parameter.detach().flatten() for parameter in weights()])
    velocity, history = torch.zeros_like(theta), []
    for number in range(outer_steps):
        ends = [theta.clone() for _ in range(ranks)]
        for rank, end in enumerate(ends):
            for inner in range(inner_steps):
                end -= inner_move(rank, number, inner)
        delta = sum(theta - end for end in ends) / ranks
        velocity = momentum * velocity + delta
        theta = theta - rate * (delta + momentum * velocity)
        history.append(theta)
    return history


@pytest.mark.parametrize(
    ("ranks", "settings"), [(1, {}), (3, {}), (2, {"rate": 1.0, "momentum": 0.0}), (2, {"rate": 0.3, "momentum": 0.5})]
)
def test_outer_steps_are_those_of_the_algorithm(ranks, settings):
    results = Cluster(ranks).run(partial(moves, **settings), 4, 3).results
    for history in results:
        for actual, expected in zip(history, oracle(ranks, 4, 3, **settings), strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-14)


def test_without_momentum_and_with_rate_1_it_averages_the_weights():
    history, _ = Cluster(2).run(partial(moves, rate=1.0, momentum=0.0), 1, 5).results
    start = torch.cat([parameter.detach().flatten() for parameter in weights()])
    ends = [start - sum(inner_move(rank, 0, inner) for inner in range(5)) for rank in range(2)]
    torch.testing.assert_close(history[0], (ends[0] + ends[1]) / 2, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("send_dtype", "size"), [(None, 4), (torch.bfloat16, 2)])
def test_a_rank_sends_one_ring_all_reduce_of_the_model_per_outer_step(send_dtype, size):
    """In a ring of N, 2·(N − 1) chunks of 1/N of the model each; 17 elements are 6 + 6 + 5."""
    run = Cluster(uniform(3)).run(partial(moves, send_dtype=send_dtype), 2, 4, torch.float32)
    sent = [sum(row) for row in run.bytes]
    assert sum(sent) == 2 * (2 * 2 * ELEMENTS * size), "outer steps · 2 (N − 1) · elements · size"
    assert all(torch.equal(one, other) for one, other in zip(run.results[0][1:], run.results[1][1:], strict=True))


def loses_a_region(lost):
    parameters = weights()
    outer, members = DiLoCo(parameters), Members()
    for number in range(3):
        compute(1.0)
        with torch.no_grad():
            for part in parameters:
                part -= dist.get_rank() + 1.0
        while True:
            try:
                outer.step(members.group)
                break
            except RankLost as error:
                members = members.without(*error.ranks)
                lost.append(number)
    return members.ranks, parameters[1].tolist(), lost


def test_a_lost_region_changes_nothing_but_the_mean():
    """Rank 2 dies in its second round: the first outer step averages three regions, the others two."""
    run = Cluster(uniform(3), [RankDies(2, 1.5)], timeout=2.0).run(loses_a_region, [])
    theta, velocity = weights()[1].detach(), 0.0
    for mean in (2.0, 1.5, 1.5):
        velocity = 0.9 * velocity + mean
        theta = theta - 0.7 * (mean + 0.9 * velocity)
    for ranks, values, lost in run.results[:2]:
        assert (ranks, lost) == ((0, 1), [1])
        torch.testing.assert_close(torch.tensor(values, dtype=torch.float64), theta, rtol=0, atol=1e-13)


def test_without_parameters_it_is_refused():
    with pytest.raises(ValueError, match="no parameter"):
        DiLoCo([])
