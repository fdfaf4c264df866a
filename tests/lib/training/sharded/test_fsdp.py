"""Fully sharded data parallelism beside our DDP, one process, torch's fully_shard, and its closed-form times."""

from functools import reduce

import pytest
import torch
import torch.distributed as dist
from charged import ChargedLinear, between
from sharded_training import Layer, alone, batch, layers, loss_of, train, values
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.training.cluster import Cluster, RankFailed, advance_to, now, run_on_processes, synchronize, uniform
from threeloops.training.mesh import Mesh
from threeloops.training.sharded import FSDP
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

EVEN, UNEVEN = 11, 6
"""Widths whose layers have 132 elements, a multiple of 3 and 4 ranks, and 42, no multiple of 4 and 5."""


def bits():
    found = {"ddp": train("ddp", EVEN), 3: train(3, EVEN)}
    found["kept"] = train(3, EVEN, reshard_after_forward=False)
    found["one"] = train(3, EVEN, units_in_flight=1)
    return found


@pytest.mark.parametrize("ranks", [3, 4])
def test_after_twenty_steps_of_adam_all_ranks_have_the_bits_of_ddp(ranks):
    results = Cluster(ranks).run(bits).results
    assert not torch.equal(results[0]["ddp"][0], values(layers(EVEN))[0])
    for found in results:
        for how in found:
            assert all(map(torch.equal, found[how], results[0]["ddp"])), how


def other_units():
    return {"ddp": train("ddp", UNEVEN), 3: train(3, UNEVEN, units=())}


def test_on_two_ranks_they_have_them_whatever_the_units():
    for found in Cluster(2).run(other_units).results:
        assert all(map(torch.equal, found["ddp"], found[3]))


def hybrid_and_uneven():
    torch.manual_seed(dist.get_rank())
    start = nn.Linear(5, 3)
    with FSDP(start, [], mesh=Mesh(replicate=2, shard=2)).full_parameters():
        start = values(start)
    return start, {
        "flat": train(3, UNEVEN, torch.float64, steps=10, clip=0.01),
        "2 x 2": train(3, UNEVEN, torch.float64, steps=10, clip=0.01, mesh=Mesh(replicate=2, shard=2)),
        "4 x 1": train(3, UNEVEN, torch.float64, steps=10, clip=0.01, mesh=Mesh(replicate=4, shard=1)),
    }


def test_hybrid_sharding_padding_and_clipping_agree_with_one_process_to_rounding():
    expected = alone(4, UNEVEN, steps=10, clip=0.01)
    torch.manual_seed(0)
    of_rank_0 = values(nn.Linear(5, 3))
    for start, found in Cluster(4).run(hybrid_and_uneven).results:
        assert all(map(torch.equal, start, of_rank_0))
        for how in found:
            torch.testing.assert_close(found[how], expected, rtol=1e-9, atol=1e-12, msg=how)


def real(steps):
    return {how: train(how, EVEN, steps=steps) for how in ("ddp", 1, 2, 3)}


def test_on_gloo_the_same_programs_have_the_same_values():
    (first, second), (virtual, _) = run_on_processes("gloo", 2, real, 2), Cluster(2).run(real, 2).results
    for how in virtual:
        assert all(map(torch.equal, first[how], second[how]))
        torch.testing.assert_close(first[how], virtual["ddp"], rtol=1e-6, atol=1e-7)


# Other devices. Tensors of the meta device have no values, so they can stand for those of a GPU


class Finished:
    def wait(self):
        return True


def devices_of_collectives():
    """Names of collectives, and the devices of the tensors that they are called with."""
    seen = []

    def watched(name):
        def collective(*arguments, **options):
            seen.extend((name, each.device.type) for each in arguments if isinstance(each, torch.Tensor))
            return Finished()

        return collective

    dist.get_backend_config = lambda group=None: "meta:nccl"
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "all_reduce"):
        setattr(dist, name, watched(name))
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 2))
        x = torch.empty(3, 4)
    model[2].requires_grad_(False)
    fsdp = FSDP(model, list(model))
    for norm in (2.0, float("inf")):
        fsdp(x).sum().backward()
        fsdp.clip_grad_norm(1.0, norm)
    with fsdp.full_parameters():
        fsdp.load_state_dict(fsdp.state_dict())
    return seen


def test_collectives_get_tensors_from_the_device_of_the_module_only():
    seen = Cluster(2).run(devices_of_collectives).results[0]
    assert {name for name, _ in seen} == {"all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "all_reduce"}
    assert {device for _, device in seen} == {"meta"}


def wrapped_on_the_cpu_in_a_group_of_nccl(where):
    dist.get_backend_config = lambda group=None: "cuda:nccl"
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    if where == "buffer":
        model = nn.Sequential(nn.BatchNorm1d(2, affine=False))
    FSDP(model, list(model))


@pytest.mark.parametrize(("where", "name"), [("parameter", "0.weight"), ("buffer", "0.running_mean")])
def test_a_module_that_the_group_does_not_carry_is_refused(where, name):
    said = f"{name} is on cpu, and this group carries tensors on cuda: move the module there before wrapping it"
    with pytest.raises(RankFailed, match=said):
        Cluster(2).run(wrapped_on_the_cpu_in_a_group_of_nccl, where)


# A model with everything: tied embeddings in the root, frozen parts, dtypes, buffers, checkpoints


def small_gpt(tied):
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    return GPT(GPTConfig(
        vocabulary_size=13, layers=3, heads=2, kv_heads=1, width=8, mlp_width=12, max_sequence=5, tied_embeddings=tied,
        norm_epsilon=1e-5, rope_base=1e4,
    )).double()  # fmt: skip


def tokens(rank):
    drawn = torch.randint(0, 13, (2, 6), generator=torch.Generator().manual_seed(rank))
    return drawn[:, :-1], drawn[:, 1:]


def gradients_of(fsdp, model):
    """Of each parameter, joined from the shards of all ranks."""
    found = {}
    for flat in fsdp.flats.values():
        if flat.shard.grad is None:
            continue
        parts = [None] * flat.layout.ranks
        dist.all_gather_object(parts, flat.shard.grad, group=fsdp.group)
        found |= {name: view.clone() for name, view in flat.layout.views(torch.cat(parts)).items()}
    return found


def gpt_step():
    made = {}
    for tied in (True, False):
        model = small_gpt(tied)
        model.blocks[1].requires_grad_(False)
        model.blocks[2].attention_norm.requires_grad_(False)
        fsdp = FSDP(model, model.blocks)
        loss = fsdp(*tokens(dist.get_rank()))
        loss.backward()
        made[tied] = loss.item(), gradients_of(fsdp, model), [name for name, _ in fsdp.named_parameters()]
        released = all(p.numel() == 0 and p.grad is None for p in model.parameters())
        with torch.no_grad():
            fsdp(*tokens(0))
        made[tied] += (released and all(p.numel() == 0 for p in model.parameters()),)
    return made


def test_a_gpt_with_tied_embeddings_and_frozen_parts_has_the_gradients_of_one_process():
    results = Cluster(3).run(gpt_step).results
    for tied in (True, False):
        model = small_gpt(tied)
        model.blocks[1].requires_grad_(False)
        model.blocks[2].attention_norm.requires_grad_(False)
        (sum(model(*tokens(rank)) for rank in range(3)) / 3).backward()
        expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        for made in results:
            _, found, names, released = made[tied]
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-14)
            assert released
            assert sorted(names) == [
                "blocks.0.float64", "blocks.1.float64.frozen", "blocks.2.float64", "blocks.2.float64.frozen", "float64"
            ]  # fmt: skip


class Twice(nn.Module):
    """The unit in the middle runs twice, and forward changes a buffer that its output needs."""

    def __init__(self):
        super().__init__()
        self.units = layers(5, 3, torch.float64)
        self.register_buffer("seen", torch.zeros(2, dtype=torch.float64))

    def forward(self, x, recompute=False):
        first, middle, last = self.units
        self.seen += 1 + dist.get_rank()
        run = (lambda unit, x: checkpoint(unit, x, use_reentrant=False)) if recompute else (lambda unit, x: unit(x))
        return run(last, run(middle, run(middle, run(first, x)))) * self.seen.mean()


def odd_uses():
    made, rank = {}, dist.get_rank()
    for reshard in (True, False):
        model = Twice()
        fsdp = FSDP(model, model.units, reshard_after_forward=reshard)
        for how in ("plain", "recompute", "two forwards", "two backwards"):
            fsdp.zero_grad()
            x, y = (batch(rank, step, 5, torch.float64) for step in range(2))
            model.seen.zero_()
            if how == "two forwards":
                (loss_of(fsdp(x)) + loss_of(fsdp(y))).backward()
            elif how == "two backwards":
                loss_of(fsdp(x)).backward()
                loss_of(fsdp(y)).backward()
            else:
                loss_of(fsdp(x, recompute=how == "recompute")).backward()
            made[reshard, how] = gradients_of(fsdp, model), model.seen.clone()
        outputs = []
        for factor in (1, 2):
            for p in fsdp.parameters():
                p.data.mul_(factor)
            model.seen.zero_()
            outputs.append(fsdp(x).detach())  # and no backward
        made[reshard, "outputs"] = outputs
        with fsdp.full_parameters():
            model.seen.zero_()
            made[reshard, "expected"] = model(x).detach()
    return made


def test_reuse_recomputation_accumulation_and_buffers():
    results = Cluster(2).run(odd_uses).results
    for reshard in (True, False):
        for how, forwards in (("plain", 1), ("recompute", 1), ("two forwards", 2), ("two backwards", 2)):
            torch.manual_seed(0)
            units = layers(5, 3, torch.float64)
            for rank in range(2):
                for step in range(forwards):
                    first, middle, last = units
                    seen = step + 1 + rank  # rank 0's after the step before, plus what this rank adds
                    out = last(middle(middle(first(batch(rank, step, 5, torch.float64)))))
                    (loss_of(out * seen) / 2).backward()
            expected = {f"units.{name}": p.grad for name, p in units.named_parameters()}
            for made in results:
                torch.testing.assert_close(made[reshard, how][0], expected, rtol=1e-9, atol=1e-13, msg=how)
        for made in results:
            before, after = made[reshard, "outputs"]
            torch.testing.assert_close(after, made[reshard, "expected"])
            assert not torch.allclose(before, after)


def recomputed(whole):
    """A step, and the same with each unit recomputed, to its end or as far as backward needs it."""
    made = []
    model = layers(UNEVEN)
    fsdp = FSDP(model, model)
    for second in (1, 2):
        model.forward = model.__class__.forward.__get__(model)
        if second == 2:
            model.forward = lambda x: reduce(lambda x, unit: checkpoint(unit, x, use_reentrant=False), model, x)
        advance_to(second)
        with set_checkpoint_early_stop(not whole):
            loss_of(fsdp(batch(dist.get_rank(), 0, UNEVEN).requires_grad_())).backward()
        advance_to(second + 0.5)
        made.append(gradients_of(fsdp, model))
        fsdp.zero_grad()
    return made


@pytest.mark.parametrize("whole", [False, True])
def test_recomputation_gathers_nothing_that_a_plain_backward_does_not(whole):
    run = Cluster(2).run(recomputed, whole)
    for plain, again in run.results:
        torch.testing.assert_close(plain, again, rtol=0, atol=0)
    plain, again = ([m.size for m in between(run, second, second + 0.5)] for second in (1, 2))
    assert plain == again and len(plain) == 2 * 3 * 4


def half_precision():
    """bfloat16: the shard is a float32 master, and its small steps add up."""
    torch.manual_seed(dist.get_rank())
    model = Layer(5).bfloat16()
    fsdp = FSDP(model, [model.linear])
    with fsdp.full_parameters():
        start = values(model)
    optimizer = torch.optim.SGD(fsdp.parameters(), lr=2.0**-12)
    for _ in range(64):
        optimizer.zero_grad()
        handle = model.linear.register_forward_hook(lambda m, a, out: out * 0 + m.weight.sum() + m.bias.sum())
        fsdp(torch.zeros(1, 5, dtype=torch.bfloat16).requires_grad_())
        handle.remove()
        for p in fsdp.parameters():
            p.grad = torch.full_like(p, 1.5)
        optimizer.step()
    with fsdp.full_parameters():
        dtypes = [{str(p.dtype) for p in each.parameters()} for each in (fsdp, model)]
        return start, values(model), dtypes


def test_shards_of_16_bit_parameters_are_float32_masters():
    results = Cluster(2).run(half_precision).results
    for start, end, dtypes in results:
        assert all(map(torch.equal, start, results[0][0]))
        exact = [(a.float() - 64 * 1.5 * 2.0**-12).bfloat16() for a in start]
        assert all(map(torch.equal, end, exact))
        assert dtypes == [{"torch.float32"}, {"torch.bfloat16"}]


def saved():
    ends, state = [], None
    for _ in range(2):
        model = layers(UNEVEN)
        fsdp = FSDP(model, model)
        optimizer = torch.optim.SGD(fsdp.parameters(), lr=0.1)
        for step in range(0 if state is None else 2, 4):
            if step == 2 and state is None:
                state = fsdp.state_dict()
            elif step == 2:
                fsdp.load_state_dict(state)
            optimizer.zero_grad()
            loss_of(fsdp(batch(dist.get_rank(), step, UNEVEN))).backward()
            optimizer.step()
        with fsdp.full_parameters():
            ends.append(values(model))
    return ends, state


def test_training_goes_on_from_a_saved_state_and_shards_of_all_ranks_are_the_model():
    results = Cluster(4).run(saved).results
    for (first, second), _ in results:
        assert all(map(torch.equal, first, second))
    for of_ranks in zip(*[state["shards"] for _, state in results], strict=True):
        assert sum(shard["values"].numel() for shard in of_ranks) == UNEVEN**2 + UNEVEN


# Times: 8 layers of 256 KiB on 4 ranks

LAYERS, WIDTH, FORWARD, BACKWARD = 8, 256, 3e-4, 6e-4
GATHER = 3 * (10e-6 + WIDTH**2 * 4 / 4 / 1e9)
"""Of one layer; a reduce-scatter takes as long."""


def timed(cases):
    made = {}
    for number, case in enumerate(cases):
        torch.manual_seed(0)
        model = nn.Sequential(*[ChargedLinear(WIDTH, WIDTH, FORWARD, BACKWARD) for _ in range(LAYERS)])
        if case == "torch":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            wrapped = [fully_shard(layer, mesh=mesh) for layer in model] and fully_shard(model, mesh=mesh)
        else:
            wrapped = FSDP(model, model, units_in_flight=case[0], reshard_after_forward=case[1])
        steps = []
        for step in range(2):
            wrapped.zero_grad()
            advance_to(start := 0.1 * (2 * number + step + 1))
            wrapped(torch.ones(1, WIDTH)).sum().backward()
            synchronize()
            steps.append(now() - start)
        gradients = [p.grad.to_local().flatten() if case == "torch" else p.grad for p in wrapped.parameters()]
        made[case] = steps, gradients
    return made


def test_prefetching_hides_all_but_the_first_gather_of_each_pass_and_the_last_reduction():
    cases = [(1, True), (2, True), (3, True), (2, False), "torch"]
    run = Cluster(uniform(4, 10e-6, 1e9)).run(timed, cases)
    computed = LAYERS * (FORWARD + BACKWARD)
    expected = {
        (1, True): computed + 3 * LAYERS * GATHER,  # a gather waits for the reduction before it
        (2, True): computed + 3 * GATHER,
        (3, True): computed + 3 * GATHER,
        (2, False): computed + 2 * GATHER,
    }
    for made in run.results:
        for case, seconds in expected.items():
            assert made[case][0] == pytest.approx([seconds] * 2, rel=1e-9), case
        assert max(made[2, True][0]) < min(made["torch"][0])
        for case in expected:
            assert all(map(torch.equal, made[case][1], made["torch"][1]))
    for number, case in enumerate(cases):
        start, seconds = 0.1 * (2 * number + 2), run.results[0][case][0][1]
        sent = sum(m.size for m in between(run, start, start + seconds - 1e-9) if m.source == 0)
        assert sent == (2 if case == (2, False) else 3) * 3 * LAYERS * WIDTH**2 * 4 // 4


def gathered_at_once(limit, reshard):
    """In each layer's forward, in its backward, and after, how many units hold parameters and unreduced gradients."""
    model = layers(5, 6)
    fsdp = FSDP(model, model, units_in_flight=limit, reshard_after_forward=reshard)
    seen = []

    def note(*_):
        flats = fsdp.flats.values()
        seen.append((sum(f.gathered for f in flats), sum(f.gradient.collecting for f in flats)))

    for layer in model:
        layer.linear.register_forward_hook(note)
        layer.linear.register_full_backward_pre_hook(note)
        layer.linear.weight.register_post_accumulate_grad_hook(note)
        layer.linear.bias.register_post_accumulate_grad_hook(note)
    loss_of(fsdp(batch(0, 0, 5))).backward()
    note()
    with torch.no_grad():
        fsdp(batch(0, 0, 5))
    note()
    return seen


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_as_many_units_are_in_flight_as_the_limit_says(limit):
    for seen in Cluster(2).run(gathered_at_once, limit, True).results:
        forward, backward = seen[:6], seen[6:24]
        assert [units for units, _ in forward] == [min(limit, 6 - number) for number in range(6)]
        assert [units for units, _ in backward[::3]] == [min(limit, 6 - number) for number in range(6)]
        assert max(gradients for _, gradients in backward) == limit
        assert seen[24] == seen[-1] == (0, 0)
    for seen in Cluster(2).run(gathered_at_once, limit, False).results:
        assert seen[5][0] == 6 and seen[24] == seen[-1] == (0, 0)


# What is refused


def misuse():
    said = {}

    def catch(name, use):
        try:
            use()
        except (RuntimeError, TypeError, ValueError) as error:
            said[name] = str(error)

    def tied(root):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
        model[2].weight = model[0].weight
        FSDP(model, model[:1] if root else model)

    def unused():
        model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        model.forward = lambda x: model[0](x)
        FSDP(model, model)(torch.ones(1, 2)).sum().backward()

    nested = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    catch("tied", lambda: tied(False))
    catch("tied to the root", lambda: tied(True))
    catch("nested", lambda: FSDP(nested, [nested[0], nested[0][0]]))
    catch("elsewhere", lambda: FSDP(nn.Linear(2, 2), [nn.Linear(2, 2)]))
    catch("flight", lambda: FSDP(nn.Linear(2, 2), [], units_in_flight=0))
    catch("mesh", lambda: FSDP(nn.Linear(2, 2), [], mesh=Mesh(dp=1, pp=1, tp=1)))
    catch("unused", unused)
    catch("convert", lambda: FSDP(nn.Linear(2, 2), []).half())
    return said


def test_wrong_use_is_named():
    (said,) = Cluster(1).run(misuse).results
    assert said["tied"].startswith("'2.weight' is '0.weight', and in another unit: a shared parameter")
    assert said["tied to the root"].startswith("'2.weight' is '0.weight', and in another unit")
    assert "unit '0.0' and unit '0': one is inside the other" in said["nested"]
    assert "a unit of type Linear is not a part of the module" in said["elsewhere"]
    assert "units_in_flight = 0: expected 1 or more" in said["flight"]
    assert "Mesh(dp=1, pp=1, tp=1): expected a mesh of two axes" in said["mesh"]
    assert "there is no gradient for 1.bias, 1.weight: expected one for each" in said["unused"]
    assert "move or convert it before wrapping it in FSDP" in said["convert"]


def different():
    FSDP(nn.Linear(3, 3 + dist.get_rank()), [])


def sparse():
    FSDP(nn.Embedding(4, 2, sparse=True), [])(torch.tensor([1])).sum().backward()


@pytest.mark.parametrize(
    ("program", "said"),
    [(different, "the module of rank 1 is not that of rank 0"), (sparse, "the gradient of 'weight' is sparse")],
)
def test_what_cannot_be_sharded_is_refused(program, said):
    with pytest.raises(RankFailed, match=said):
        Cluster(2).run(program)
