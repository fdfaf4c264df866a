# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
#   threeloops:
#     title: When is N times the GPUs N times the speed?
#     minutes: 195
#     withholds: [threeloops.training.data_parallel, threeloops.lab.drawings]
#     edition: 2
# ---

# %% [markdown]
# # When is N times the GPUs N times the speed?
#
# ![One GPU computes a step; four GPUs compute the same step on four batches, and then must agree on the gradients](attachment:opening.png)
#
# Give every GPU a copy of the model and a batch of its own, and four GPUs process four times the samples per step. But
# then they have to agree on one gradient. How much of the gain does that cost, and how much of the cost can be hidden?
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import math
import re
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import pairwise, takewhile

import torch
import torch.distributed as dist
from threeloops.lab import (
    animate,
    audit,
    calibration,
    check,
    debrief,
    explore,
    figure,
    hint,
    myth,
    palette,
    predict,
    reveal,
    show,
    term,
    together,
)
from threeloops.lab.checking.on_cluster import on_cluster
from threeloops.lab.checking.wall import arguments_after
from threeloops.training.cluster import (
    Cluster,
    ClusterError,
    RankFailed,
    advance_to,
    ask,
    charge,
    compute,
    now,
    synchronize,
    uniform,
)
from torch.nn.parallel import DistributedDataParallel

FORWARD, BACKWARD = 0.1e-3, 0.2e-3  # seconds that each layer takes
LATENCY, BANDWIDTH = 10e-6, 1e9  # of the link from each rank to each other one: seconds, bytes/s


@dataclass(frozen=True)
class Step:
    """One data-parallel step."""

    seconds: float
    efficiency: float  # throughput of N ranks, divided by N times the throughput of one
    hidden: float  # share of the communication during which the rank computes; 1.0 if there is none


@dataclass(frozen=True)
class Machine:
    """An offer: GPUs of one kind, and the link between them."""

    seconds: float  # one of its GPUs needs this long for the whole batch
    ranks: int  # number of GPUs available
    latency: float  # seconds
    bandwidth: float  # bytes/s, from each GPU to the next


class Net(torch.nn.Module):
    """Linear layers, used in `order`, each of which charges its forward and its backward time to the rank's clock."""

    def __init__(self, widths, order=None, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(a, b, bias=False) for a, b in pairwise(widths))
        for layer in self.layers:
            scale = 1 / math.sqrt(layer.in_features)
            layer.weight.data = scale * torch.randn(layer.weight.shape, generator=generator)
        self.order = range(len(self.layers)) if order is None else order

    def forward(self, x):
        for index in self.order:
            x = charge(self.layers[index](x), FORWARD, BACKWARD)
        return x


class WithHead(Net):
    """A `Net` with names that contain each other: `layers.0.weight`, `layers.0.weight_scale` and `head.layers.0.weight`."""

    def __init__(self, order=None):
        super().__init__([3, 3, 3], order)
        self.head = Net([3, 3], seed=1)
        self.layers[0].register_parameter("weight_scale", torch.nn.Parameter(torch.tensor([2.0, 3.0, 0.5])))

    def forward(self, x):
        return self.head(super().forward(x)) * self.layers[0].weight_scale


def mean_square(output):
    """The loss of this lab: a mean over the rows, as losses usually are."""
    return output.square().mean()


def batch_of(rank, rows, width, seed=0):
    """The rows that a rank trains on."""
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1000 * seed + rank))


def batches_for_ranks(rows, width, seed):
    """Return the function for `ask("batch", step)` in the tests. A rank gets its own rows, and no other rank's."""
    return {"batch": lambda rank, step: batch_of(rank, rows, width, seed + min(9, step))}


def named_gradients(model):
    return {name: None if p.grad is None else p.grad.detach().clone() for name, p in model.named_parameters()}


# Shared by the test cells: programs that run on every rank, and the gradients of one process.


def averaged(average_gradients, widths, seed, frozen=(), tied=False):
    model = Net(widths, seed=seed)
    if tied:
        model.layers[1].weight = model.layers[0].weight
    for index in frozen:
        model.layers[index].weight.requires_grad_(False)
    mean_square(model(ask("batch", 0))).backward()
    average_gradients(model)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    return named_gradients(model), {name: p.detach() for name, p in model.named_parameters()}, trained


def averaged_with_a_head(average_gradients):
    model = WithHead()
    mean_square(model(ask("batch", 0))).backward()
    average_gradients(model)
    return named_gradients(model)


def started(start_together, widths):
    """Ranks with weights of their own, a frozen layer, integers that float32 cannot hold, a buffer that checkpoints leave
    out, and an optimizer that holds the parameters."""
    seed = ask("seed")
    model = Net(widths, seed=seed)
    model.layers[0].weight.requires_grad_(False)
    model.register_buffer("mean", torch.full((3,), float(seed)))
    model.layers.register_buffer("steps", torch.tensor(2**60 + 1 + seed))
    model.register_buffer("cache", torch.full((2,), float(seed)), persistent=False)
    held = list(model.parameters())
    start_together(model)
    now_there = [*model.named_parameters(), *model.named_buffers()]
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    return [p.detach() for p in held], {name: value.detach() for name, value in now_there}, trained


def overlapped(overlap, widths, buckets, steps=1, orders=None, seed=0):
    model = Net(widths, None if orders is None else orders[dist.get_rank()], seed)
    finish = overlap(model, buckets)
    found = []
    for step in range(steps):
        model.zero_grad()
        mean_square(model(ask("batch", step))).backward()
        finish()
        found.append(named_gradients(model))
    return found, buckets


def overlapped_with_a_head(overlap, buckets, order):
    model = WithHead(order)
    finish = overlap(model, buckets)
    mean_square(model(ask("batch", 0))).backward()
    finish()
    return named_gradients(model)


def overlapped_under_other_names(overlap, widths, buckets, seed=0):
    """The same, with parameters whose names begin with the number of the rank: a set of such names has a different
    order on each rank, as sets of strings do in different interpreters."""
    own = f"of_rank_{dist.get_rank()}."
    model = torch.nn.ModuleDict({own[:-1]: Net(widths, seed=seed)})
    finish = overlap(model, [[own + name for name in bucket] for bucket in buckets])
    mean_square(model[own[:-1]](ask("batch", 0))).backward()
    finish()
    return {name.removeprefix(own): gradient for name, gradient in named_gradients(model).items()}


def overlapped_after_an_error(overlap, widths, buckets, used):
    """The gradients of a step that uses all layers, after one that leaves some out."""
    model = Net(widths)
    finish = overlap(model, buckets)
    model.order = used
    mean_square(model(ask("batch", 0))).backward()
    with suppress(Exception):  # whether it is the right one is a matter for another part
        finish()
    model.order = range(len(model.layers))
    model.zero_grad()
    mean_square(model(ask("batch", 1))).backward()
    finish()
    return named_gradients(model)


def overlapped_with_less(overlap, widths, buckets, used):
    """A step with all layers, and one that uses only some of them, or none."""
    model = Net(widths)
    finish = overlap(model, buckets)
    for step, order in enumerate([range(len(model.layers)), used]):
        model.order = order
        model.zero_grad()
        if order:
            mean_square(model(ask("batch", step))).backward()
        finish()


def overlapped_up_to_an_error(overlap, widths, buckets, used):
    model = Net(widths, used)
    finish = overlap(model, buckets)
    mean_square(model(ask("batch", 0))).backward()
    with suppress(Exception):
        finish()
    return named_gradients(model)


class Watched(torch.autograd.Function):
    """Notes a forward and its backward."""

    @staticmethod
    def forward(ctx, x, note):
        ctx.note = note
        note("forward")
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.note("backward")
        return gradient, None


def accumulated(accumulate, widths, sizes, seed=0, again=False):
    """Gradients, the rows of each microbatch that the model saw, how many were held for backward at once, the list after
    the call, and how many inputs of the model were no microbatch. Bytes sent after second 1 are the exercise's; before, torch's DDP compares the ranks' models. With
    `again` the first microbatch, the same tensor, is also the last."""
    seen, held, most = [], 0, 0

    def note(what):
        nonlocal held, most
        held += 1 if what == "forward" else -1
        most = max(most, held)

    def watched_loss(output):
        seen.append(len(output))
        return mean_square(Watched.apply(output, note))

    model = Net(widths, seed=seed)
    ddp = DistributedDataParallel(model)
    microbatches = list(ask("batch", 0).split(list(sizes)))
    if again:
        microbatches.append(microbatches[0])
    given, changed = [x.clone() for x in microbatches], []
    model.register_forward_pre_hook(lambda _, inputs: changed.append(all(not x.equal(inputs[0]) for x in given)))
    advance_to(1.0)
    accumulate(ddp, microbatches, watched_loss)
    synchronize()
    return named_gradients(model), seen, most, microbatches, sum(changed)


def sent_by_ranks(run, after=0.0):
    """Bytes that each rank has sent since `after` seconds."""
    sent = [0] * run.topology.ranks
    for message in run.messages:
        if message.ready >= after:
            sent[message.source] += message.size
    return sent


def names_of(indices):
    """The parameters of these layers, by name."""
    return [f"layers.{index}.weight" for index in indices]


# %% tags=["setup", "oracle"] nbgrader={"grade": false, "grade_id": "oracles", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
# In graded runs, your answers cannot call the functions of this cell.


def of_one_process(widths, batches, seed=0, frozen=(), orders=None, tied=False):
    """The gradients of the mean over all batches, in float64; each batch may have its own order of layers."""
    total = {}
    for number, batch in enumerate(batches):
        model = Net(widths, None if orders is None else orders[number], seed).double()
        if tied:
            model.layers[1].weight = model.layers[0].weight
        for index in frozen:
            model.layers[index].weight.requires_grad_(False)
        (mean_square(model(batch.double())) / len(batches)).backward()
        for name, gradient in named_gradients(model).items():
            total[name] = gradient if total.get(name) is None else total[name] + gradient
    return total


def of_one_with_a_head(batches):
    """The same for `WithHead`."""
    model = WithHead().double()
    mean_square(model(torch.cat(batches).double())).backward()
    return named_gradients(model)


def alike(got, expected):
    return torch.is_tensor(got) and got.shape == expected.shape and torch.allclose(got.double(), expected, 1e-4, 1e-6)


def require_gradients(results, expected, case, alone, slips=None, otherwise=""):
    """Each rank's gradients are those of one process on all batches; `alone(rank)` gives those of its own batch."""
    ranks = len(results)
    for rank, found in enumerate(results):
        for name, wanted in expected.items():
            got, what = found.get(name), f"gradient of {name} on rank {rank} ({case})"
            if wanted is None:
                check.true(got is None, f"{what}: expected None, since the parameter is frozen")
                continue
            causes = {
                f"this is the sum over {ranks} ranks, not the mean": ranks * wanted,
                f"this is the mean divided by {ranks} once more": wanted / ranks,
                "this is the rank's own gradient: nothing was averaged": alone(rank)[name],
            }
            causes |= {why: gradients[name] for why, gradients in (slips or {}).items()}
            cause = next((why for why, slip in causes.items() if alike(got, slip)), otherwise)
            check.close(got, wanted, rtol=1e-4, atol=1e-6, what=what, hint="" if alike(got, wanted) else cause)


def require_computed(results, expected, case):
    """Require right gradients: without them, the bytes and seconds of a run do not count."""
    for rank, found in enumerate(results):
        check.computed(found, expected, f"rank {rank} of {len(results)} ({case})")


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
plot, axes = figure(width=9.5, height=3.4)
for row, name in enumerate(("1 GPU", "GPU 0", "GPU 1", "GPU 2", "GPU 3")):
    y = -row - (0.6 if row else 0)
    axes.barh([y], [1.0], height=0.62, color=palette.sky)
    axes.text(0.5, y, "forward", ha="center", va="center")
    axes.barh([y], [2.0], left=1.05, height=0.62, color=palette.blue, alpha=0.6)
    axes.text(2.05, y, "backward", ha="center", va="center")
    axes.text(-0.1, y, name, ha="right", va="center", weight="bold")
    if row:
        axes.text(3.2, y, f"gradient {row - 1}", va="center", family="monospace")
axes.annotate("", (4.5, -1.4), (4.5, -4.8), arrowprops={"arrowstyle": "<->", "color": palette.vermillion, "lw": 3})
axes.text(4.7, -3.1, "one mean gradient:\nhow long does it take?", va="center", color=palette.vermillion, size=12)
axes.set(xlim=(-0.8, 7), ylim=(-5.1, 0.5))
axes.axis("off")
show.figure(plot, "One GPU computes a step; four GPUs compute the same step on four batches, and then must agree")

# %% [markdown]
# You have no cluster here, so programs run on a **virtual** one: every rank is a process with real tensors and plain
# `torch.distributed` code, but time is computed. A layer *charges* its seconds to the rank's clock. A link has a
# latency α and a bandwidth β. So every run gives the same bytes and the same times, to the last digit. Unless a run says
# otherwise α is 10 µs, β is 1 GB/s (`LATENCY`, `BANDWIDTH`), and a layer takes 0.1 ms forward and 0.2 ms backward. `Net([4, 6,
# 3])` is a model of two such layers, 4 → 6 → 3, without biases.
#
# You build what PyTorch calls `DistributedDataParallel`, or **DDP**, piece by piece. Your functions must not change the
# lists and dicts that they are given.
#
# ## 1 · One gradient for all
#
# Four ranks hold the same weights and different batches, so their gradients differ. If all of them apply the *mean*
# gradient, they stay equal, and training is that of one process on the concatenated batch: with equal batch sizes, the
# mean of four means is the mean over all rows. For example, ranks with the gradients 1, 2, 3 and 6 all continue with 3.
#
# `dist.all_reduce(x)` replaces `x` on every rank by the sum over all ranks. It is a *collective*: every rank must call it,
# in the same order. The next cell runs one on four ranks. It runs as a ring (lab 08): `x` is cut into N pieces, and in each of
# 2(N − 1) steps each rank passes one piece to the next rank, first to add them up and then to hand out the sums. So each rank
# sends 2(N − 1)/N times the size of `x`, and that takes 2(N − 1)(α + size ÷ (N · β)) seconds.
#
# ### Exercise 1 (14 points)
#
# `average_gradients(model)` is called on every rank after `backward()`. It makes every parameter's gradient the mean over
# the ranks.
#
# - The result is left in `parameter.grad`. The weights do not change, and no parameter is frozen or unfrozen.
# - A frozen parameter has `grad is None` on all ranks, and keeps it.
# - Each rank sends 2(N − 1)/N times the bytes of the gradients: each gradient takes part in one ring all-reduce, alone or
#   together with others, and nothing else is sent.

# %% tags=["demo"]
predict("sent", "One model on 4 ranks, and then on 400: how many times as many bytes does each rank send?", unit="×")


def shared_sum():
    x = torch.full((4,), dist.get_rank() + 1.0)
    dist.all_reduce(x)
    return x.tolist()


run = Cluster(uniform(4, LATENCY, BANDWIDTH)).run(shared_sum)
print("rank 2 has", run.results[2], "and rank 0 sent", sum(run.bytes[0]), "bytes")


# %% nbgrader={"grade": false, "grade_id": "average_gradients", "locked": false, "schema_version": 3, "solution": true, "task": false}
def average_gradients(model: torch.nn.Module) -> None:
    """Make every gradient the mean over all ranks."""
    ### BEGIN SOLUTION
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "average_gradients_test_values", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("average_gradients", "the mean gradient", part="values", hidden="other models and numbers of ranks"):

    def averages(ranks, widths, rows, seed, frozen=(), data=0):
        served = batches_for_ranks(rows, widths[0], data)
        run = on_cluster(Cluster(ranks), averaged, average_gradients, widths, seed, frozen, served=served)
        batches = [batch_of(rank, rows, widths[0], data) for rank in range(ranks)]
        expected = of_one_process(widths, batches, seed, frozen)
        case = f"{ranks} ranks" + (f", layer {frozen[0]} frozen" if frozen else "")
        require_gradients(
            [gradients for gradients, _, _ in run.results],
            expected,
            case,
            lambda rank: of_one_process(widths, [batches[rank]], seed, frozen),
        )
        alone = 2 * (ranks - 1) * 4 * sum(g.numel() for g in expected.values() if g is not None) // ranks
        whole = 2 * (ranks - 1) * 4 * sum(a * b for a, b in pairwise(widths)) // ranks
        if frozen and whole in sent_by_ranks(run):
            check.true(
                False, f"{whole} bytes per rank, {case}: nothing is sent for a frozen layer, so expected {alone}"
            )
        for rank, (_, weights, trained) in enumerate(run.results):
            wanted = names_of(index for index in range(len(widths) - 1) if index not in frozen)
            check.equal(trained, wanted, what=f"parameters that require a gradient on rank {rank}, {case}")
            for name, p in Net(widths, seed=seed).named_parameters():
                check.equal(weights[name], p.detach(), what=f"weights of {name} on rank {rank}, {case}")

    def averages_with_an_idle_rank(ranks, idle):
        batches = [batch_of(rank, 2, 3) * (rank != idle) for rank in range(ranks)]
        served = {"batch": lambda rank, step: batches[rank]}
        run = on_cluster(Cluster(ranks), averaged_with_a_head, average_gradients, served=served)
        for rank, found in enumerate(run.results):
            for name, wanted in of_one_with_a_head(batches).items():
                what = (
                    f"gradient of {name} on rank {rank}; rank {idle} has only zeros in its batch and in its gradients"
                )
                check.close(found.get(name), wanted, rtol=1e-4, atol=1e-6, what=what)

    averages(2, [4, 6, 3], 2, seed=1)
    averages(4, [8, 4, 6], 3, seed=2, frozen=(0,))
    averages_with_an_idle_rank(3, 1)
    ### BEGIN HIDDEN TESTS
    averages(3, [5, 7, 2, 3], 1, seed=3, data=2571281590)
    averages(5, [3, 4], 2, seed=4, data=2668401648)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "average_gradients_test_traffic", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("average_gradients", "what is sent", part="traffic", hidden="another number of ranks"):

    def traffic(ranks, widths, tied=False, data=0):
        served = batches_for_ranks(1, widths[0], data)
        run = on_cluster(Cluster(ranks), averaged, average_gradients, widths, 0, (), tied, served=served)
        batches = [batch_of(rank, 1, widths[0], data) for rank in range(ranks)]
        expected = of_one_process(widths, batches, tied=tied)
        case = f"widths {widths}" + (", two layers share one weight" if tied else "")
        require_computed([gradients for gradients, _, _ in run.results], expected, case)
        gradient_bytes = 4 * sum(gradient.numel() for gradient in expected.values())
        once = 2 * (ranks - 1) * gradient_bytes // ranks
        for rank, sent in enumerate(sent_by_ranks(run)):
            check.equal(
                sent,
                once,
                what=f"bytes that rank {rank} of {ranks} sends for {gradient_bytes:,} bytes of gradients, {case}",
                hint=f"that is {sent / once:g} times as much: each gradient takes part in one all-reduce, and nothing else is sent"
                if sent
                else "nothing was sent",
            )

    traffic(4, [8, 16, 8])
    traffic(2, [6, 6, 6], tied=True)
    ### BEGIN HIDDEN TESTS
    traffic(2, [8, 16, 8, 4], data=2236067979)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "average_gradients",
    "`model.parameters()` gives the parameters in the same order on every rank.",
    "`dist.all_reduce(parameter.grad)` works in place; then divide by `dist.get_world_size()`, once.",
)
show.against_prediction("sent", round(399 / 400 / (3 / 4), 2), unit="×", source="model: 2 · 399/400 ÷ (2 · 3/4)")
debrief(
    "average_gradients",
    """The gradient of a mean over all rows is the mean of the gradients of its equal parts, so four small backward passes
    and one all-reduce replace one large backward pass. Each rank sends 1.5 times the gradients with 4 ranks, and 1.995 times
    with 400: 2(N − 1)/N approaches 2. That is why rings scale, and why more ranks do not make the all-reduce faster.

    Divide by the number of ranks before or after the sum. torch's DDP divides before it, which keeps sums in float16 in
    range, at the price that the smallest gradients underflow sooner.""",
    parts=("values", "traffic"),
)

# %% [markdown]
# ## 2 · The same start
#
# Averaging keeps equal ranks equal. It does not make them equal: if rank 0 starts with a weight of 1.0 and rank 1 with
# 1.2, both subtract the same update, so the difference of 0.2 stays, and each rank computes its gradient at different
# weights. So DDP sends the state of rank 0 to all when it is constructed: parameters, and **buffers** such as the running
# mean of a batch norm.
#
# `dist.broadcast(x, src=0)`, called on every rank, overwrites `x` on all other ranks with that of rank 0, in place: 1.0, 1.2
# and 1.4 on three ranks become 1.0 on all. Pass the `.detach()` of a parameter: it shares the memory, and autograd has no
# part in the copy.
#
# ### Exercise 2 (8 points)
#
# `start_together(model)` gives every rank the parameters and buffers of rank 0.
#
# - Values and dtypes are exactly those of rank 0. Some buffers are large integers. Frozen parameters count too, and so do
#   buffers that are not in the `state_dict`.
# - The parameters stay the same objects, since an optimizer may hold them already, and none is frozen or unfrozen.


# %% nbgrader={"grade": false, "grade_id": "start_together", "locked": false, "schema_version": 3, "solution": true, "task": false}
def start_together(model: torch.nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    ### BEGIN SOLUTION
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "start_together_test", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("start_together", "the state of rank 0 on all ranks", hidden="other models and numbers of ranks"):

    def starts(widths, seeds):
        ranks, seed = len(seeds), seeds[0]
        served = {"seed": lambda rank: seeds[rank]}
        run = on_cluster(Cluster(ranks), started, start_together, widths, served=served)
        expected = {name: value.detach() for name, value in Net(widths, seed=seed).state_dict().items()}
        parameters = list(expected.items())
        expected |= {"mean": torch.full((3,), float(seed)), "layers.steps": torch.tensor(2**60 + 1 + seed)}
        expected["cache"] = torch.full((2,), float(seed))
        causes = {
            "layers.0.weight": "this parameter is frozen: those count too",
            "mean": "this buffer was not sent",
            "layers.steps": "this buffer belongs to a submodule and holds an integer: model.buffers() has it too",
            "cache": "this buffer is not in the `state_dict`: take model.buffers()",
        }
        for rank, (held, state, _) in enumerate(run.results):
            own = dict(Net(widths, seed=seeds[rank]).named_parameters())
            own |= {"mean": torch.full((3,), float(seeds[rank])), "layers.steps": torch.tensor(2**60 + 1 + seeds[rank])}
            own["cache"] = torch.full((2,), float(seeds[rank]))
            for name in sorted(expected, key=lambda name: (name == "layers.0.weight", name in causes)):
                what = f"{name} on rank {rank} of {ranks}"
                check.dtype(state[name], expected[name].dtype, what=what)
                cause = causes.get(name, "") if torch.equal(state[name], own[name].detach()) else ""
                if name == "layers.steps" and not cause and torch.equal(state[name], state[name].double().long()):
                    cause = "a float cannot hold this integer: send each tensor in its own dtype"
                check.equal(state[name], expected[name], what=what, hint=cause)
            for number, (mine, (name, wanted)) in enumerate(zip(held, parameters, strict=True)):
                check.equal(
                    mine,
                    wanted,
                    what=f"parameter {number} ({name}) as an optimizer on rank {rank} of {ranks} holds it",
                    hint="the model has a new parameter object; overwrite the values of the old one instead",
                )
        for rank, (_, _, trained) in enumerate(run.results):
            wanted, what = names_of(range(1, len(widths) - 1)), f"parameters that require a gradient on rank {rank}"
            check.equal(trained, wanted, what=f"{what} of {ranks}")
        sent, least = sum(map(sum, run.bytes)), (ranks - 1) * sum(each.nbytes for each in expected.values())
        check.true(
            sent >= least, f"{sent:,} bytes were sent: the state of rank 0 takes {least:,} to {ranks - 1} others"
        )

    starts([4, 3, 2], [0, 1])
    starts([2, 5, 2], [0, 1, 2])
    ### BEGIN HIDDEN TESTS
    starts([3, 3, 3, 1], [2351334, 1442249, 3072316, 1817120])
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "start_together",
    "Two lists hold all the state: `model.parameters()` and `model.buffers()`.",
    "`dist.broadcast(tensor.detach(), src=0)` for each of them, on every rank.",
)
debrief(
    "start_together",
    """A seed that is equal on all ranks would also give equal weights, until somebody loads a checkpoint on rank 0 only, or
    a data loader draws more random numbers on one rank than on the others before the model is built. A broadcast sends each tensor to
    N − 1 ranks, once, and does not depend on seeds. A mean over ranks would agree as well, but on a model that nobody
    initialised, and the mean of integers need not be an integer.""",
    parts=("",),
)

# %% [markdown]
# ## 3 · Buckets
#
# A model has hundreds of parameters. One all-reduce for each pays the latency α every time; one for all of them cannot
# start before the last gradient exists. Between these two extremes, DDP groups gradients into **buckets**. The next cell
# shows what the latency costs.
#
# Backward computes the gradient of the *last* layer first. So buckets are filled from the last parameter to the first,
# and the first bucket is smaller, so that communication starts early.
#
# *Worked example.* Sizes of 4, 4, 2, 6 and 1 bytes, `bucket_bytes = 6` and `first_bytes = 2`. Parameter 4 comes first and
# brings 1 byte, which is less than 2. With parameter 3 there are 7, so the bucket `[4, 3]` is closed. Parameters 2 and 1
# reach 6: `[2, 1]`. Parameter 0 is left alone: `[0]`.
#
# ### Exercise 3 (14 points)
#
# `assign_buckets(sizes, bucket_bytes, first_bytes) -> list[list[int]]` returns the indices of the parameters in each bucket,
# in the order in which backward reaches them.
#
# - `sizes` are the bytes of each gradient, in the order of `model.parameters()`. A gradient may have 0 bytes, and needs a
#   bucket all the same.
# - A bucket is closed as soon as it holds *at least* `first_bytes` (the first one) or `bucket_bytes` (all others). The
#   rest is the last bucket. No bucket is empty.
# - The first lines are given: `bucket_bytes` or `first_bytes` of 0 or less raises a `ValueError`.

# %% tags=["demo"]
predict(
    "small",
    "64 gradients of 1 KiB, 4 ranks, α = 10 µs, β = 1 GB/s: how many times as long as one all-reduce of 64 KiB?",
    unit="×",
)


def in_pieces(count):
    for piece in torch.ones(16384).split(16384 // count):
        dist.all_reduce(piece)


with reveal("small"):
    small, large = (Cluster(4).run(in_pieces, count).seconds for count in (64, 1))
    show.against_prediction("small", round(small / large, 1), unit="×", source="measured on the virtual cluster")


# %% nbgrader={"grade": false, "grade_id": "assign_buckets", "locked": false, "schema_version": 3, "solution": true, "task": false}
def assign_buckets(sizes: list[int], bucket_bytes: int, first_bytes: int) -> list[list[int]]:
    """Indices of the gradients in each bucket, in the order in which backward fills them."""
    for name, limit in (("bucket_bytes", bucket_bytes), ("first_bytes", first_bytes)):
        if limit <= 0:
            raise ValueError(f"{name} = {limit}: expected more than 0")
    ### BEGIN SOLUTION
    buckets, current, held, limit = [], [], 0, first_bytes
    for index in reversed(range(len(sizes))):
        current.append(index)
        held += sizes[index]
        if held >= limit:
            buckets.append(current)
            current, held, limit = [], 0, bucket_bytes
    return [*buckets, current] if current else buckets
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "assign_buckets_test_values", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("assign_buckets", "which gradients share a bucket", part="values", hidden="other sizes"):

    def assigns(expected, sizes, bucket_bytes, first_bytes, **slips):
        got = assign_buckets(list(sizes), bucket_bytes, first_bytes)
        cause = next((name.replace("_", " ") for name, slip in slips.items() if got == slip), "")
        what = f"assign_buckets({sizes}, {bucket_bytes}, {first_bytes})"
        check.equal(got, expected, what=what, hint=cause)

    assigns(
        [[4, 3], [2, 1], [0]],
        [4, 4, 2, 6, 1],
        6,
        2,
        buckets_are_filled_from_the_first_parameter=[[0], [1, 2], [3], [4]],
        indices_count_from_the_end=[[0, 1], [2, 3], [4]],
        what_is_left_at_the_end_is_missing=[[4, 3], [2, 1]],
        the_bucket_that_holds_exactly_its_limit_was_not_closed=[[4, 3], [2, 1, 0]],
        the_gradient_that_reaches_the_limit_was_put_into_the_next_bucket=[[4], [3], [2, 1], [0]],
    )
    assigns(
        [[3], [2, 1], [0]],
        [3, 3, 3, 3],
        6,
        3,
        the_first_bucket_was_filled_to_the_limit_of_the_others=[[3, 2], [1, 0]],
        all_buckets_were_closed_at_first_bytes=[[3], [2], [1], [0]],
    )
    assigns([[3, 2], [1, 0]], [5, 5, 5, 5], 10, 10, the_last_bucket_of_the_answer_is_empty=[[3, 2], [1, 0], []])
    assigns([[2], [1, 0]], [3, 5, 2], 6, 2)
    assigns([[3, 2], [1], [0]], [2, 2, 2, 2], 1, 4)
    assigns([[2], [1], [0]], [9, 9, 9], 4, 1)
    assigns([[2, 1, 0]], [1, 1, 1], 100, 50)
    assigns([[1], [0]], [0, 5], 6, 2, gradient_0_has_no_bytes_and_needs_a_bucket_all_the_same=[[1]])
    assigns([[2, 1], [0]], [5, 1, 2**30], 2**30 + 1, 2**30 + 1)
    left = arguments_after(assign_buckets, [4, 4, 2, 6, 1], 6, 2)[0]
    check.equal(left, [4, 4, 2, 6, 1], what="sizes after the call", hint="work on a copy of the list")

    ### BEGIN HIDDEN TESTS
    def by_sums(sizes, bucket, first):
        """Cuts at the sums where a limit is reached, from the end."""
        backward, cuts = list(range(len(sizes)))[::-1], [0]
        while cuts[-1] < len(backward):
            limit = first if len(cuts) == 1 else bucket
            ends = range(cuts[-1] + 1, len(backward) + 1)
            cuts.append(
                next((e for e in ends if sum(sizes[i] for i in backward[cuts[-1] : e]) >= limit), len(backward))
            )
        return [backward[a:b] for a, b in pairwise(cuts)]

    for seed in range(12):
        rng = check.rng(seed)
        sizes = [max(0, int(size)) for size in rng.integers(-6, 40, size=int(rng.integers(1, 14)))]
        bucket, first = int(rng.integers(1, 90)), int(rng.integers(1, 40))
        assigns(by_sums(sizes, bucket, first), sizes, bucket, first)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "assign_buckets_test_edges", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("assign_buckets", "nothing to assign, and wrong limits", part="edges", hidden="other values"):
    check.returns([], assign_buckets, [], 6, 2, hint="without gradients there is no bucket")
    check.raises(ValueError, assign_buckets, [1, 2], 6, 0, names=("first_bytes = 0",))
    check.raises(ValueError, assign_buckets, [1, 2], -3, 2, names=("bucket_bytes = -3",))
    ### BEGIN HIDDEN TESTS
    check.raises(ValueError, assign_buckets, [], 0, 2, names=("bucket_bytes = 0",))
    check.raises(ValueError, assign_buckets, [7], 5, -1, names=("first_bytes = -1",))
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "assign_buckets",
    "Walk through `reversed(range(len(sizes)))` and keep the open bucket, its bytes and its limit.",
    "Add the gradient first, then compare: the one that reaches the limit belongs to the bucket that it closes.",
    "After the loop, append the open bucket if it holds anything.",
)
debrief(
    "assign_buckets",
    """This is `compute_bucket_assignment_by_size` of torch's DDP, for one dtype; its defaults are 25 MiB and 1 MiB for
    the first bucket. All ranks must have the same buckets. Our rule depends on the model only, so they do. torch uses one
    bucket in the first step; then it knows in which order gradients really came, makes its buckets in that order, and
    rank 0 sends the list to all. The bucket that fills last matters most: when it is full, backward is over, and nothing is
    left to hide it.""",
    parts=("values", "edges"),
)

# %% [markdown]
# ## 4 · Communicate while backward still runs
#
# A GPU can send and compute at the same time. Communication that runs beside computation is **hidden**, and the rest is
# **exposed**. You need three tools; the next cell shows the first two.
#
# - `work = dist.all_reduce(x, async_op=True)` returns at once, and `work.wait()` waits until the sum is there. Leave `x`
#   alone until then. (On a GPU only the current CUDA stream waits, and Python goes on.) All-reduces of a rank run one after
#   another, in the order in which they were started.
# - `parameter.register_post_accumulate_grad_hook(f)` calls `f(parameter)` as soon as its gradient is in `parameter.grad`,
#   while backward goes on.
# - A bucket is sent as one flat tensor. Two functions for that are given: `start(bucket)` begins the all-reduce that sums the
#   bucket, and records it in `started`. `copy_back(bucket, flat)` copies the pieces of a flat tensor into the gradients.
#
# ### Exercise 4 (28 points)
#
# `overlap(model, buckets)` registers hooks and returns a function `finish()`. `buckets` holds lists of parameter names, each
# parameter once, in the order in which backward should fill them. In each step the test calls `backward()` and then `finish()`.
# Write `gradient_ready(name)`, which the hooks call, and `finish()`.
#
# - A bucket's all-reduce starts as soon as its last gradient exists *and* the buckets before it have started. There is one
#   all-reduce per bucket, in the order of `buckets`, on every rank, even if gradients come in another order.
# - Do not wait during backward. After `finish()`, every `parameter.grad` holds the mean over the ranks.
# - If some parameters got no gradient since the last `finish()`, `finish()` raises a `RuntimeError` with the names of all of
#   them, and of no others. Before that it waits for the buckets that have started. Gradients of buckets that have not
#   started stay as backward made them.
# - The next step works the same way, even after such an error. Gradients are set to `None` between steps.

# %% tags=["demo"]
predict(
    "one",
    "8 layers, 0.1 ms forward, 0.2 ms backward and 256 KiB each, 4 ranks, α = 10 µs, β = 1 GB/s. One bucket: ms per step?",
    unit="ms",
)
predict("eight", "The same, each layer a bucket of its own, all-reduced as soon as it is full: ms per step?", unit="ms")


def sum_and_compute(wait_first):
    x = torch.ones(65536)
    work = dist.all_reduce(x, async_op=True)
    if wait_first:
        work.wait()
    compute(0.3e-3)  # instead of backward
    work.wait()
    return f"{1e3 * now():.3f} ms"


for wait_first in (True, False):
    took = Cluster(4).run(sum_and_compute, wait_first).results[0]
    print(f"an all-reduce and 0.3 ms of computation, {wait_first = }: {took}")
model = Net([4, 4, 4])
for name, parameter in model.named_parameters():
    parameter.register_post_accumulate_grad_hook(lambda p, name=name: print("gradient of", name, tuple(p.grad.shape)))
mean_square(model(batch_of(0, 2, 4))).backward()


# %% nbgrader={"grade": false, "grade_id": "overlap", "locked": false, "schema_version": 3, "solution": true, "task": false}
def overlap(model: torch.nn.Module, buckets: list[list[str]]):
    """Average each bucket as soon as it is full; returns `finish`, to be called after backward."""
    parameters = dict(model.named_parameters())
    ready, started = set(), []  # names whose gradient is there, and (bucket, flat, work) of each all-reduce

    def start(bucket):
        """Begin the all-reduce of a bucket whose gradients are there."""
        flat = torch.cat([parameters[name].grad.reshape(-1) for name in bucket])
        started.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

    def copy_back(bucket, flat):
        """Put the pieces of a flat tensor into the gradients of its bucket."""
        pieces = flat.split([parameters[name].numel() for name in bucket])
        for name, piece in zip(bucket, pieces, strict=True):
            parameters[name].grad.copy_(piece.view(parameters[name].shape))

    for bucket in buckets:
        for name in bucket:
            parameters[name].register_post_accumulate_grad_hook(lambda _, name=name: gradient_ready(name))

    def gradient_ready(name):
        """The hook: the gradient of this parameter is there now."""
        ### BEGIN SOLUTION
        ready.add(name)
        while len(started) < len(buckets) and ready.issuperset(buckets[len(started)]):
            start(buckets[len(started)])
        ### END SOLUTION

    def finish():
        """Backward is over: wait, and leave the mean in every gradient."""
        ### BEGIN SOLUTION
        missing = [name for bucket in buckets for name in bucket if name not in ready]
        for bucket, flat, work in started:
            work.wait()
            copy_back(bucket, flat / dist.get_world_size())
        ready.clear()
        started.clear()
        if missing:
            raise RuntimeError(f"no gradient for {', '.join(missing)}: each parameter must take part in the loss")
        ### END SOLUTION

    return finish


# %% nbgrader={"grade": true, "grade_id": "overlap_test_values", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("overlap", "mean gradients, bucket by bucket", part="values", hidden="other models, buckets and orders"):

    def overlaps(ranks, widths, layers, steps=1, orders=None, seed=0, data=0):
        buckets = [names_of(bucket) for bucket in layers]
        served = batches_for_ranks(2, widths[0], data)
        run = on_cluster(Cluster(ranks), overlapped, overlap, widths, buckets, steps, orders, seed, served=served)
        for step in range(steps):
            batches = [batch_of(rank, 2, widths[0], data + step) for rank in range(ranks)]
            case = f"step {step + 1}, buckets of layers {layers}" + (
                f", layers used in the orders {orders}" if orders else ""
            )
            earlier = [batch_of(rank, 2, widths[0], data + step - 1) for rank in range(ranks)] if step else []
            stale = {"this is the gradient of the step before: clear your state in finish": earlier}
            require_gradients(
                [found[step] for found, _ in run.results],
                of_one_process(widths, batches, seed, orders=orders),
                case,
                lambda rank, batches=batches: of_one_process(
                    widths, [batches[rank]], seed, orders=[orders[rank]] if orders else None
                ),
                {why: of_one_process(widths, old, seed) for why, old in stale.items() if old},
                otherwise="gradients come in another order on each rank: start all-reduces in the order of `buckets`, and "
                "keep the order of the names in a bucket"
                if orders
                else "",
            )
        for rank, (_, after) in enumerate(run.results):
            check.equal(
                after, buckets, what=f"buckets on rank {rank} after the last step", hint="work on a copy of them"
            )
        sent = sum(span.what == "all_reduce" and span.rank == 0 for span in run.collectives)
        check.equal(
            sent,
            steps * len(layers),
            what=f"all-reduces of rank 0 in {steps} step{'s' * (steps > 1)}, {len(layers)} buckets",
            hint="one per parameter: send each bucket as one tensor" if sent == steps * (len(widths) - 1) else "",
        )

    def overlaps_under_other_names(ranks, width, layers, seed, data=0):
        widths, buckets = [width] * (sum(map(len, layers)) + 1), [names_of(bucket) for bucket in layers]
        served = batches_for_ranks(2, width, data)
        run = on_cluster(Cluster(ranks), overlapped_under_other_names, overlap, widths, buckets, seed, served=served)
        expected = of_one_process(widths, [batch_of(rank, 2, width, data) for rank in range(ranks)], seed)
        for rank, found in enumerate(run.results):
            case = f"on rank {rank}, where all names of parameters begin with of_rank_{rank}"
            for bucket in buckets:
                alone = all(alike(found.get(name), expected[name]) for name in bucket)
                gradients = [found.get(name) for name in bucket]
                mixed = not alone and all(map(torch.is_tensor, gradients))
                mixed = mixed and alike(sum(gradients), sum(expected[name] for name in bucket))
                check.true(
                    not mixed,
                    f"the mean gradients of a bucket are mixed up {case}: ranks put them into the flat tensor in different "
                    "orders. A set of names has a different order in each process: keep the order of the lists",
                )
                for name in bucket:
                    check.close(
                        found.get(name), expected[name], rtol=1e-4, atol=1e-6, what=f"gradient of {name} {case}"
                    )

    def goes_on(count, layers, used, data=0):
        """A step that leaves layers out, and one with all of them."""
        widths, buckets = [4] * (count + 1), [names_of(bucket) for bucket in layers]
        served = batches_for_ranks(2, 4, data)
        run = on_cluster(Cluster(2), overlapped_after_an_error, overlap, widths, buckets, used, served=served)
        case = f"the step after finish() has raised an error, buckets of layers {layers}"
        before, batches = ([batch_of(rank, 2, 4, data + step) for rank in range(2)] for step in range(2))
        stale = of_one_process(widths, before, orders=[used, used])
        stale = {name: gradient for name, gradient in stale.items() if gradient is not None}
        expected = of_one_process(widths, batches)
        require_gradients(
            run.results,
            expected,
            case,
            lambda rank: of_one_process(widths, [batches[rank]]),
            {"this is the gradient of the step with the error: clear your state then too": expected | stale},
        )

    def overlaps_with_a_head(ranks, buckets):
        served = batches_for_ranks(2, 3, 0)
        run = on_cluster(Cluster(ranks), overlapped_with_a_head, overlap, buckets, range(2), served=served)
        expected = of_one_with_a_head([batch_of(rank, 2, 3) for rank in range(ranks)])
        for rank, found in enumerate(run.results):
            for name, wanted in expected.items():
                what = f"gradient of {name} on rank {rank}, in a model that has {', '.join(expected)}"
                check.close(found.get(name), wanted, rtol=1e-4, atol=1e-6, what=what)

    overlaps(2, [3, 4, 5, 2], [[2], [1, 0]])
    overlaps(3, [4, 4, 4, 4], [[2, 1], [0]], steps=2)
    overlaps(2, [4, 4, 4, 4], [[2], [1], [0]], orders=[[0, 1, 2], [2, 0, 1]])
    overlaps(2, [4, 4, 4, 4], [[2, 1], [0]], orders=[[0, 1, 2], [0, 2, 1]])
    overlaps_under_other_names(2, 3, [[5, 4, 3, 2, 1], [0]], seed=8)
    overlaps_with_a_head(
        2, [["layers.0.weight_scale"], ["head.layers.0.weight"], ["layers.1.weight"], ["layers.0.weight"]]
    )
    goes_on(3, [[2], [1], [0]], [1, 2])
    ### BEGIN HIDDEN TESTS
    overlaps(4, [2, 5, 3, 3, 1], [[3, 2, 1, 0]], steps=2, seed=5, data=2758924176)
    overlaps(2, [3, 3, 3, 3, 3], [[3, 2], [1], [0]], orders=[[3, 2, 0, 1], [0, 1, 2, 3]], seed=6, data=2843866979)
    overlaps_under_other_names(3, 4, [[6, 5, 4, 3, 2, 1, 0]], seed=9, data=2989792349)
    goes_on(4, [[3], [2, 1], [0]], [1, 3], data=3000000019)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "overlap_test_time", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("overlap", "the time of a step", part="time", hidden="other buckets, links and numbers of ranks"):

    def takes(ranks, width, layers, latency=LATENCY, bandwidth=BANDWIDTH, order=None, data=0):
        """Each bucket starts when it is full, the ones before have started, and the link is free."""
        count, full, end, alone = sum(map(len, layers)), 0.0, 0.0, 0.0
        order = list(range(count)) if order is None else order
        ready = {layer: count * FORWARD + (i + 1) * BACKWARD for i, layer in enumerate(reversed(order))}
        for bucket in layers:
            full = max(full, *(ready[layer] for layer in bucket))
            ring = 2 * (ranks - 1) * (latency + len(bucket) * 4 * width**2 / (ranks * bandwidth))
            end, alone = max(end, full) + ring, alone + ring
        computing = count * (FORWARD + BACKWARD)
        widths, buckets = [width] * (count + 1), [names_of(bucket) for bucket in layers]
        cluster = Cluster(uniform(ranks, latency, bandwidth))
        served = batches_for_ranks(2, width, data)
        run = on_cluster(cluster, overlapped, overlap, widths, buckets, 1, [order] * ranks, served=served)
        batches = [batch_of(rank, 2, width, data) for rank in range(ranks)]
        expected = of_one_process(widths, batches, orders=[order] * ranks)
        require_computed([found[0] for found, _ in run.results], expected, f"buckets of layers {layers}")
        charged = sum(span.end - span.start for span in run.spans if span.what in ("forward", "backward"))
        check.close(charged, ranks * computing, rtol=1e-9, unit="s", what="computation that all ranks charged")
        cause = "nothing was hidden: either the hook waits, or everything starts in finish"
        exposed = math.isclose(run.seconds, computing + alone, rel_tol=1e-6) and len(layers) > 1
        check.close(
            run.seconds,
            max(end, computing),
            rtol=1e-9,
            unit="s",
            what=f"a step of {ranks} ranks, buckets of layers {layers}, layers used in the order {order}",
            hint=cause if exposed else "",
        )
        return run.seconds, max(end, computing)

    takes(4, 256, [list(range(7, -1, -1))])
    two = takes(4, 256, [[7, 6, 5, 4], [3, 2, 1, 0]])
    takes(2, 64, [[3], [2], [1, 0]])
    takes(2, 64, [[2], [1], [0]], order=[0, 2, 1])  # layer 2 completes two buckets
    takes(2, 64, [[2], [1], [0]], order=[2, 0, 1])  # layer 2 completes all three, after the last hook
    check.note("step with two buckets", *(1e3 * seconds for seconds in two), "ms")
    ### BEGIN HIDDEN TESTS
    takes(4, 128, [[5], [4], [3], [2], [1], [0]], bandwidth=0.2e9, data=2449489743)
    takes(3, 48, [[3, 2], [1], [0]], latency=40e-6, bandwidth=0.05e9, data=2645751312)
    takes(3, 48, [[4], [3], [2], [1], [0]], order=[0, 1, 4, 3, 2], data=2828427126)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "overlap_test_missing", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("overlap", "parameters without a gradient", part="missing", hidden="other layers"):

    def names(said, name):
        """Whether the message has this name, and not only one that ends or begins with it."""
        return re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", said) is not None

    def reports(program, arguments, width, case, named, others):
        try:
            served = batches_for_ranks(2, width, 0)
            on_cluster(Cluster(2), program, overlap, *arguments, served=served)
            said = "finish() raised nothing"
        except NotImplementedError:
            raise
        except RankFailed as failure:
            said = str(failure)
        except Exception as failure:
            said = f"{type(failure).__name__}: {failure}"
        what = f"{case}, so finish() must raise a RuntimeError that names {', '.join(named)}"
        good = "RuntimeError" in said and all(names(said, name) for name in named)
        check.true(good, f"{what}; seen:\n{said}")
        wrong = [name for name in others if names(said, name)]
        check.true(not wrong, f"{what} and no others, but {', '.join(wrong)} got a gradient; seen:\n{said}")

    def reports_missing(count, layers, used, named):
        arguments = [4] * (count + 1), [names_of(bucket) for bucket in layers], 1, [used, used]
        others = names_of(index for index in range(count) if index not in named)
        case = f"layers {used} of {count} are used"
        reports(overlapped, arguments, 4, case, names_of(named), others)

    def leaves_alone(count, layers, used, data=0):
        """Buckets that have not started keep their gradients when finish() raises its error."""
        widths, buckets = [4] * (count + 1), [names_of(bucket) for bucket in layers]
        served = batches_for_ranks(2, 4, data)
        try:
            run = on_cluster(Cluster(2), overlapped_up_to_an_error, overlap, widths, buckets, used, served=served)
        except ClusterError:
            return  # a matter for another part
        started = len([*takewhile(lambda bucket: set(bucket) <= set(used), layers)])
        for rank, left in enumerate(run.results):
            own = of_one_process(widths, [batch_of(rank, 2, 4, data)], orders=[used])
            for name in (name for bucket in buckets[started:] for name in bucket):
                what = (
                    f"gradient of {name} on rank {rank} after the error: its bucket, one of {layers}, has not started"
                )
                if own[name] is None:
                    check.true(left[name] is None, f"{what}, so expected None, as it was")
                else:
                    check.close(left[name], own[name], rtol=1e-4, atol=1e-6, what=what)

    def reports_missing_later(count, layers, used, named):
        arguments = [4] * (count + 1), [names_of(bucket) for bucket in layers], used
        others = names_of(index for index in range(count) if index not in named)
        case = f"step 1 uses all {count} layers, and step 2 " + (f"only {used}" if used else "has no backward()")
        reports(overlapped_with_less, arguments, 4, case, names_of(named), others)

    reports_missing(3, [[2], [1], [0]], [0, 2], [1])
    reports_missing(4, [[3, 2], [1, 0]], [1, 2], [0, 3])
    reports(
        overlapped_with_a_head,
        ([["layers.0.weight_scale", "head.layers.0.weight"], ["layers.1.weight", "layers.0.weight"]], [1]),
        3,
        "layers.0.weight is not used, but layers.0.weight_scale and head.layers.0.weight are",
        ["layers.0.weight"],
        ["layers.0.weight_scale", "layers.1.weight", "head.layers.0.weight"],
    )
    reports_missing_later(3, [[2], [1, 0]], [1, 2], [0])
    reports_missing_later(2, [[1], [0]], [], [0, 1])
    leaves_alone(3, [[2], [1, 0]], [1, 2])
    leaves_alone(3, [[2], [1], [0]], [0, 2])
    ### BEGIN HIDDEN TESTS
    reports_missing(3, [[2, 1, 0]], [1, 2], [0])
    reports_missing(5, [[4], [3, 2], [1, 0]], [1, 2, 3], [0, 4])
    leaves_alone(4, [[3], [2, 1], [0]], [1, 3], data=3000000019)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "overlap",
    "`started` tells which bucket is next: `buckets[len(started)]`. It is full if all of its names are in `ready`.",
    "In the hook: `while` the next bucket in order is full, start it. One gradient can complete several buckets that "
    "waited for their turn.",
    "In `finish`: note which names are missing, wait for each bucket that has started and copy the mean back, clear both, "
    "and only then raise.",
)
from threeloops.lab.drawings import Layer, draw_buckets, fill_buckets
from threeloops.lab.drawings.training import buckets as bucketing
from threeloops.training.cluster.pictures import gantt
from threeloops.training.data_parallel import DDP


def one_step(wrap, cap, steps=3):
    """Seconds of the third step, for which torch's DDP has arranged its buckets."""
    ddp = wrap(Net([256] * 9), cap)
    for step in range(steps):
        advance_to(0.1 * (step + 1))
        ddp.zero_grad()
        mean_square(ddp(torch.ones(1, 256))).backward()
        synchronize()
    return now() - 0.1 * steps


def course_ddp(model, cap):
    return DDP(model, bucket_cap_mb=cap, first_bucket_mb=cap)


def torch_ddp(model, cap):
    return DistributedDataParallel(model, bucket_cap_mb=cap)


def your_step(count):
    """A step with your overlap and `count` buckets."""
    model = Net([256] * 9)
    finish = overlap(model, [names_of(range(end - 1, end - 1 - 8 // count, -1)) for end in range(8, 0, -8 // count)])
    mean_square(model(torch.ones(1, 256))).backward()
    finish()
    return now()


def yours(cluster, count):
    try:
        return f"{1e3 * max(cluster.run(your_step, count).results):.4f}"
    except ClusterError:
        return "not yet"


with reveal("eight"):
    four = Cluster(uniform(4, LATENCY, BANDWIDTH))
    rows, found = [], {}
    for count, cap in ((1, 100.0), (2, 1.0), (4, 0.5), (8, 0.25)):
        name = f"{count} bucket{'s' * (count > 1)}"
        runs = [four.run(one_step, wrap, cap) for wrap in (course_ddp, torch_ddp)]
        found[name] = runs[0]
        rows.append((name, yours(four, count), *(f"{1e3 * max(run.results):.4f}" for run in runs)))
    show.against_prediction("one", round(1e3 * max(found["1 bucket"].results), 4), unit="ms", source="virtual cluster")
    show.against_prediction(
        "eight", round(1e3 * max(found["8 buckets"].results), 4), unit="ms", source="virtual cluster"
    )
    show.figure(
        bucketing.draw_exposed(
            {name: (max(run.results), max(found["1 bucket"].results)) for name, run in found.items()},
            8 * (FORWARD + BACKWARD),
            "one bucket",
        ),
        "a step with 1, 2, 4 and 8 buckets, beside the step with one bucket, where nothing is hidden",
    )
    show.table(
        rows,
        header=("", "yours, ms", "this course's DDP, ms", "torch's DDP, ms"),
        caption="2.4 ms of each step is computation. This course's DDP is threeloops.training.data_parallel.DDP",
    )
    shown = found["8 buckets"]
    ends = 0.3, 0.3 + max(shown.results)
    animate(
        lambda frame: gantt(shown, window=ends, until=0.3 + max(shown.results) * (frame + 1) / 8, most_arrows=0),
        range(8),
        seconds=0.7,
        caption="Eight buckets: while a rank computes backward, its other timeline already sends",
    )
    layers = [Layer(str(index), BACKWARD, 2**18) for index in range(8)]
    explore(
        lambda bucket_KiB, ranks: draw_buckets(
            fill_buckets(layers, 1024 * bucket_KiB, ranks=ranks, latency=LATENCY, bandwidth=BANDWIDTH), 0.007
        ),
        bucket_KiB=[2048, 1024, 512, 256],
        ranks=[4, 2, 8],
    )
debrief(
    "overlap",
    """With one bucket nothing overlaps: 2.4 ms of computation and 3.2 ms of communication come one after the other. With
    several, the link starts after the first bucket and is busy from then on. Here communication takes longer than
    backward, so the step ends when the link does: the time until the first bucket is full, and then all the all-reduces.
    Smaller buckets start earlier, but each pays the latency again, so there is a best size in between.

    The order must not depend on which gradient happens to come first. Collectives have no names: the third all-reduce of
    one rank meets the third of the other, whatever is in it. A bucket that is full too early waits for its turn. For the
    same reason a bucket must not be a Python set: each rank's interpreter has its own hash seed, so a set of names has
    another order on each rank.

    torch's DDP has no `finish`, so it finds a parameter without a gradient only in the next forward, and stops there.""",
    parts=("values", "time", "missing"),
)

# %% [markdown]
# ## 5 · Do not communicate what nobody needs yet
#
# If a batch does not fit, a rank splits it into **microbatches** and lets their gradients add up. Only the sum has to be
# averaged, so the all-reduces of all but the last microbatch are wasted. torch's DDP leaves them out inside
# `with ddp.no_sync():`. The *forward* call decides, so it must be inside; usually both forward and backward are.
#
# The mean over a batch of 6 rows, split into 4 and 2, is 4/6 of the first mean plus 2/6 of the second. So each
# microbatch's loss is weighted by its share of the rows before `backward()`.
#
# The next cell runs two microbatches of two rows, once with an all-reduce for each of them, and once without the first.
#
# ### Exercise 5 (14 points)
#
# `accumulate(ddp, microbatches, loss_fn)` leaves in every `parameter.grad` the gradient of the mean over all rows of all
# ranks.
#
# - `ddp` is torch's `DistributedDataParallel`; gradients are `None` at first.
# - `microbatches` are this rank's inputs, with different numbers of rows; every rank has the same total. `loss_fn(ddp(x))` is
#   a mean over the rows of `x`. The same tensor may occur twice.
# - Call `loss_fn(ddp(x))` once for each microbatch, and its backward before the next one: only one fits into memory.
# - Each gradient is all-reduced once in total.


# %% tags=["demo"]
def two_microbatches(skip_first):
    ddp = DistributedDataParallel(Net([4, 4, 4]))
    advance_to(1.0)
    first, second = batch_of(dist.get_rank(), 4, 4).split(2)
    with ddp.no_sync() if skip_first else nullcontext():
        (mean_square(ddp(first)) / 2).backward()
    (mean_square(ddp(second)) / 2).backward()
    return float(ddp.module.layers[0].weight.grad.sum())


for skip_first in (False, True):
    run = Cluster(2).run(two_microbatches, skip_first)
    print(
        f"no_sync: {skip_first}, rank 1 sends {sent_by_ranks(run, after=1.0)[1]} bytes, gradients sum to {run.results[0]:.6f}"
    )


# %% nbgrader={"grade": false, "grade_id": "accumulate", "locked": false, "schema_version": 3, "solution": true, "task": false}
def accumulate(ddp: DistributedDataParallel, microbatches: list[torch.Tensor], loss_fn) -> None:
    """The gradient of the mean over all microbatches and ranks, with one all-reduce per gradient."""
    ### BEGIN SOLUTION
    rows = sum(len(x) for x in microbatches)
    with ddp.no_sync():
        for x in microbatches[:-1]:
            (loss_fn(ddp(x)) * len(x) / rows).backward()
    (loss_fn(ddp(microbatches[-1])) * len(microbatches[-1]) / rows).backward()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "accumulate_test_values", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("accumulate", "the gradient of several microbatches", part="values", hidden="other microbatches"):

    def accumulates(ranks, widths, sizes, seed, data=0):
        served = batches_for_ranks(sum(sizes), widths[0], data)
        run = on_cluster(Cluster(ranks), accumulated, accumulate, widths, sizes, seed, served=served)
        batches = [batch_of(rank, sum(sizes), widths[0], data) for rank in range(ranks)]
        pieces = [piece for batch in batches for piece in batch.split(list(sizes))]
        case, equal = f"microbatches of {sizes} rows", of_one_process(widths, pieces, seed)
        require_gradients(
            [gradients for gradients, *_ in run.results],
            of_one_process(widths, batches, seed),
            case,
            lambda rank: of_one_process(widths, [batches[rank]], seed),
            {
                "every microbatch counts the same here: weight each by its rows": equal,
                "the means of the microbatches were added up: weight each by its share of the rows": {
                    name: len(sizes) * gradient for name, gradient in equal.items()
                },
            },
        )
        for rank, (_, seen, most, after, changed) in enumerate(run.results):
            what = f"on rank {rank}, {case}"
            check.equal(sorted(seen), sorted(sizes), what=f"rows that loss_fn(ddp(x)) got in each call {what}")
            check.equal(changed, 0, what=f"inputs of the model that are none of the microbatches {what}")
            check.equal(most, 1, what=f"microbatches whose forward is kept for backward at one time {what}")
            check.equal(len(after), len(sizes), what=f"microbatches in the list after the call {what}")
            for number, (left, piece) in enumerate(zip(after, batches[rank].split(list(sizes)), strict=True)):
                check.equal(left, piece, what=f"microbatch {number} of the list after the call {what}")

    accumulates(2, [4, 3], [4, 2], seed=1)
    accumulates(3, [3, 5, 2], [1, 2, 3], seed=2)
    accumulates(2, [5, 4, 3], [3], seed=3)
    ### BEGIN HIDDEN TESTS
    accumulates(2, [4, 4, 3], [3, 1], seed=5, data=2924017738)
    accumulates(4, [2, 6], [1, 1, 5, 2], seed=4, data=3107232506)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "accumulate_test_traffic", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("accumulate", "what is sent for all microbatches together", part="traffic", hidden="other microbatches"):

    def sends(ranks, widths, sizes, again=False, data=0):
        served = batches_for_ranks(sum(sizes), widths[0], data)
        run = on_cluster(Cluster(ranks), accumulated, accumulate, widths, sizes, 0, again, served=served)
        batches = [batch_of(rank, sum(sizes), widths[0], data) for rank in range(ranks)]
        case = f"microbatches of {sizes} rows" + (" and the first of them again" if again else "")
        if again:
            batches = [torch.cat([batch, batch[: sizes[0]]]) for batch in batches]
        expected = of_one_process(widths, batches)
        require_computed([gradients for gradients, *_ in run.results], expected, case)
        once = 2 * (ranks - 1) * 4 * sum(a * b for a, b in pairwise(widths)) // ranks
        causes = (
            "nothing was sent: the last microbatch needs its all-reduce",
            "a microbatch after the first all-reduce makes DDP send its order of buckets: only the last one may have one",
            "gradients were sent more than once",
        )
        for rank, sent in enumerate(sent_by_ranks(run, after=1.0)):
            check.equal(
                sent,
                once,
                what=f"bytes that rank {rank} of {ranks} sends for {case}",
                hint=causes[min(sent // once, 2)],
            )

    sends(2, [4, 4, 4], [2, 2])
    sends(4, [8, 8], [1, 3, 2])
    sends(2, [4, 4, 4], [2, 1], again=True)  # the same tensor twice: count the microbatches
    ### BEGIN HIDDEN TESTS
    sends(2, [6, 4], [1, 1, 1, 1, 1], data=3162277662)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "accumulate",
    "`with ddp.no_sync():` around forward and backward of all microbatches but the last.",
    "Weight each loss by `len(x) / rows`, where `rows` counts all microbatches of this rank.",
)
debrief(
    "accumulate",
    """Gradients add up in `parameter.grad`, and the mean over ranks of a sum is the sum of the means, so one all-reduce at
    the end gives the same result as one per microbatch. Communication per row shrinks with the number of rows per update,
    and that is the simplest way to make a slow network matter less. If one batch would have fitted, the price is a
    larger batch per update.

    Averaging every time would even give the right values: the part that is already averaged is equal on all ranks, so
    averaging it again changes nothing. Only the bytes show the difference.""",
    parts=("values", "traffic"),
)

# %% [markdown]
# ## 6 · What does one more GPU bring?
#
# Now predict a step without running it. Let backward fill b equal buckets, at equal intervals. A rank's compute time is
# C = forward + backward. Ring all-reduces take T = b · 2(N − 1)(α + S ÷ (b · N · β)) seconds in all, for S bytes of gradients.
#
# - The *last* bucket is full only when backward ends. Nothing hides it: at least T/b seconds are **exposed**.
# - The link starts when the *first* bucket is full, so at most backward · (b − 1)/b seconds are hidden.
#
# Each of the two gives a lower bound on the exposed time, and the larger bound is the exposed time. A step takes C plus that.
#
# *Worked example.* The run of section 4 with 8 buckets: T = 8 · 6 · (10 µs + 65.536 µs) = 3.6257 ms, T/8 = 0.4532 ms, and
# T − 1.6 ms · 7/8 = 2.2257 ms are exposed. The step takes 2.4 + 2.2257 = 4.6257 ms, as measured there. Of the communication,
# 1 − 2.2257/3.6257 = 39% is hidden. If all N ranks do their batch in 4.6257 ms where one alone takes 2.4 ms, the throughput
# is N · 2.4/4.6257 times that of one, so the **scaling efficiency** is 2.4/4.6257 = 52%.
#
# ### Exercise 6 (12 points)
#
# `scaling(forward, backward, gradient_bytes, buckets, ranks, latency, bandwidth) -> Step` returns
# `Step(seconds=…, efficiency=…, hidden=…)` by this model. C and T are given, as `compute_seconds` and `communication`.
# If T is 0, as with one rank, efficiency and hidden share are 1.0.

# %% tags=["demo"]
predict(
    "weak", "The same model and link with 64 ranks instead of 4, in one bucket: which efficiency, in percent?", unit="%"
)
myth("ddp-3")


# %% nbgrader={"grade": false, "grade_id": "scaling", "locked": false, "schema_version": 3, "solution": true, "task": false}
def scaling(
    forward: float, backward: float, gradient_bytes: int, buckets: int, ranks: int, latency: float, bandwidth: float
) -> Step:
    """Seconds, efficiency and hidden share of a step with equal buckets."""
    compute_seconds = forward + backward
    communication = buckets * 2 * (ranks - 1) * (latency + gradient_bytes / (buckets * ranks * bandwidth))
    ### BEGIN SOLUTION
    exposed = max(communication / buckets, communication - backward * (buckets - 1) / buckets)
    seconds = compute_seconds + exposed
    return Step(seconds, compute_seconds / seconds, 1 - exposed / communication if communication else 1.0)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "scaling_test_time", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("scaling", "the time of a step", part="time", hidden="other models and links"):

    def step_takes(expected, *arguments, why="", slips=None):
        step = scaling(*arguments)
        check.true(type(step).__name__ == "Step", f"scaling{arguments} returned {type(step).__name__}: expected a Step")
        said = "scaling({}, {}, {:,}, {}, {}, {}, {:g})".format(*arguments) + (f" ({why})" if why else "")
        number = type(step.seconds) in (int, float)
        causes = (
            cause for cause, slip in (slips or {}).items() if number and math.isclose(step.seconds, slip, rel_tol=1e-9)
        )
        check.close(step.seconds, expected, rtol=1e-9, unit="s", what=f"seconds of {said}", hint=next(causes, ""))

    step_takes(
        4.625728e-3,
        0.8e-3,
        1.6e-3,
        2**21,
        8,
        4,
        10e-6,
        1e9,
        why="the worked example",
        slips={
            "the smaller of the two exposed times was taken": 2.853216e-3,
            "all of backward hides communication here: the first bucket is full only after 1/b of it": 4.425728e-3,
            "the latency is paid once here: each bucket has its own": 4.205728e-3,
            "nothing is hidden here": 6.025728e-3,
        },
    )
    step_takes(5.605728e-3, 0.8e-3, 1.6e-3, 2**21, 1, 4, 10e-6, 1e9, why="with one bucket all of it is exposed")
    step_takes(
        0.0124,
        0.004,
        0.008,
        10**6,
        4,
        2,
        0.0,
        0.625e9,
        why="only the last of four buckets, 0.4 ms, is exposed",
        slips={"nothing is hidden here": 0.0136},
    )
    step_takes(
        0.132,
        0.1,
        0.02,
        0,
        10,
        16,
        1e-4,
        1e9,
        why="ten all-reduces of 30 latencies each, 18 ms of them hidden",
        slips={"the latency is paid once here: each bucket has its own": 0.1203},
    )
    step_takes(0.3, 0.1, 0.2, 10**9, 4, 1, 1e-5, 1e9, why="one rank sends nothing")
    step_takes(3.00002e-3, 1e-3, 2e-3, 64, 1, 2, 0.0, 3.2e9, why="a short all-reduce takes time too")

    ### BEGIN HIDDEN TESTS
    def bucket_by_bucket(forward, backward, size, buckets, ranks, latency, bandwidth):
        free = 0.0
        for number in range(1, buckets + 1):
            ring = sum(latency + size / buckets / ranks / bandwidth for _ in range(2 * (ranks - 1)))
            free = max(free, forward + backward * number / buckets) + ring
        return max(free, forward + backward)

    for seed in range(12):
        rng = check.rng(seed)
        given = (
            *(float(x) for x in rng.uniform(1e-3, 0.1, 2)),
            int(rng.integers(10**5, 10**9)),
            int(rng.integers(1, 12)),
            int(rng.integers(1, 40)),
            float(rng.uniform(0, 1e-4)),
            float(10 ** rng.uniform(9, 11)),
        )
        step_takes(bucket_by_bucket(*given), *given)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "scaling_test_shares", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("scaling", "efficiency and hidden share", part="shares", hidden="other models and links"):

    def step_shares(efficiency, hidden, *arguments):
        step = scaling(*arguments)
        check.true(type(step).__name__ == "Step", f"scaling{arguments} returned {type(step).__name__}: expected a Step")
        said = "scaling({}, {}, {:,}, {}, {}, {}, {:g})".format(*arguments)
        upside_down = "that is upside down" if math.isclose(step.efficiency * efficiency, 1) and efficiency != 1 else ""
        check.close(step.efficiency, efficiency, rtol=1e-6, what=f"efficiency of {said}", hint=upside_down)
        exposed = math.isclose(step.hidden + hidden, 1) and hidden != 0.5 and arguments[4] > 1
        exposed = "that is the exposed share" if exposed else ""
        check.close(step.hidden, hidden, rtol=1e-6, atol=1e-9, what=f"hidden share of {said}", hint=exposed)

    step_shares(2.4 / 4.625728, 1.4 / 3.625728, 0.8e-3, 1.6e-3, 2**21, 8, 4, 10e-6, 1e9)
    step_shares(2.4 / 5.605728, 0.0, 0.8e-3, 1.6e-3, 2**21, 1, 4, 10e-6, 1e9)
    step_shares(12 / 12.4, 0.75, 0.004, 0.008, 10**6, 4, 2, 0.0, 0.625e9)
    step_shares(1.0, 1.0, 0.1, 0.2, 10**9, 4, 1, 1e-5, 1e9)
    step_shares(1.0, 1.0, 0.1, 0.2, 0, 4, 8, 0.0, 1e9)
    step_shares(0.75, 0.5, 4e-12, 8e-12, 8, 2, 2, 0.0, 1e12)
    step_shares(0.75, 0.0, 1.0, 2.0, 0, 1, 512, 1 / 1022, 1e9)
    ### BEGIN HIDDEN TESTS
    step_shares(9 / 14, 4 / 9, 1.0, 2.0, 10**9, 3, 4, 1 / 12, 1e9)
    step_shares(20 / 21, 0.8, 10.0, 10.0, 5 * 10**9, 5, 2, 0.0, 1e9)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "scaling",
    "`communication` is T. For the last bucket alone, divide it by the number of buckets.",
    "The two bullets give two lower bounds on the exposed time. In the worked example they are 0.4532 ms and 2.2257 ms: which of "
    "them counts?",
    "efficiency = C / seconds, and hidden = 1 − exposed / T, where T may be 0.",
)
weak = 2.4e-3 / (2.4e-3 + 2 * 63 * (LATENCY + 2**21 / 64 / BANDWIDTH))
show.against_prediction("weak", round(100 * weak, 1), unit="%", source="model")
audit(
    "ddp-3",
    0.95,
    "= 380 / (2 · 200), where the formula gives 1.05",
    "model",
    "corrected",
    how="one GPU with 200 samples/s and two with 380: the formula gives 400/380 = 1.05, more than perfect. Efficiency is the throughput of N divided by N times that of one. Upside down, the worse the scaling, the better the number",
)
MODELS = {"125 M parameters": 125e6, "1.3 B": 1.3e9, "7 B": 7e9}
SHADES = [palette.sky, palette.orange, palette.green]


def draw_efficiency(link, thousand_tokens_per_gpu, bucket_MiB):
    latency, bandwidth = {
        "NVLink 450 GB/s": (3.4e-6, 450e9),
        "InfiniBand 50 GB/s": (14e-6, 50e9),
        "Ethernet 1.25 GB/s": (50e-6, 1.25e9),
    }[link]
    plot, axes = figure(width=8.5, height=3.2)
    counts = [2**power for power in range(11)]
    for (name, parameters), shade in zip(MODELS.items(), SHADES, strict=True):
        seconds = 6 * parameters * 1000 * thousand_tokens_per_gpu / 400e12
        buckets, shares = math.ceil(2 * parameters / (bucket_MiB * 2**20)), []
        for ranks in counts:
            rings = 2 * (ranks - 1) * (buckets * latency + 2 * parameters / ranks / bandwidth)
            exposed = max(rings / buckets, rings - seconds * 2 / 3 * (buckets - 1) / buckets) if ranks > 1 else 0
            shares.append(100 * seconds / (seconds + exposed))
        axes.plot(counts, shares, color=shade, marker="o", ms=3, label=name)
    axes.set(xscale="log", xticks=counts, xticklabels=counts, ylim=(0, 105), xlabel="GPUs", ylabel="efficiency (%)")
    axes.minorticks_off()
    axes.set_title(f"{link}, {thousand_tokens_per_gpu}k tokens per GPU and step, buckets of {bucket_MiB} MiB")
    axes.legend()
    return plot


explore(
    draw_efficiency,
    link=["InfiniBand 50 GB/s", "NVLink 450 GB/s", "Ethernet 1.25 GB/s"],
    thousand_tokens_per_gpu=[8, 1, 2, 32],
    bucket_MiB=[25, 5, 100, 400],
)
print(
    "Model: 400 TFLOP/s per GPU, 16-bit gradients, one ring over all GPUs. The latencies of NVLink and InfiniBand are those "
    "that NCCL assumes (lab 08); the 50 µs of Ethernet are our assumption."
)
debrief(
    "scaling",
    """Compute grows with parameters times tokens, and gradient bytes grow with parameters alone. So where bandwidth is the
    limit, the size of the model cancels, and the number of tokens per GPU moves all three curves of the figure. With
    buckets of one size, a larger model has more of them, so it also pays the latency more often, and the curves stay
    together. If the latency of 2(N − 1) steps is the limit, larger buckets help, and large models can have them: try
    400 MiB. A small model then has one bucket left, and nothing of it is hidden. (NCCL changes from rings to trees, whose
    latency grows with log N.)

    The formula is exact for equal layers on the virtual cluster. On a real one, the buckets differ, kernels and
    communication compete for SMs and memory bandwidth, and the optimizer adds its own time.""",
    parts=("time", "shares"),
)

# %% [markdown]
# ## 7 · When to stop adding GPUs
#
# So far each rank kept its batch, and N ranks did N times the work (*weak scaling*). Often the total batch is fixed, and each
# rank gets 1/N of it (*strong scaling*). Compute shrinks with N, while the all-reduce does not, and soon there is little
# backward left to hide it. To keep it simple, leave the overlap out. Then a step takes
#
# time(N) = seconds/N + 2(N − 1)(α + S ÷ (N · β))
#
# and its efficiency is time(1) ÷ (N · time(N)). *Worked example.* 1 s for the batch, S = 100 MB, α = 1 ms, β = 1 GB/s: 4 ranks
# take 0.25 + 6 · (0.001 + 0.025) = 0.406 s, efficiency 62%. With 16 it is 0.28 s and 22%, and with 64 ranks 0.339 s: more GPUs have made it
# *slower*.
#
# ### Exercise 7 (10 points)
#
# `choose_machine(machines, gradient_bytes, least_efficiency) -> (name, ranks)` decides what to rent for the shortest step.
#
# - `machines` maps names to `Machine(seconds, ranks, latency, bandwidth)`; any number of GPUs from 1 to `ranks` can be rented.
# - Only choices count whose efficiency, relative to one GPU *of the same machine*, is at least `least_efficiency`. One GPU
#   always has 1.0.
# - `step_seconds(machine, ranks)` is given. It computes time(N).


# %% nbgrader={"grade": false, "grade_id": "choose_machine", "locked": false, "schema_version": 3, "solution": true, "task": false}
def choose_machine(machines: dict[str, Machine], gradient_bytes: int, least_efficiency: float) -> tuple[str, int]:
    """The machine and the number of its GPUs with the shortest step."""

    def step_seconds(machine, ranks):
        ring = 2 * (ranks - 1) * (machine.latency + gradient_bytes / (ranks * machine.bandwidth))
        return machine.seconds / ranks + ring

    ### BEGIN SOLUTION
    found = []
    for name, machine in machines.items():
        for ranks in range(1, machine.ranks + 1):
            seconds = step_seconds(machine, ranks)
            if ranks == 1 or machine.seconds / (ranks * seconds) >= least_efficiency:
                found.append((seconds, name, ranks))
    _, name, ranks = min(found)
    return name, ranks
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "choose_machine_test", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose_machine", "what to rent", hidden="other machines"):
    slow, fast = Machine(1.0, 64, 1e-3, 1e9), Machine(0.6, 8, 1e-4, 10e9)
    ethernet, nvlink = Machine(1.0, 512, 1e-6, 1e9), Machine(4.0, 16, 1e-6, 100e9)

    def rents(expected, machines, size, least, why):
        got = choose_machine(machines, size, least)
        got = tuple(got) if type(got) in (list, tuple) else got
        case = f"choose_machine({', '.join(machines)}; {size:,} bytes, at least {least:.0%})"
        check.equal(got, expected, what=f"{case}: {why}" if why else case)

    rents(("A", 20), {"A": slow}, 10**8, 0.0, "from 21 ranks on the latency of another rank costs more than it brings")
    rents(("A", 4), {"A": slow}, 10**8, 0.6, "with 5 ranks the efficiency is below 60%")
    rents(("B", 8), {"A": slow, "B": fast}, 10**8, 0.5, "the faster GPU with the faster link")
    rents(("B", 8), {"B": fast, "A": slow}, 10**8, 0.5, "the order of the machines does not matter")
    rents(
        ("B", 16), {"A": ethernet, "B": nvlink}, 10**9, 0.0, "four times slower GPUs, but a hundred times the bandwidth"
    )
    rents(
        ("B", 8), {"A": Machine(0.1, 1, 1e-6, 1e9), "B": fast}, 10**8, 0.5, "each machine has a one-GPU time of its own"
    )
    rents(("A", 1), {"A": Machine(1.0, 2, 1e-6, 1e9)}, 4 * 10**8, 0.9, "two GPUs are faster, but at 56%")
    rents(("A", 2), {"A": Machine(1.0, 2, 0.0, 1e9)}, 125_000_000, 0.8, "with two GPUs it is exactly 80%")
    rents(("A", 1), {"A": Machine(1.0, 2, 0.0, 1e9)}, 127_000_000, 0.8, "with two GPUs it is 79.7%")
    rents(("A", 2), {"A": Machine(4.2, 8, 1.0, 1e9)}, 0, 0.5, "two GPUs take 4.1 s, one takes 4.2 s")
    rents(("A", 1), {"A": ethernet, "B": Machine(1.5, 1, 1e-6, 1e9)}, 10**9, 0.9, "one GPU is always allowed")
    rents(("B", 1), {"A": slow, "B": Machine(0.1, 1, 1e-6, 1e9)}, 10**8, 0.5, "one GPU of B is faster than any of A")
    rents(("A", 1), {"A": Machine(1.0, 8, 1.0, 1e9)}, 10**8, 0.0, "with this latency, one GPU is faster than two")
    left = arguments_after(choose_machine, {"A": slow, "B": fast}, 10**8, 0.5)[0]
    check.equal(list(left), ["A", "B"], what="names in machines after the call", hint="leave the dict as it is")
    ### BEGIN HIDDEN TESTS
    import numpy as np

    for seed in range(10):
        rng = check.rng(seed)
        machines = {
            name: Machine(
                float(rng.uniform(0.2, 3)),
                int(rng.integers(1, 200)),
                float(10 ** rng.uniform(-6, -3)),
                float(10 ** rng.uniform(8, 11)),
            )
            for name in ("P", "Q", "R")
        }
        size, least, best = int(10 ** rng.uniform(6, 9)), float(rng.uniform(0, 0.95)), (math.inf, "", 0)
        for name, m in machines.items():
            n = np.arange(1, m.ranks + 1)
            seconds = m.seconds / n + 2 * (n - 1) * m.latency + 2 * size * (n - 1) / n / m.bandwidth
            seconds[m.seconds / n / seconds < least - 1e-12] = np.inf
            best = min(best, (float(seconds.min()), name, int(seconds.argmin()) + 1))
        rents(best[1:], machines, size, least, "")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "choose_machine",
    "Try every machine with every number of ranks from 1 to `machine.ranks`; there are few enough.",
    "Keep those that are efficient enough, and take the one with the least seconds, not the best efficiency.",
)
debrief(
    "choose_machine",
    """Without latency, time(N) = seconds/N + 2S/β · (N − 1)/N always approaches 2S/β: if one GPU takes longer than that,
    more ranks always help, but each helps less. The latency term 2(N − 1)α grows without bound, so there is a best N, about
    √((seconds − 2S/β) ÷ 2α). In the worked example, with 2S/β = 0.2 s, that is √(0.8/0.002) = 20.

    At 60% efficiency you pay for ten GPUs and get the work of six.""",
    parts=("",),
)

# %% [markdown]
# ## 8 · Your own DDP
#
# Your pieces train together. Four ranks begin with different weights, `start_together` makes them equal, `assign_buckets`
# makes four buckets, `overlap` averages the gradients, and SGD updates. They train for 3 steps on three links, beside
# torch's DDP. Your `scaling` says beforehand how long a step takes. Exercises that do not pass yet are replaced by the
# reference.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("ddp-2")
LINKS = {"1 GB/s": 1e9, "10 GB/s": 10e9, "100 GB/s": 100e9}


def own_ddp(parts, steps=3):
    """The seconds of each step, and the mean of the ranks' losses after them."""
    model = Net([256] * 9, seed=dist.get_rank())
    parts["start_together"](model)
    names, sizes = zip(*[(name, p.nbytes) for name, p in model.named_parameters()], strict=True)
    cut = parts["assign_buckets"](list(sizes), 2**19, 2**19)
    finish = parts["overlap"](model, [[names[index] for index in bucket] for bucket in cut])
    optimizer, seconds, x = torch.optim.SGD(model.parameters(), lr=0.1), [], batch_of(dist.get_rank(), 4, 256)
    for step in range(steps):
        advance_to(0.1 * (step + 1))
        optimizer.zero_grad()
        mean_square(model(x)).backward()
        finish()
        synchronize()
        seconds.append(now() - 0.1 * (step + 1))
        optimizer.step()
    with torch.no_grad():
        return seconds, float(mean_square(model(x)))


def of_one(steps=3):
    """The same on one process with all rows."""
    model, x = Net([256] * 9), torch.cat([batch_of(rank, 4, 256) for rank in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        mean_square(model(x)).backward()
        optimizer.step()
    with torch.no_grad():
        return float(mean_square(model(x)))


clusters = {name: Cluster(uniform(4, LATENCY, bandwidth)) for name, bandwidth in LINKS.items()}
by_torch = {name: max(cluster.run(one_step, torch_ddp, 0.5).results) for name, cluster in clusters.items()}
efficiencies = {name: 8 * (FORWARD + BACKWARD) / seconds for name, seconds in by_torch.items()}
with reveal("ddp-2"):
    if parts := together(*bucketing.REFERENCE, library=bucketing.REFERENCE):
        rows, steps = [], {}
        for name, bandwidth in LINKS.items():
            run = clusters[name].run(own_ddp, vars(parts))
            took, loss = max(seconds[-1] for seconds, _ in run.results), sum(loss for _, loss in run.results) / 4
            plan = parts.scaling(8 * FORWARD, 8 * BACKWARD, 2**21, 4, 4, LATENCY, bandwidth)
            steps[name] = took, float(plan.seconds)
            rows.append(
                (
                    name,
                    f"{1e3 * plan.seconds:.6f}",
                    f"{1e3 * took:.6f}",
                    f"{1e3 * by_torch[name]:.6f}",
                    f"{4 * 8 * (FORWARD + BACKWARD) / took:.2f}×",
                    f"{loss:.7f}",
                )
            )
        show.figure(
            bucketing.draw_exposed(steps, 8 * (FORWARD + BACKWARD), "by your scaling"),
            "steps of 4 ranks on three links",
        )
        show.table(
            rows,
            header=(
                "link",
                "by scaling, ms",
                "your DDP, ms",
                "torch's DDP, ms",
                "speed of 4 ranks",
                "loss after 3 steps",
            ),
            caption=f"4 buckets, 2 MiB of gradients, 2.4 ms of computation. One process with all rows: {of_one():.7f}",
        )
audit(
    "ddp-2",
    round(4 * efficiencies["1 GB/s"], 2),
    f"× on 1 GB/s, {4 * efficiencies['10 GB/s']:.2f}× on 10 GB/s, {4 * efficiencies['100 GB/s']:.2f}× on 100 GB/s",
    "model",
    "corrected",
    how="torch's DDP on the virtual cluster, with the same model on three links. 3.8× is 95% efficiency, and says nothing without the link, the model and the tokens per GPU",
)
term("scaling efficiency")
calibration()

# %% [markdown]
# ## In practice
#
# At work you start the script with `torchrun`, which sets `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`.
# The script calls `torch.cuda.set_device(LOCAL_RANK)` and `dist.init_process_group()`, and wraps the model in
# `DistributedDataParallel`. Its buckets and its overlap are what you have built. `find_unused_parameters=True` tolerates what
# your `finish` rejects (`static_graph=True` looks for such parameters in the first step only), and
# `gradient_as_bucket_view=True` saves the copies that yours makes. A `DistributedSampler` gives each rank its part of the data, and needs
# `set_epoch` for a new order in each epoch. Elsewhere overlap is a switch: `--overlap-grad-reduce` in Megatron-Core 0.19, and
# `overlap_comm` with `reduce_bucket_size` in DeepSpeed 0.19.
#
# ## What to remember
#
# - If all ranks start equal and apply the mean gradient, they train as one process with N times the batch.
# - A ring sends about twice the gradients per rank, whatever N is. The latency grows with N.
# - Overlap hides communication behind backward, except for the last bucket.
# - Inside `no_sync` nothing is sent: accumulate before you communicate.
# - Efficiency is throughput(N) ÷ (N · throughput(1)). While bandwidth is the limit, tokens per
#   GPU and step decide it, and not the size of the model.
#
# The deep dives (`09_data_parallel_dives.ipynb`) judge more claims: hidden shares, learning rates, clipping, seeds, and slow
# ranks.
#
# ## Reflection
#
# Your training runs on 8 GPUs at 95% efficiency, and on 64 at 60%. Which two or three measurements tell you why, and which
# change would you try first for each possible reason? A paragraph is enough.

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# I would measure the step time without communication (no_sync throughout), the time of one all-reduce of all gradients
# alone, and each rank's own compute time. If the all-reduce takes longer than backward, the link is the limit: more tokens per
# GPU, accumulation, or 16-bit gradients. If it is short and yet exposed, the buckets are wrong: try smaller ones, and look for a
# large first layer, whose gradient comes last. If compute times differ between ranks, there is a straggler, and no tuning of
# buckets helps.
