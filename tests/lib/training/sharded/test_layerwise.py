"""Whole parameters with an owner each, beside one process with torch's optimizer on the batches of all ranks."""

import itertools
import random

import pytest
import torch
import torch.distributed as dist
from sharded_training import batch, layers, loss_of, values
from threeloops.training.cluster import Cluster, RankFailed, advance_to
from threeloops.training.sharded import LayerwiseOptimizer, assign_owners, bytes_sent, layerwise_bytes
from torch import nn

WIDTH, STEPS = 6, 6


class Shampoo(torch.optim.Optimizer):
    """Gupta, Koren, Singer 2018, algorithm 1: an update that needs the rows and the columns of a matrix."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state, g = self.state[p], p.grad
                if not state:
                    state["rows"] = 1e-4 * torch.eye(p.shape[0], dtype=p.dtype)
                    state["columns"] = 1e-4 * torch.eye(p.shape[1], dtype=p.dtype)
                state["rows"] += g @ g.T
                state["columns"] += g.T @ g
                p -= group["lr"] * quarter(state["rows"]) @ g @ quarter(state["columns"])


def quarter(matrix):
    """matrix ** (-1/4)"""
    lengths, directions = torch.linalg.eigh(matrix)
    return directions @ torch.diag(lengths**-0.25) @ directions.T


OPTIMIZERS = {
    "muon": (torch.optim.Muon, {"lr": 0.05, "momentum": 0.9}),
    "shampoo": (Shampoo, {"lr": 0.05}),
    "sgd": (torch.optim.SGD, {"lr": 0.5, "momentum": 0.9}),
}
"""The first two do not see a gradient's scale, and SGD does."""


def split(model):
    """Matrices, and what Muon does not take."""
    named = list(model.named_parameters())
    return [n for n in named if n[1].ndim == 2], [n for n in named if n[1].ndim != 2]


def together(how, steps=STEPS, dtype=torch.float64):
    optimizer_class, options = OPTIMIZERS[how]
    model = layers(WIDTH, dtype=dtype)
    if dist.get_rank():  # values of rank 0 count
        nn.init.zeros_(model[0].linear.weight)
    matrices, others = split(model)
    updaters = [
        LayerwiseOptimizer(matrices, optimizer_class, **options),
        LayerwiseOptimizer(others, torch.optim.AdamW, lr=0.01),
    ]
    for step in range(steps):
        for updater in updaters:
            updater.zero_grad()
        loss_of(model(batch(dist.get_rank(), step, WIDTH, dtype))).backward()
        for updater in updaters:
            updater.step()
    return values(model)


def in_one_process(how, ranks, steps=STEPS, dtype=torch.float64):
    optimizer_class, options = OPTIMIZERS[how]
    model = layers(WIDTH, dtype=dtype)
    matrices, others = split(model)
    updaters = [
        optimizer_class([p for _, p in matrices], **options),
        torch.optim.AdamW([p for _, p in others], lr=0.01),
    ]
    for step in range(steps):
        model.zero_grad()
        loss_of(model(torch.cat([batch(rank, step, WIDTH, dtype) for rank in range(ranks)]))).backward()
        for updater in updaters:
            updater.step()
    return values(model)


@pytest.mark.parametrize(
    ("how", "ranks"), [("muon", 1), ("muon", 3), ("muon", 6), ("shampoo", 2), ("shampoo", 3), ("sgd", 3)]
)
def test_training_is_that_of_one_process(how, ranks):
    """Also with more ranks than matrices. Muon's iteration is in bfloat16, so its last bits may show."""
    expected = in_one_process(how, ranks)
    assert not torch.allclose(expected[0], layers(WIDTH, dtype=torch.float64)[0].linear.weight, atol=1e-3)
    tolerance = {"rtol": 0, "atol": 2e-3} if how == "muon" else {"rtol": 1e-9, "atol": 1e-12}
    results = Cluster(ranks).run(together, how).results
    for rank, found in enumerate(results):
        for mine, first, right in zip(found, results[0], expected, strict=True):
            assert torch.equal(mine, first), f"rank {rank}"
            torch.testing.assert_close(mine, right, **tolerance)


def narrow():
    model = layers(WIDTH, dtype=torch.bfloat16)
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    updater = LayerwiseOptimizer(model.named_parameters(), torch.optim.SGD, lr=2.0**-12)
    for _ in range(16):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        updater.step()
    return {float(value) for parameter in model.parameters() for value in parameter.flatten()}


def test_sixteen_bits_have_float32_masters():
    """Sixteen updates of 2**-12 are one of 2**-8, which bfloat16 shows below 1; one alone rounds to nothing."""
    assert list(Cluster(3).run(narrow).results) == 3 * [{1 - 2.0**-8}]


def with_given_gradients(steps, saved=None):
    """The parameters, and the state that this rank owns, after the steps with these numbers."""
    model = layers(WIDTH, dtype=torch.float64)
    matrices, _ = split(model)
    updater = LayerwiseOptimizer(matrices, Shampoo, lr=0.05)
    if saved is not None:
        updater.load_state_dict(saved)
    for step in steps:
        updater.zero_grad()
        for number, (_, parameter) in enumerate(matrices):
            chance = torch.Generator().manual_seed(100 * step + number)
            parameter.grad = torch.randn(parameter.shape, generator=chance, dtype=torch.float64)
        updater.step()
    return values(model), updater.state_dict()


def test_states_are_named_so_another_number_of_ranks_can_go_on():
    expected, _ = Cluster(1).run(with_given_gradients, range(4)).results[0]
    half_way = Cluster(3).run(with_given_gradients, range(2)).results
    merged = {name: state for _, states in half_way for name, state in states.items()}
    assert len(merged) == 4
    for ended, _ in Cluster(2).run(with_given_gradients, range(2, 4), merged).results:
        for mine, right in zip(ended, expected, strict=True):
            torch.testing.assert_close(mine, right, rtol=1e-9, atol=1e-12)


def loads_half():
    model = layers(WIDTH)
    updater = LayerwiseOptimizer(split(model)[0], torch.optim.SGD, lr=1.0)
    updater.load_state_dict({"0.linear.weight": {}})


def test_states_that_are_not_merged_are_refused():
    with pytest.raises(RankFailed, match=r"no state for .*, which rank \d owns: merge the state_dict\(\) of all ranks"):
        Cluster(2).run(loads_half)


# Owners and bytes


def test_owners_are_balanced_within_grahams_bound():
    """Against the best of all assignments, of small random cases."""
    chance = random.Random(0)
    for _ in range(60):
        ranks = chance.randint(1, 3)
        costs = [chance.randint(0, 20) for _ in range(chance.randint(0, 6))]
        owners = assign_owners(costs, ranks)
        best = min(heaviest(costs, choice, ranks) for choice in itertools.product(range(ranks), repeat=len(costs)))
        assert heaviest(costs, owners, ranks) <= (4 / 3 - 1 / (3 * ranks)) * best + 1e-9, (costs, ranks)


def heaviest(costs, owners, ranks):
    return max(sum(c for c, owner in zip(costs, owners, strict=True) if owner == rank) for rank in range(ranks))


def test_ties_go_to_the_lower_rank():
    assert assign_owners([1, 1, 1, 5], 2) == [1, 1, 1, 0]
    assert assign_owners([], 2) == []
    with pytest.raises(ValueError, match=r"costs = \[-1\] on 2 ranks"):
        assign_owners([-1], 2)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_the_bytes_are_those_that_travel(ranks):
    run = Cluster(ranks).run(one_step)
    sent = [sum(m.size for m in run.messages if m.source == rank and m.ready >= 1.0) for rank in range(ranks)]
    sizes = [p.numel() for _, p in split(layers(WIDTH))[0]]
    expected, flat = layerwise_bytes(sizes, ranks, parameter_bytes=4, gradient_bytes=4)
    assert sent == [expected] * ranks
    assert [flat] * ranks == bytes_sent([sum(sizes)], ranks, 1, parameter_bytes=4, gradient_bytes=4)


def one_step():
    model = layers(WIDTH)
    updater = LayerwiseOptimizer(split(model)[0], torch.optim.SGD, lr=1.0)
    loss_of(model(batch(0, 0, WIDTH))).backward()
    advance_to(1.0)
    updater.step()


# Refusals


def refused(case):
    model = layers(WIDTH)
    matrices, others = split(model)
    if case == "nothing":
        LayerwiseOptimizer([], torch.optim.SGD, lr=1.0)
    elif case == "mixed":
        LayerwiseOptimizer([*matrices, ("half", nn.Parameter(torch.ones(2).half()))], torch.optim.SGD, lr=1.0)
    elif case == "costs":
        LayerwiseOptimizer(matrices, torch.optim.SGD, costs=[1.0], lr=1.0)
    elif case == "names":
        LayerwiseOptimizer([matrices, others][dist.get_rank()], torch.optim.SGD, lr=1.0)
    else:
        LayerwiseOptimizer(matrices, torch.optim.SGD, lr=1.0).step()


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("nothing", "parameters of no kind: expected one dtype on one device, and at least one"),
        ("mixed", "parameters of torch.float16 on cpu, torch.float32 on cpu"),
        ("costs", "1 costs for 4 trained parameters"),
        ("names", "the module of rank 1 is not that of rank 0"),
        ("gradients", r"there is no gradient for .*linear.weight"),
    ],
)
def test_refusals_name_what_is_wrong(case, message):
    with pytest.raises(RankFailed, match=message):
        Cluster(2).run(refused, case)
