"""DDP on the virtual cluster: one run per number of ranks holds several scenarios, each in a second of virtual time."""

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from charged import ChargedLinear, between
from threeloops.training.cluster import Cluster, RankFailed, advance_to, now, synchronize, uniform
from threeloops.training.data_parallel import DDP
from torch import nn
from torch.utils.checkpoint import checkpoint

TINY = 300 / 2**20
"""A cap of 300 bytes, so that small models have several buckets."""


class Awkward(nn.Module):
    """Odd sizes, a layer used twice, a tied weight, a frozen layer, and a parameter of one element."""

    def __init__(self):
        super().__init__()
        self.inwards, self.twice = nn.Linear(7, 13), nn.Linear(13, 13)
        self.frozen, self.tied, self.scale = nn.Linear(13, 13), nn.Linear(13, 13), nn.Parameter(torch.ones(()))
        self.outwards = nn.Linear(13, 13)
        self.outwards.weight = self.tied.weight
        self.frozen.requires_grad_(False)

    def forward(self, x):
        x = self.twice(self.twice(self.inwards(x)).tanh()).tanh()
        return self.outwards(self.tied(self.frozen(x)).tanh() * self.scale)


def gradients(module):
    return {name: None if p.grad is None else p.grad.detach().clone() for name, p in module.named_parameters()}


def batch(rank, step=0, rows=3, columns=7, dtype=torch.float64):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1000 * step + rank), dtype=dtype)


def loss_of(output):
    return output.square().mean()


def awkward_step(accumulate):
    """Gradients after a backward through DDP, with an accumulation before it or not; each rank begins elsewhere."""
    torch.manual_seed(dist.get_rank())
    ddp = DDP(Awkward().double(), bucket_cap_mb=TINY, first_bucket_mb=TINY / 4)
    advance_to(1)
    with ddp.no_sync() if accumulate else nullcontext():
        loss_of(ddp(batch(dist.get_rank()))).backward()
    advance_to(2)
    if accumulate:
        loss_of(ddp(batch(dist.get_rank(), 1))).backward()
    advance_to(3)
    values = {name: p.detach() for name, p in ddp.module.named_parameters()}
    return values, gradients(ddp.module), [list(bucket.parameters) for bucket in ddp.buckets]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_gradients_are_those_of_one_process_on_the_concatenated_batch(ranks):
    run = Cluster(ranks).run(awkward_step, False)
    torch.manual_seed(0)
    alone = Awkward().double()
    loss_of(alone(torch.cat([batch(rank) for rank in range(ranks)]))).backward()
    for values, found, _ in run.results:
        torch.testing.assert_close(values, dict(alone.named_parameters()), rtol=0, atol=0)
        torch.testing.assert_close(found, gradients(alone), rtol=1e-12, atol=1e-15)
        assert found["frozen.weight"] is None


def test_buckets_hold_each_trained_parameter_once_in_reverse_order_and_only_their_bytes_travel():
    run = Cluster(4).run(awkward_step, False)
    buckets = run.results[0][2]
    trained = [name for name, p in Awkward().named_parameters() if p.requires_grad]
    assert [name for bucket in buckets for name in bucket] == trained[::-1] and len(buckets) == 5
    assert all(result[2] == buckets for result in run.results)
    sizes = [sum(dict(Awkward().named_parameters())[name].numel() * 8 for name in bucket) for bucket in buckets]
    for rank in range(4):
        sent = [message.size for message in between(run, 1, 2) if message.source == rank]
        jobs = [span for span in run.spans if span.rank == rank and span.timeline == 1 and 1 <= span.start < 2]
        assert len(jobs) == len(buckets) and len(sent) == 6 * len(buckets)
    assert sum(message.size for message in between(run, 1, 2)) == 2 * 3 * sum(sizes)


def test_no_sync_sends_nothing_and_the_backward_after_it_averages_the_sums():
    run = Cluster(3).run(awkward_step, True)
    assert between(run, 1, 2) == [] and between(run, 2, 3) != []
    torch.manual_seed(0)
    alone = Awkward().double()
    for step in (0, 1):
        loss_of(alone(torch.cat([batch(rank, step) for rank in range(3)]))).backward()
    for _, found, _ in run.results:
        torch.testing.assert_close(found, gradients(alone), rtol=1e-12, atol=1e-15)


# Twenty steps, and the same in one process that adds in the order of the ring


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 11), nn.Tanh(), nn.Linear(11, 5), nn.Tanh(), nn.Linear(5, 1))


def ring_mean(parts):
    """The mean of one flat tensor per rank: chunk c is summed along the ring from rank c + 1 on, to rank c."""
    chunks = [(part / len(parts)).tensor_split(len(parts)) for part in parts]
    sums = []
    for c in range(len(parts)):
        total = chunks[(c + 1) % len(parts)][c].clone()
        for k in range(2, len(parts) + 1):
            total += chunks[(c + k) % len(parts)][c]
        sums.append(total)
    return torch.cat(sums)


def twenty_steps():
    ddp = DDP(small_model(), bucket_cap_mb=TINY, first_bucket_mb=TINY)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9)
    for step in range(20):
        optimizer.zero_grad(set_to_none=step % 3 == 0)
        loss_of(ddp(batch(dist.get_rank(), step, dtype=torch.float32))).backward()
        optimizer.step()
    ours = [p.detach().clone() for p in ddp.parameters()]
    alone, size = small_model(), dist.get_world_size()
    optimizer = torch.optim.SGD(alone.parameters(), 0.1, momentum=0.9)
    for step in range(20):
        each = []
        for rank in range(size):
            alone.zero_grad()
            loss_of(alone(batch(rank, step, dtype=torch.float32))).backward()
            each.append(gradients(alone))
        for bucket in ddp.buckets:
            mean = ring_mean([torch.cat([grads[name].flatten() for name in bucket.parameters]) for grads in each])
            parts = mean.split([p.numel() for p in bucket.parameters.values()])
            for name, part in zip(bucket.parameters, parts, strict=True):
                dict(alone.named_parameters())[name].grad = part.view_as(each[0][name])
        optimizer.step()
    return ours, [p.detach() for p in alone.parameters()], len(ddp.buckets)


def test_after_twenty_steps_all_ranks_are_bit_equal_to_one_process_that_adds_in_the_order_of_the_ring():
    run = Cluster(4).run(twenty_steps)
    ours, alone, buckets = run.results[0]
    assert buckets > 1
    assert not torch.equal(ours[0], small_model()[0].weight)
    for a, b in zip(ours, alone, strict=True):
        assert torch.equal(a, b)
    for theirs, _, _ in run.results:
        assert all(map(torch.equal, ours, theirs))


# Unused parameters


class Branches(nn.Module):
    """Uses the named branches; `off` is used nowhere."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.off = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x, names):
        return {name: getattr(self, name)(x) for name in names} or {"none": x * 2}


def unused(find, names_by_rank, in_loss=("a", "b", "off")):
    ddp = DDP(Branches(), bucket_cap_mb=1e-6, find_unused_parameters=find)
    if find:  # leaves gradients in the buckets that are not those of the next step
        sum(output.sum() for output in ddp(torch.full((1, 3), 9.0), ["a", "b", "off"]).values()).backward()
    names = names_by_rank[dist.get_rank()]
    outputs = ddp(torch.ones(2, 3, requires_grad=True), names)
    ddp.zero_grad()
    sum(output.sum() for name, output in outputs.items() if name in (*in_loss, "none")).backward()
    return gradients(ddp.module)


def many_unused():
    return {
        "another per rank": unused(True, ["a", "b", "ab"]),
        "none on rank 1": unused(True, ["a", "", "a"]),
        "used on no rank": unused(True, ["", "", ""]),
        "not in the loss": unused(True, ["ab", "ab", "ab"], in_loss=("a",)),
    }


def test_unused_parameters_count_as_zero_and_stay_without_a_gradient_where_no_rank_uses_them():
    run = Cluster(3).run(many_unused)
    for found in run.results:
        for case, of_a, of_b in [
            ("another per rank", 2 / 3, 2 / 3), ("none on rank 1", 2 / 3, None),
            ("used on no rank", None, None), ("not in the loss", 1.0, None),
        ]:  # fmt: skip
            for name, part in (("a", of_a), ("b", of_b), ("off", None)):
                for kind, shape in (("weight", (3, 3)), ("bias", (3,))):
                    gradient = found[case][f"{name}.{kind}"]
                    if part is None:
                        assert gradient is None, (case, name)
                    else:
                        torch.testing.assert_close(gradient, torch.full(shape, 2 * part), msg=f"{case}, {name}")


@pytest.mark.parametrize("names_by_rank", [["a", "a"], ["abo", "a"]])
def test_without_being_told_an_unused_parameter_is_an_error_with_its_name_and_no_hang(names_by_rank):
    names = [[{"o": "off"}.get(letter, letter) for letter in each] for each in names_by_rank]
    with pytest.raises(
        RankFailed, match=r"no gradient for off\.bias, off\.weight, b\.bias, b\.weight: expected one for"
    ):
        Cluster(2).run(unused, False, names)


def still_used_in_an_accumulation():
    """Used under no_sync, and not in the backward that is averaged."""
    ddp = DDP(Branches(), find_unused_parameters=True)
    with ddp.no_sync():
        ddp(torch.ones(1, 3), "a")["a"].sum().backward()
    ddp(torch.ones(1, 3), "b")["b"].sum().backward()
    return gradients(ddp.module)


def test_what_was_accumulated_is_averaged_also_where_the_last_backward_does_not_reach_it():
    for found in Cluster(2).run(still_used_in_an_accumulation).results:
        assert found["a.weight"].eq(1).all() and found["b.weight"].eq(1).all() and found["off.weight"] is None


# Buffers, dtypes, groups, checkpoints


class Counting(nn.Module):
    """A buffer of each of two dtypes, one with no dimension; each forward shows and changes them."""

    def __init__(self, start):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("mean", torch.full((2, 2), float(start)))
        self.register_buffer("steps", torch.tensor(start))

    def forward(self, x):
        seen = self.mean.clone(), self.steps.clone()
        self.mean += x.mean().detach()
        self.steps += 1 + dist.get_rank()
        return (self.weight * self.mean.sum()).sum(), *seen


def buffers():
    rank = dist.get_rank()
    ddp = DDP(Counting(10 * rank))
    start = ddp.module.mean.clone(), ddp.module.steps.clone()
    x = torch.full((2,), 1.0 + rank)
    seen = []
    for second in range(1, 3):
        advance_to(second)
        loss, mean, steps = ddp(x)
        loss.backward()
        seen.append((mean, steps))
    advance_to(3)
    with ddp.no_sync():
        seen.append(ddp(x)[1:])
    for second in range(4, 6):
        advance_to(second)
        with torch.no_grad():
            seen.append(ddp(x)[1:])
    advance_to(6)
    return start, seen


def test_buffers_are_those_of_rank_0_before_each_forward_that_follows_one_with_gradients():
    run = Cluster(3).run(buffers)
    start, seen = run.results[0]
    assert start[0].eq(0).all() and start[1] == 0
    for second in range(2):
        assert seen[second][0].eq(second).all() and seen[second][1] == second
    for theirs, each in run.results[1:]:
        assert torch.equal(theirs[0], start[0]) and theirs[1] == start[1]
        for second in (0, 1, 3):  # under no_sync (2), and where nothing has changed (4), each has its own
            assert torch.equal(each[second][0], seen[second][0]) and torch.equal(each[second][1], seen[second][1])
    assert run.results[2][1][2][1] == 1 + 3
    assert between(run, 3, 4) == [] == between(run, 5, 6)
    floats, integers = 4 * 4, 8
    assert sorted({message.size for message in between(run, 4, 5)}) == [integers, floats]


class Masked(nn.Module):
    """Backward needs the buffer as it was."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 2.0]))

    def forward(self, x):
        return (self.weight * self.mask * x).sum()


def two_forwards():
    ddp = DDP(Masked())
    (ddp(torch.ones(3)) + ddp(torch.full((3,), 1.0 + dist.get_rank()))).backward()
    return ddp.module.weight.grad


def test_one_backward_may_follow_two_forwards():
    for gradient in Cluster(2).run(two_forwards).results:
        assert gradient.tolist() == [2.5, 0.0, 5.0]


def mixed():
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3).bfloat16(), nn.Linear(3, 3), nn.Linear(3, 3).double()])
    model.forward = lambda x: sum(layer(x.to(layer.weight.dtype)).float().sum() for layer in model)
    ddp = DDP(model)
    ddp(torch.full((1, 3), float(dist.get_rank()))).backward()
    return [[str(v.dtype) for v in bucket.views.values()] for bucket in ddp.buckets], gradients(model)


def test_dtypes_have_buckets_of_their_own():
    for buckets, found in Cluster(4).run(mixed).results:
        assert [set(bucket) for bucket in buckets] == [{"torch.float64"}, {"torch.bfloat16"}, {"torch.float32"}]
        assert [len(bucket) for bucket in buckets] == [2, 2, 4]
        for name, gradient in found.items():
            assert gradient.eq(1.5 if "weight" in name else 1).all(), name


def subgroup_and_checkpoints():
    rank, made = dist.get_rank(), {}
    for ranks in ([0, 2], [1, 3]):
        group = dist.new_group(ranks)
        if rank in ranks:
            torch.manual_seed(rank)
            ddp = DDP(nn.Linear(2, 1, bias=False), group)
            with torch.no_grad():
                start = ddp.module.weight.clone()
            ddp(torch.full((1, 2), float(rank))).sum().backward()
            made["group"] = start, ddp.module.weight.grad
    for reentrant in (False, True):
        torch.manual_seed(0)
        model = small_model()
        first, rest = model[:2], model[2:]
        whole = nn.ModuleList([first, rest])
        whole.forward = lambda x, f=first, r=rest, re=reentrant: r(checkpoint(f, x, use_reentrant=re))
        ddp = DDP(whole, bucket_cap_mb=TINY)
        loss_of(ddp(batch(rank, dtype=torch.float32).requires_grad_())).backward()
        made[reentrant] = [p.grad for p in model.parameters()]
    plain = DDP(small_model(), bucket_cap_mb=TINY)
    loss_of(plain(batch(rank, dtype=torch.float32))).backward()
    made["plain"] = [p.grad for p in plain.parameters()]
    return made


def test_a_group_of_some_ranks_averages_among_them_from_its_own_first_rank_and_checkpoints_change_nothing():
    results = Cluster(4).run(subgroup_and_checkpoints).results
    for ranks, mean in (((0, 2), 1.0), ((1, 3), 2.0)):
        for rank in ranks:
            start, gradient = results[rank]["group"]
            torch.manual_seed(ranks[0])
            assert torch.equal(start, nn.Linear(2, 1, bias=False).weight) and gradient.eq(mean).all()
    for made in results:
        for reentrant in (False, True):
            assert all(map(torch.equal, made[reentrant], made["plain"]))


# Times


def timed(caps):
    """Per cap and implementation: seconds of three steps, all ranks beginning each at once."""
    made, start = {}, 0.01
    for cap in caps:
        for ours in (True, False):
            torch.manual_seed(0)
            model = nn.Sequential(*[ChargedLinear(256, 256) for _ in range(8)])
            peer = nn.parallel.DistributedDataParallel
            ddp = DDP(model, bucket_cap_mb=cap, first_bucket_mb=cap) if ours else peer(model, bucket_cap_mb=cap)
            steps = []
            for _ in range(3):
                ddp.zero_grad()
                advance_to(start := start + 0.01)
                ddp(torch.ones(1, 256)).sum().backward()
                synchronize()
                steps.append(now() - start)
            made[cap, ours] = steps, [p.grad.clone() for p in ddp.parameters()]
    return made


def test_a_step_is_never_slower_than_torchs_and_takes_its_closed_form():
    """8 layers of 256 KiB that take 0.1 ms forward and 0.2 ms backward, on 4 ranks; the bound of perfect overlap."""
    caps = [100.0, 1.0, 0.5, 0.25]
    run = Cluster(uniform(4, 10e-6, 1e9)).run(timed, caps)
    forward, backward = 8 * 1e-4, 2e-4
    for made in run.results:
        for cap in caps:
            (ours, our_grads), (theirs, their_grads) = made[cap, True], made[cap, False]
            in_bucket = min(8, int(cap * 4))
            all_reduce = 6 * (10e-6 + in_bucket * 2**18 / 4 / 1e9)
            expected = forward + in_bucket * backward + 8 / in_bucket * all_reduce  # slower than backward
            assert ours == pytest.approx([expected] * 3, rel=1e-12)
            assert all(mine <= peer * (1 + 1e-12) for mine, peer in zip(ours, theirs, strict=True))
            assert theirs[2] == pytest.approx(expected, rel=1e-12)
            assert all(map(torch.equal, our_grads, their_grads))


def timed_with_unused():
    """The last registered layer is not used: its bucket would be the first. Each layer has a bucket."""
    made = []
    for number, ours in enumerate((True, False)):
        model = nn.ModuleList([ChargedLinear(256, 256) for _ in range(5)])
        model.forward = lambda x, used=model[:4]: nn.Sequential(*used)(x)
        peer = nn.parallel.DistributedDataParallel
        options = {"bucket_cap_mb": 0.25, "find_unused_parameters": True}
        ddp = DDP(model, first_bucket_mb=0.25, **options) if ours else peer(model, **options)
        advance_to(0.01 * (number + 1))
        ddp(torch.ones(1, 256)).sum().backward()
        synchronize()
        made.append(now() - 0.01 * (number + 1))
    return made


def test_the_bucket_of_an_unused_layer_is_averaged_before_backward_reaches_the_others():
    run = Cluster(uniform(4, 10e-6, 1e9)).run(timed_with_unused)
    ours, theirs = map(max, zip(*run.results, strict=True))
    all_reduce, of_map = 6 * (10e-6 + 2**18 / 4 / 1e9), 6 * (10e-6 + 2 * 4 / 1e9)
    assert ours <= theirs * (1 + 1e-12)
    assert ours == pytest.approx(4 * 1e-4 + 5 * all_reduce + of_map, rel=1e-2)


# What is refused


def different(what):
    rank = dist.get_rank()
    model = {
        "shape": lambda: nn.Linear(3, 4 if rank == 2 else 3),
        "frozen": lambda: nn.Linear(3, 3).requires_grad_(rank != 2),
        "dtype": lambda: nn.Linear(3, 3).to(torch.float64 if rank == 2 else torch.float32),
        "more": lambda: nn.Linear(3, 3, bias=rank == 2),
    }[what]()
    if what == "frozen" and rank == 2:
        model.more = nn.Linear(1, 1)
    DDP(model)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("shape", r"rank 2 .*it has weight: shape \(4, 3\), float32, trained, where rank 0 has weight: shape \(3, 3\)"),
        (
            "frozen",
            r"it has weight: shape \(3, 3\), float32, where rank 0 has weight: shape \(3, 3\), float32, trained",
        ),
        ("dtype", r"it has weight: shape \(3, 3\), float64"),
        ("more", r"it has bias: shape \(3,\), float32, trained, where rank 0 has nothing"),
    ],
)
def test_ranks_with_different_modules_are_refused(what, said):
    with pytest.raises(RankFailed, match=said):
        Cluster(3).run(different, what)


def misuse():
    """The message of each wrong use on a rank."""
    said = {}

    def catch(name, use):
        try:
            use()
        except (RuntimeError, TypeError, ValueError) as error:
            said[name] = str(error)

    catch("nothing", lambda: DDP(nn.Linear(2, 2).requires_grad_(False)))
    catch("cap", lambda: DDP(nn.Linear(2, 2), bucket_cap_mb=0))
    ddp = DDP(nn.Linear(2, 2))
    loss = ddp(torch.ones(1, 2)).sum()
    loss.backward(retain_graph=True)
    catch("twice", loss.backward)
    catch("module", lambda: ddp.module(torch.ones(1, 2)).sum().backward())
    sparse = DDP(nn.Embedding(4, 2, sparse=True))
    catch("sparse", lambda: sparse(torch.tensor([1])).sum().backward())
    return said


def test_wrong_use_is_named():
    (said,) = Cluster(1).run(misuse).results
    assert "no parameter that requires a gradient" in said["nothing"]
    assert "bucket_cap_mb = 0" in said["cap"]
    assert "a second backward since the last forward" in said["twice"]
    assert "from the wrapped module itself" in said["module"]
    assert "the gradient of 'weight' is sparse" in said["sparse"]


def used_twice_in_reentrant_checkpoints():
    shared = nn.Linear(2, 2)
    model = nn.ModuleList([shared])
    model.forward = lambda x: checkpoint(shared, checkpoint(shared, x, use_reentrant=True), use_reentrant=True)
    DDP(model)(torch.ones(1, 2, requires_grad=True)).sum().backward()


def test_a_parameter_that_gets_two_gradients_in_one_backward_is_named():
    with pytest.raises(RankFailed, match="'0.bias' got a second gradient in one backward.*use_reentrant=False"):
        Cluster(1).run(used_twice_in_reentrant_checkpoints)


def test_without_a_process_group_it_says_what_to_call():
    with pytest.raises(RuntimeError, match=r"call torch.distributed.init_process_group\(\) first"):
        DDP(nn.Linear(1, 1))
