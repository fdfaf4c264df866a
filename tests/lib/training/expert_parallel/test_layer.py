"""Experts on several ranks against the same rule in one process: values, gradients, bytes, and who waits for whom."""

import math

import pytest
import torch
import torch.distributed as dist
from collectives_seen import bytes_sent, collectives
from threeloops.training.cluster import Cluster, RankFailed, advance_to, charge, now
from threeloops.training.expert_parallel import (
    ExpertParallel,
    Load,
    Router,
    all_to_all_bytes,
    balanced_all_to_all_bytes,
    counts_bytes,
    exchange_rows,
    load_balancing_loss,
    own_experts,
    z_loss,
)
from torch import nn

WIDTH, EXPERTS = 5, 8


def numbers(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens_of(rank, case):
    """Another number of tokens per rank; of two sequences where it is even."""
    count = {"one rank has none": 0 if rank == 1 else 6}.get(case, 7 + 3 * rank)
    x = numbers(count, WIDTH, seed=10 + rank)
    if case == "one expert":  # the largest logit is always that of expert 5
        x[:, 0] = 100
    if case == "nobody's expert":  # the smallest one is always that of expert 2
        x[:, 0] = 0.1 + x[:, 0].abs()
    return x.view(2, -1, WIDTH) if count % 2 == 0 else x


def make_expert(number):
    torch.manual_seed(100 + number)
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, WIDTH)).double()


def make_router(case):
    k, normalise = {"top 1": (1, False), "normalised": (3, True)}.get(case, (2, False))
    router = Router(WIDTH, EXPERTS, k, normalise=normalise).double()
    router.weight.data.copy_(numbers(EXPERTS, WIDTH, seed=2))
    router.weight.data[:, 0] = torch.arange(EXPERTS) == 5
    if case == "nobody's expert":
        router.weight.data[2] = 0
        router.weight.data[:, 1:] = 0
        router.weight.data[2, 0] = -1e3
        router.weight.data[:, 0] += torch.linspace(0, 1, EXPERTS)
    if case == "ties":
        router.weight.data.zero_()
    return router


CASES = {  # capacity factors
    "plain": 1.25,
    "top 1": 1.0,
    "normalised": 0.7,
    "dropless": math.inf,
    "one expert": 1.0,
    "ties": 1.5,
    "nobody's expert": 2.0,
    "one rank has none": 1.0,
    "hardly any room": 1e-9,
}


def loss_of(y, routing, rank):
    weight = numbers(y.numel(), seed=50 + rank).view(y.shape)
    return (y * weight).sum() + 3 * load_balancing_loss(routing) + 0.1 * z_loss(routing)


def every_case(ranks):
    rank, found = dist.get_rank(), {}
    for number, (case, factor) in enumerate(CASES.items()):
        experts = [make_expert(e) for e in own_experts(EXPERTS)]
        layer = ExpertParallel(make_router(case), experts, capacity_factor=factor)
        x = tokens_of(rank, case).requires_grad_()
        advance_to(1 + 2 * number)
        y = layer(x)
        advance_to(2 + 2 * number)
        loss_of(y, layer.routing, rank).backward()
        of_experts = [[p.grad for p in expert.parameters()] for expert in experts]
        found[case] = y.detach(), x.grad, layer.router.weight.grad, of_experts, layer.load
    return found


def one_process(ranks, case):
    """The same rule, a token after the other: each rank's tokens compete for room among themselves."""
    experts, router = [make_expert(e) for e in range(EXPERTS)], make_router(case)
    inputs, outputs, loads, total = [], [], [], 0.0
    for rank in range(ranks):
        x = tokens_of(rank, case).requires_grad_()
        tokens = x.reshape(-1, WIDTH)
        scores = (tokens @ router.weight.T).softmax(-1)
        best = [sorted(range(EXPERTS), key=lambda e, row=row: -row[e])[: router.k] for row in scores.tolist()]
        room = [max(1, math.ceil(router.k * len(tokens) / EXPERTS * min(CASES[case], EXPERTS)))] * EXPERTS
        terms, chosen, kept = [[] for _ in tokens], [0] * EXPERTS, [0] * EXPERTS
        for choice in range(router.k):
            for token, order in enumerate(best):
                expert = order[choice]
                chosen[expert] += 1
                if room[expert] > kept[expert]:
                    kept[expert] += 1
                    weight = scores[token, expert]
                    if router.normalise:
                        weight = weight / sum(scores[token, e] for e in order)
                    terms[token].append(weight * experts[expert](tokens[token]))
        rows = [sum(each) if each else 0 * tokens[0] for each in terms]
        y = (torch.stack(rows) if rows else tokens * 0).view(x.shape)
        total = total + loss_of(y, router(tokens), rank)
        inputs, outputs, loads = [*inputs, x], [*outputs, y], [*loads, Load(tuple(chosen), tuple(kept))]
    total.backward()
    return inputs, outputs, loads, router, experts


@pytest.fixture(scope="module", params=[1, 2, 4])
def run(request):
    return request.param, Cluster(request.param).run(every_case, request.param)


def zeros_for_none(p):
    return torch.zeros_like(p) if p.grad is None else p.grad


@pytest.mark.parametrize("case", CASES)
def test_values_gradients_and_loads_are_those_of_one_process(run, case):
    ranks, found = run
    inputs, outputs, loads, router, experts = one_process(ranks, case)
    tolerance = {"rtol": 1e-12, "atol": 1e-12 if case != "one expert" else 1e-9}
    for rank, result in enumerate(found.results):
        y, gradient, _, of_experts, load = result[case]
        torch.testing.assert_close(y, outputs[rank].detach(), **tolerance)
        torch.testing.assert_close(gradient, inputs[rank].grad, **tolerance)
        assert load == loads[rank]
        for expert, grads in zip(experts[rank * EXPERTS // ranks :], of_experts, strict=False):
            torch.testing.assert_close(grads, [zeros_for_none(p) for p in expert.parameters()], **tolerance)
    of_router = sum(result[case][2] for result in found.results)
    torch.testing.assert_close(of_router, router.weight.grad, **tolerance)


def test_the_cases_are_what_their_names_say(run):
    ranks, found = run
    loads = {case: [result[case][4] for result in found.results] for case in CASES}
    assert all(load.dropped == 0 for load in loads["dropless"])
    assert all(load.dropped > 0 for load in loads["one expert"])
    assert all(load.chosen[5] == sum(load.chosen) // 2 for load in loads["one expert"])
    assert all(load.kept[2] == 0 for load in loads["nobody's expert"])
    assert all(max(load.kept) == 1 for load in loads["hardly any room"])
    assert ranks == 1 or sum(loads["one rank has none"][1].chosen) == 0
    assert all(load.chosen[0] == load.chosen[1] == sum(load.chosen) // 2 for load in loads["ties"])


@pytest.mark.parametrize("case", CASES)
def test_bytes_of_the_exchanges_are_the_closed_form(run, case):
    """Counts, dispatch and combine forward; the same two back again with gradients."""
    ranks, found = run
    at = 1 + 2 * list(CASES).index(case)
    assert collectives(found, at, at + 1) == ["all_to_all"] * 3
    assert collectives(found, at + 1, at + 2) == ["all_to_all"] * 2
    there = all_to_all_bytes([result[case][4] for result in found.results], WIDTH, 8)
    counts = counts_bytes(EXPERTS, ranks)
    assert bytes_sent(found, at, at + 1) == 2 * sum(map(sum, there)) + ranks * counts
    assert bytes_sent(found, at + 1, at + 2) == 2 * sum(map(sum, there))
    sent = [[0] * ranks for _ in range(ranks)]
    for message in found.messages:
        if at <= message.ready < at + 1:
            sent[message.source][message.target] += message.size
    for a in range(ranks):
        for b in range(ranks):
            assert sent[a][b] == (a != b) * (there[a][b] + there[b][a] + EXPERTS // ranks * 8)


def test_balanced_bytes_are_those_of_a_load_without_preferences():
    loads = [Load((6,) * 8, (6,) * 8)] * 4  # 24 tokens per rank, k = 2
    for row in all_to_all_bytes(loads, WIDTH, 2):
        assert sum(row) == balanced_all_to_all_bytes(24, WIDTH, 2, 4, 2) == 3 * 12 * WIDTH * 2
    assert all_to_all_bytes(loads, WIDTH, 2)[1][1] == 0


class Charged(nn.Module):
    """An expert that takes a millisecond per row."""

    def forward(self, x):
        return charge(2 * x, 1e-3 * len(x), 0)


def unbalanced(favourite):
    router = Router(4, 4, 1)
    router.weight.data.copy_(torch.eye(4) * 10)
    layer = ExpertParallel(router, [Charged()], capacity_factor=math.inf)
    x = torch.eye(4).repeat(3, 1)
    if favourite is not None:
        x[:6] = torch.eye(4)[favourite]
    begin = now()
    layer(x)
    return now() - begin, layer.load


def test_the_busiest_expert_decides_how_long_all_ranks_take():
    """moe-1."""
    for favourite, rows in ((None, 4 * 3), (1, 4 * (6 + 1)), (3, 4 * (6 + 2))):
        run = Cluster(4).run(unbalanced, favourite)
        seconds = [result[0] for result in run.results]
        load = run.results[0][1]
        assert max(load.kept) * 4 == rows and load.imbalance == max(load.kept) / 3
        for each in seconds:
            assert rows * 1e-3 < each < rows * 1e-3 + 3e-4  # and some latencies


def test_rows_take_the_way_back_with_their_gradients():
    def program():
        rank = dist.get_rank()
        sends = [[1, 0, 2], [0, 3, 1], [0, 0, 0]][rank]
        gets = [[1, 0, 0], [0, 3, 0], [2, 1, 0]][rank]
        rows = (10.0 * rank + torch.arange(sum(sends)))[:, None].requires_grad_()
        out = exchange_rows(rows, sends, gets)
        (out * (100 * rank + torch.arange(len(out)))[:, None]).sum().backward()
        return out.detach().flatten().tolist(), rows.grad.flatten().tolist()

    results = Cluster(3).run(program).results
    assert [result[0] for result in results] == [[0], [10, 11, 12], [1, 2, 13]]
    assert [result[1] for result in results] == [[0, 200, 201], [100, 101, 102, 202], []]


def test_ranks_and_experts_that_do_not_fit_are_named():
    with pytest.raises(RankFailed, match="8 experts cannot be shared equally by 3 ranks: use a multiple of 3"):
        Cluster(3).run(lambda: own_experts(8))
    with pytest.raises(RankFailed, match="8 experts on rank 0: expected 4, numbers 0 to 3 of 8"):
        Cluster(2).run(lambda: ExpertParallel(make_router("plain"), [make_expert(e) for e in range(8)]))
    with pytest.raises(RankFailed, match="capacity factor = 0: expected a number above 0"):
        Cluster(2).run(
            lambda: ExpertParallel(make_router("plain"), [make_expert(e) for e in range(4)], capacity_factor=0)
        )
