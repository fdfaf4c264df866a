"""ZeRO-1 and ZeRO-2 beside our DDP, and beside one process on the batches of all ranks."""

import pytest
import torch
import torch.distributed as dist
from charged import between
from sharded_training import Layer, alone, batch, layer_mb, layers, loss_of, train, values
from threeloops.training.cluster import Cluster, RankFailed, advance_to
from threeloops.training.data_parallel import DDP
from threeloops.training.sharded import ZeroOptimizer
from torch import nn

STAGES = (1, 2)
EVEN, UNEVEN = 11, 6
"""Widths whose layers have 132 elements, a multiple of 2, 3 and 4 ranks, and 42, no multiple of 4 and 5."""


def bits():
    return {
        "ddp": train("ddp", EVEN), 1: train(1, EVEN), 2: train(2, EVEN), "one": train(2, EVEN, buckets_in_flight=1)
    }  # fmt: skip


@pytest.mark.parametrize("ranks", [3, 4])
def test_after_twenty_steps_of_adam_all_ranks_have_the_bits_of_ddp(ranks):
    results = Cluster(ranks).run(bits).results
    assert not torch.equal(results[0]["ddp"][0], values(layers(EVEN))[0])
    for found in results:
        for how in found:
            assert all(map(torch.equal, found[how], results[0]["ddp"])), how


def other_buckets():
    return {"ddp": train("ddp", UNEVEN), 2: train(2, UNEVEN, buckets=1 / 3)}


def test_on_two_ranks_they_have_them_whatever_the_buckets():
    for found in Cluster(2).run(other_buckets).results:
        assert all(map(torch.equal, found["ddp"], found[2]))


def uneven():
    return {how: train(how, UNEVEN, torch.float64, steps=10, clip=0.01) for how in ("ddp", *STAGES)}


@pytest.mark.parametrize("ranks", [1, 5])
def test_sizes_that_ranks_do_not_divide_and_clipping_agree_with_one_process_to_rounding(ranks):
    expected = alone(ranks, UNEVEN, steps=10, clip=0.01)
    assert not torch.allclose(expected[0], alone(ranks, UNEVEN, steps=10)[0], rtol=1e-6)
    for found in Cluster(ranks).run(uneven).results:
        for how in found:
            torch.testing.assert_close(found[how], expected, rtol=1e-9, atol=1e-12)


# Accumulation, 16 bits, groups


def accumulated():
    """Gradients of two batches, in each way that there is; the shards of all ranks, joined."""
    rank, made = dist.get_rank(), {}
    mb = layer_mb(UNEVEN, torch.float64)
    for stage in STAGES:
        for how in ("no_sync", "twice"):
            if (stage, how) == (1, "twice"):
                continue
            model = layers(UNEVEN, dtype=torch.float64)
            zero = ZeroOptimizer(model, torch.optim.SGD, stage=stage, bucket_cap_mb=mb, first_bucket_mb=mb, lr=1.0)
            before = values(model)
            for step in range(2):  # what is left of the first must not be in the second
                zero.zero_grad()
                if how == "no_sync":
                    with zero.no_sync():
                        loss_of(model(batch(rank, 0, UNEVEN, torch.float64))).backward()
                else:
                    loss_of(model(batch(rank, 0, UNEVEN, torch.float64))).backward()
                if stage == 2 and how == "twice":
                    assert all(p.grad is None for p in model.parameters())
                loss_of(model(batch(rank, 1, UNEVEN, torch.float64))).backward()
                if stage == 1 and step == 0:
                    assert all(p.grad is not None for p in model.parameters())
                if step == 0:
                    zero.zero_grad()
            zero.step()
            made[stage, how] = [a - b for a, b in zip(before, values(model), strict=True)]
    return made


def test_gradients_of_several_backwards_add_up():
    model = layers(UNEVEN, dtype=torch.float64)
    for step in range(2):
        loss_of(model(torch.cat([batch(rank, step, UNEVEN, torch.float64) for rank in range(3)]))).backward()
    expected = [p.grad for p in model.parameters()]
    for made in Cluster(3).run(accumulated).results:
        assert len(made) == 3
        for how, found in made.items():
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, msg=str(how))


def half_precision():
    """bfloat16: float32 masters take steps that are too small for the parameters."""
    rank, made = dist.get_rank(), {}
    for stage in STAGES:
        torch.manual_seed(rank)
        model = Layer(5).bfloat16()
        zero = ZeroOptimizer(model, torch.optim.SGD, stage=stage, lr=2.0**-12)
        start = values(model)
        for _ in range(64):
            zero.zero_grad()
            sum(p.float().sum() * (1 + rank) for p in model.parameters()).backward()
            zero.step()
        (bucket,) = zero.buckets
        made[stage] = start, values(model), bucket.master.detach().clone(), bucket.master.dtype, bucket.shard.dtype
    return made


def test_masters_of_16_bit_parameters_are_float32_and_lose_no_small_step():
    results = Cluster(2).run(half_precision).results
    for made in results:
        for stage in STAGES:
            start, end, _, master, shard = made[stage]
            assert all(map(torch.equal, start, results[0][stage][0]))
            exact = [a.float() - 64 * 1.5 * 2.0**-12 for a in start]  # each step alone is below bfloat16's spacing
            assert all(torch.equal(a, b.bfloat16()) for a, b in zip(end, exact, strict=True))
            assert (master, shard) == (torch.float32, torch.bfloat16)
    for stage in STAGES:
        joined = torch.cat([made[stage][2] for made in results])
        weight, bias = results[0][stage][0]
        assert torch.equal(joined, torch.cat([bias, weight.flatten()]).float() - 64 * 1.5 * 2.0**-12)


class Awkward(nn.Module):
    """A tied weight, a frozen layer, two dtypes, and buffers that a forward changes."""

    def __init__(self, start):
        super().__init__()
        self.one, self.other, self.frozen = (nn.Linear(3, 3).double() for _ in range(3))
        self.other.weight = self.one.weight
        self.frozen.requires_grad_(False)
        self.scale = nn.Parameter(torch.full((1,), float(start)))
        self.register_buffer("seen", torch.full((2,), float(start)))

    def forward(self, x):
        self.seen += 1 + dist.get_rank()
        return self.other(self.frozen(self.one(x)).tanh()) * self.scale + self.seen.sum()


def subgroup():
    rank = dist.get_rank()
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    torch.manual_seed(rank)
    model = Awkward(rank + 1)
    frozen = model.frozen.weight.clone()
    zero = ZeroOptimizer(model, torch.optim.SGD, groups[rank % 2], lr=0.5)
    buffers = []
    for step in range(2):
        zero.zero_grad()
        buffers.append(model.seen.clone())
        loss_of(model(batch(rank, step, 3, torch.float64))).backward()
        zero.step()
    return values(model), frozen, buffers, zero.clip_grad_norm(1e9), [dict(b.layout.shapes) for b in zero.buckets]


def test_a_group_trains_among_itself_with_tied_and_frozen_parameters_dtypes_and_buffers():
    results = Cluster(4).run(subgroup).results
    for ranks in ((0, 2), (1, 3)):
        torch.manual_seed(ranks[0])
        model = Awkward(ranks[0] + 1)
        for step in range(2):
            before = model.seen.clone()
            gradients = []
            for rank in ranks:
                model.zero_grad()
                model.seen.copy_(before if step else torch.full((2,), ranks[0] + 1.0))
                x = batch(rank, step, 3, torch.float64)
                model.seen += 1 + rank
                out = model.other(model.frozen(model.one(x)).tanh()) * model.scale + model.seen.sum()
                loss_of(out).backward()
                gradients.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
            model.seen.copy_((before if step else torch.full((2,), ranks[0] + 1.0)) + 1 + ranks[0])
            mean = [None if g is None else (g + h) / 2 for g, h in zip(*gradients, strict=True)]
            with torch.no_grad():
                for p, g in zip(model.parameters(), mean, strict=True):
                    if g is not None:
                        p -= 0.5 * g
        for rank in ranks:
            found, frozen, buffers, norm, buckets = results[rank]
            torch.testing.assert_close(found, values(model), rtol=1e-6, atol=1e-9)
            torch.manual_seed(ranks[0])
            assert torch.equal(frozen, Awkward(1).frozen.weight) is (rank == ranks[0])
            assert buckets == [{"other.bias": (3,), "one.bias": (3,), "one.weight": (3, 3)}, {"scale": (1,)}]
            whole = torch.cat([g.double().flatten() for g in mean if g is not None])
            assert norm.item() == pytest.approx(whole.norm().item(), rel=1e-6)


# Saved and loaded


def saved():
    """Three steps, the state, three more; and the same from the state in another model."""
    rank, mb = dist.get_rank(), layer_mb(UNEVEN)
    ends = []
    state = None
    for _ in range(2):
        model = layers(UNEVEN)
        zero = ZeroOptimizer(model, torch.optim.Adam, stage=2, bucket_cap_mb=mb, first_bucket_mb=mb, lr=0.01)
        for step in range(0 if state is None else 3, 6):
            if step == 3 and state is None:
                state = zero.state_dict()
            elif step == 3:
                zero.load_state_dict(state)
            zero.zero_grad()
            loss_of(model(batch(rank, step, UNEVEN))).backward()
            zero.step()
        ends.append(values(model))
    return ends, state


def test_training_goes_on_from_a_saved_state_and_shards_of_all_ranks_are_the_model():
    results = Cluster(4).run(saved).results
    for (first, second), _ in results:
        assert all(map(torch.equal, first, second))
    shards = [state["shards"] for _, state in results]
    assert [len(each) for each in shards] == [4] * 4
    momenta = [state["optimizer"]["state"] for _, state in results]
    for number, of_ranks in enumerate(zip(*shards, strict=True)):
        assert sum(shard["values"].numel() for shard in of_ranks) == UNEVEN**2 + UNEVEN
        assert [m[number]["exp_avg"].numel() for m in momenta] == [shard["values"].numel() for shard in of_ranks]


# What is sent, and when


def reduced_early(stage):
    """Which parameters still have a gradient when the first layer's backward runs; and whether in stage 1 this rank's
    part of what they keep is the mean."""
    model, mb, seen = layers(EVEN), layer_mb(EVEN), []
    zero = ZeroOptimizer(model, torch.optim.SGD, stage=stage, bucket_cap_mb=mb, first_bucket_mb=mb, lr=0.1)
    advance_to(1)
    inner = model[0](batch(dist.get_rank(), 0, EVEN).requires_grad_())
    inner.register_hook(lambda _: seen.extend(p.grad is not None for p in model.parameters()))
    loss_of(model[1:](inner)).backward()
    if stage == 1:
        for bucket in zero.buckets:
            kept = bucket.layout.flatten({n: model.get_parameter(n).grad for n in reversed(bucket.layout.shapes)})
            assert torch.equal(bucket.layout.shard(kept, dist.get_rank()), bucket.shard.grad)
    return seen


@pytest.mark.parametrize(("stage", "kept"), [(1, True), (2, False)])
def test_gradients_are_reduced_while_backward_runs_and_only_stage_1_keeps_them(stage, kept):
    run = Cluster(2).run(reduced_early, stage)
    for seen in run.results:
        assert seen == [False] * 2 + [kept] * 6
    sent = [m.size for m in between(run, 1, 2) if m.source == 0]
    assert sent == [(EVEN**2 + EVEN) * 4 // 2] * 4


# What is refused


def misuse():
    said = {}

    def catch(name, use):
        try:
            use()
        except (RuntimeError, TypeError, ValueError) as error:
            said[name] = str(error)

    def unused():
        model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        ZeroOptimizer(model, torch.optim.SGD, lr=0.1)
        model[0](torch.ones(1, 2)).sum().backward()

    def again():
        model = nn.Linear(2, 2)
        ZeroOptimizer(model, torch.optim.SGD, stage=1, lr=0.1)
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()

    catch("stage", lambda: ZeroOptimizer(nn.Linear(2, 2), torch.optim.SGD, stage=3))
    catch("flight", lambda: ZeroOptimizer(nn.Linear(2, 2), torch.optim.SGD, buckets_in_flight=0))
    catch("nothing", lambda: ZeroOptimizer(nn.Linear(2, 2).requires_grad_(False), torch.optim.SGD))
    catch("no gradient", lambda: ZeroOptimizer(nn.Linear(2, 2), torch.optim.SGD).step())
    catch("unused", unused)
    catch("again", again)
    sparse = nn.Embedding(4, 2, sparse=True)
    ZeroOptimizer(sparse, torch.optim.SGD, lr=0.1)
    catch("sparse", lambda: sparse(torch.tensor([1])).sum().backward())
    return said


def test_wrong_use_is_named():
    (said,) = Cluster(1).run(misuse).results
    assert said["stage"] == "stage = 3: expected 1 or 2; DDP is stage 0, and FSDP stage 3"
    assert "buckets_in_flight = 0" in said["flight"] and "nothing to optimize" in said["nothing"]
    assert "no averaged gradient to step with" in said["no gradient"]
    assert "there is no gradient for 1.bias, 1.weight: expected one for each" in said["unused"]
    assert "which is averaged already: call zero_grad()" in said["again"]
    assert "the gradient of 'weight' is sparse" in said["sparse"]


def different():
    ZeroOptimizer(nn.Linear(3, 3 + dist.get_rank()), torch.optim.SGD)


def test_ranks_with_different_modules_are_refused():
    with pytest.raises(RankFailed, match=r"the module of rank 1 is not that of rank 0"):
        Cluster(2).run(different)


def test_without_a_process_group_it_says_what_to_call():
    for make in (lambda m: ZeroOptimizer(m, torch.optim.SGD), DDP):
        with pytest.raises(RuntimeError, match=r"needs a process group: call torch.distributed.init_process_group\(\)"):
            make(nn.Linear(1, 1))
