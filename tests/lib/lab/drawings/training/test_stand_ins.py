"""The stand-ins for answers that a reader has not written: they compute what one process would."""

import pytest
import torch
import torch.distributed as dist
from threeloops.lab.drawings.training import buckets, experts, ring, sharding
from threeloops.training.cluster import Cluster
from threeloops.training.collectives import ALL_REDUCES, Link
from threeloops.training.data_parallel.scaling import overlapped_step


def test_the_library_sums_in_each_way():
    def on_each():
        x = torch.arange(8.0) + dist.get_rank()
        return [ring.REFERENCE[name](x) for name in ("sum_through_rank_0", "doubling_all_reduce", "reduce_scatter")]

    total = 4 * torch.arange(8.0) + 6
    for rank, (naive, doubling, chunk) in enumerate(Cluster(4).run(on_each).results):
        assert torch.equal(naive, total) and torch.equal(doubling, total) and torch.equal(chunk, total.chunk(4)[rank])


def test_the_library_predicts_and_chooses():
    chooses = ring.REFERENCE["choose_algorithm"]
    assert ring.REFERENCE["fit_link"]([1_000, 1_000_000], [11e-6, 1010e-6]) == pytest.approx((1e-5, 1e9))
    arguments = (2**18, 4, 8, 14e-6, 50e9)
    assert chooses["all_reduce_seconds"]("naive", *arguments) == pytest.approx(2 * (14e-6 + 7 * 2**20 / 50e9))
    for name, theirs in (("ring", "ring"), ("doubling", "recursive doubling")):
        cost = ALL_REDUCES[theirs].cost(2**18, 4, 8, Link(14e-6, 50e9))
        assert chooses["all_reduce_seconds"](name, *arguments) == cost.seconds
    assert [chooses["fastest_all_reduce"](n, 4, 8, 14e-6, 50e9) for n in (1, 2**15, 2**24)] == [
        "naive",
        "doubling",
        "ring",
    ]


def test_data_parallel_training_has_the_gradients_of_one_process():
    def model_of(seed):
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))

    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(9))

    def on_each():
        model = model_of(dist.get_rank())
        buckets.REFERENCE["start_together"](model)
        finish = buckets.REFERENCE["overlap"](model, [["2.bias", "2.weight"], ["0.bias", "0.weight"]])
        for _ in range(2):
            model.zero_grad()
            model(rows.chunk(2)[dist.get_rank()]).square().mean().backward()
            finish()
        return [p.grad for p in model.parameters()]

    alone = model_of(0)
    alone(rows).square().mean().backward()
    for gradients in Cluster(2).run(on_each).results:
        torch.testing.assert_close(gradients, [p.grad for p in alone.parameters()])


def test_buckets_and_the_time_of_a_step():
    assert buckets.REFERENCE["assign_buckets"]([3, 5, 2], 6, 2) == [[2], [1, 0]]
    step = buckets.REFERENCE["scaling"](0.8e-3, 1.6e-3, 2**21, 8, 4, 10e-6, 1e9)  # the worked example of lab 09
    assert step.seconds == pytest.approx(4.625728e-3)
    communication = 8 * 6 * (10e-6 + 65.536e-6)
    expected = overlapped_step(2.4e-3, communication, step.hidden, 4)
    assert (step.seconds, step.efficiency) == pytest.approx((expected.seconds, expected.efficiency))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_each_stage_trains_as_ddp(stage):
    ddp, sharded = (
        Cluster(2).run(sharding.loss_of_stage, number, sharding.REFERENCE, 8, 2, 4, 3).results for number in (0, stage)
    )
    for own, expected in zip(sharded, ddp, strict=True):
        assert own == pytest.approx(expected, rel=1e-5) and own[0] > own[-1]


def test_the_states_of_a_stage():
    held = sharding.REFERENCE["state_bytes"](12, 4, 1, True)
    assert (held.parameters, held.gradients, held.optimizer) == (24, 24, 36)
    assert sharding.REFERENCE["state_bytes"](8, 4, 3, False).optimizer == 16


def test_choices_within_capacity_and_rows_from_their_experts():
    kept = experts.REFERENCE["keep_within_capacity"](torch.tensor([[0, 1], [1, 2], [0, 2]]), 1)
    assert kept.tolist() == [[True, False], [True, True], [False, False]]
    rows = torch.arange(6.0).view(2, 3, 1)
    chosen = torch.tensor([[3, 0, 3], [1, 3, 0]])

    def on_each():
        rank = dist.get_rank()
        return experts.REFERENCE["expert_layer"](rows[rank], chosen[rank], lambda e, part: part + 10 * (e + 1), 4)

    for rank, out in enumerate(Cluster(2).run(on_each).results):
        assert torch.equal(out, rows[rank] + 10 * (chosen[rank, :, None] + 1))
