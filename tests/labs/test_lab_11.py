"""Lab 11: the numbers of its prose, and its exercises' small cases against the library."""

import math

import pytest
import torch
from threeloops.lab.drawings import expert_load
from threeloops.training.expert_parallel import Router, keep_within_capacity
from threeloops.training.tensor_parallel import loss_traffic

GIGA = 1e9


def communication(tokens, n, parameters=13e9, layers=40, width=5120, gpus=64, nvlink=450e9, network=50e9):
    """Seconds of tensor and of data parallelism, all-reduce by all-reduce."""

    def all_reduce(ranks, size, bandwidth):
        return 2 * (ranks - 1) / ranks * size / bandwidth

    replicas = gpus // n
    block = 4 * all_reduce(n, tokens / replicas * width * 2, nvlink if n <= 8 else network)
    return layers * block, all_reduce(replicas, parameters / n * 2, network)


@pytest.mark.parametrize(
    ("tokens", "n", "tensor", "data", "together"),
    [(1e6, 4, 0.341, 0.244, 0.585), (1e6, 8, 0.796, 0.114, 0.910)],
)
def test_the_worked_example_of_degrees(tokens, n, tensor, data, together):
    found = communication(tokens, n)
    assert found == pytest.approx((tensor, data), abs=6e-4)
    assert sum(found) == pytest.approx(together, abs=6e-4)


def test_a_quarter_of_the_tokens_and_what_fits():
    assert sum(communication(0.25e6, 4)) == pytest.approx(0.329, abs=6e-4)
    assert sum(communication(0.25e6, 8)) == pytest.approx(0.313, abs=6e-4)
    assert (16 * 13e9 / 2 / GIGA, 16 * 13e9 / 4 / GIGA) == (104, 52)
    across, inside = (communication(1e6, n)[0] for n in (16, 8))
    assert across / inside == pytest.approx((15 / 50) / (7 / 450))


def test_a_large_matrix_and_how_many_fit():
    assert round(12288**2 * 2 / GIGA, 1) == 0.3
    assert 80 * GIGA // (12288**2 * 16) == 33
    assert 12 * 96 == 1152


def test_the_worked_example_of_a_router():
    router = Router(4, 4, 2, normalise=True)
    router.weight.data = torch.eye(4)
    routing = router(torch.tensor([[1.0, 3.0, 2.0, 2.0]]).log())
    assert routing.scores[0].tolist() == pytest.approx([1 / 8, 3 / 8, 2 / 8, 2 / 8])
    assert routing.experts.tolist() == [[1, 2]]
    assert routing.weights[0].tolist() == pytest.approx([3 / 5, 2 / 5])


def test_the_worked_example_of_capacity():
    kept = keep_within_capacity(torch.tensor([[0, 1], [1, 2], [0, 2]]), experts=3, factor=0.5)
    assert kept.tolist() == [[True, False], [True, True], [False, False]]


def test_the_sum_of_the_worked_mlp():
    hidden, down, bias = torch.tensor([1, 2, 3, 2]), torch.ones(4, dtype=torch.int64), 10
    assert [int(hidden[own] @ down[own]) for own in (slice(0, 2), slice(2, 4))] == [3, 5]
    assert int(hidden @ down) + bias == 18


def test_the_logits_of_a_large_vocabulary():
    assert round(8192 * 128_000 * 2 / GIGA, 1) == 2.1
    assert round(8192 * 128_000 * 4 / GIGA, 1) == 4.2
    assert round(7 * 128_000 * 4 / loss_traffic(1, 8, 4).bytes) == 21333


def test_random_choices_drop_some_tokens_even_where_no_expert_is_better():
    loads = [expert_load(512, 8, k=1, skew=0.0, factor=1.0, seed=seed) for seed in range(20)]
    assert all(max(load.kept) <= 64 and sum(load.chosen) == 512 for load in loads)
    assert 2 < sum(load.dropped for load in loads) / 20 / 5.12 < 8
    assert expert_load(512, 8, k=2, skew=2.0, factor=math.inf).dropped == 0
