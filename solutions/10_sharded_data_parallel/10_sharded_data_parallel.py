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
#     title: Why does every GPU keep the same copy?
#     minutes: 195
#     withholds: [threeloops.training.sharded, threeloops.training.tensor_parallel, threeloops.training.composition, threeloops.lab.drawings]
#     edition: 2
# ---

# %% [markdown]
# # Why does every GPU keep the same copy?
#
# ![Four GPUs hold the same parameters, gradients and optimizer states, and only their batches differ](attachment:opening.png)
#
# With DDP four GPUs hold four copies of parameters, gradients and optimizer states. Only their batches differ. What
# does each GPU have to keep, what can it fetch when it needs it, and what does the fetching cost?
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import gc
import math
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F
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
from threeloops.training.cluster import Cluster, ClusterError, ask, charge, compute, now, uniform

FORWARD, BACKWARD = 0.1e-3, 0.2e-3  # seconds that each layer takes
LATENCY, BANDWIDTH = 10e-6, 1e9  # of the link from each rank to each other one: seconds, bytes/s
MIB = 2**20
# Values that a test cell may ask for by name.
OPTIMIZERS = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}
# The first optimizer of a process imports the compiler, 140 MiB of it; ranks inherit what is imported here.
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])


@dataclass(frozen=True)
class States:
    """Bytes of the model states on rank 0."""

    parameters: int
    gradients: int
    optimizer: int  # the states of Adam, and the master copy if there is one


class Net(torch.nn.Module):
    """Linear layers without biases, each of which charges its forward and its backward time to the rank's clock."""

    def __init__(self, widths, seed=0):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(a, b, bias=False) for a, b in pairwise(widths))
        for number, layer in enumerate(self.layers):
            layer.weight.data = weight_of(number, widths, seed)

    def forward(self, x):
        for layer in self.layers:
            x = charge(layer(x), FORWARD, BACKWARD)
        return x


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weight_of(layer, widths, seed=0):
    """Return the whole weight of a layer."""
    return random(widths[layer + 1], widths[layer], seed=100 * seed + layer) / math.sqrt(widths[layer])


def batch_of(rank, rows, width, seed=0):
    """The rows that a rank trains on."""
    return random(rows, width, seed=1000 * seed + 17 + rank)


def gradient_of(rank, step, length, seed=0):
    """A flat gradient of this rank."""
    return random(length, seed=10000 * seed + 100 * step + rank)


def mean_square(output):
    """The loss of this lab: a mean over the rows, as losses usually are."""
    return output.square().mean()


def pieces_for_ranks(ranks, widths, seed):
    """Return the function for `ask("piece", layer)` in the tests. A rank gets only its own piece of a weight."""
    return {"piece": lambda rank, layer: weight_of(layer, widths, seed).flatten().chunk(ranks)[rank]}


def batches_for_ranks(rows, width, seed):
    """Return the function for `ask("batch", step)` in the tests. A rank gets its own rows, and no other rank's."""
    return {"batch": lambda rank, step: batch_of(rank, rows, width, seed + min(9, step))}


# Shared by the test cells: programs that run on every rank.


def alive(whole, most, parameters=()):
    """How many storages of exactly `whole` bytes the tensors of this process share, those of `parameters` left out. If
    there are more than `most`, Python first collects unreachable objects."""
    gradients = [parameter.grad for parameter in parameters]  # held here, so that gc.get_objects() lists them
    left_out = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    for collect in (False, True):
        if collect:
            gc.collect()
        tensors = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
        sizes = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
        count = sum(size == whole and place not in left_out for place, size in sizes.items())
        del tensors
        if count <= most:
            break
    del gradients
    return count


def updated(zero_1, weights, optimizer, options, steps):
    """Take a view of the weights, and do some steps. Return the view, and the numbers of the steps that changed their
    gradient."""
    view, changed = weights.view(-1), []
    step = zero_1(weights, OPTIMIZERS[optimizer], **options)
    for number in range(steps):
        gradient = ask("gradient", number)
        before = gradient.clone()
        step(gradient)
        if not torch.equal(before, gradient):
            changed.append(number)
    return view, changed


class TwelveStates(torch.optim.Optimizer):
    """Keeps twelve numbers per element, more than real optimizers do, so that they are most of a rank's memory."""

    elements = 0  # in the largest such optimizer of this process

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})
        elements = sum(p.numel() for group in self.param_groups for p in group["params"])
        TwelveStates.elements = max(TwelveStates.elements, elements)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    if not state:
                        state["numbers"] = torch.ones(12, *parameter.shape)
                    parameter.sub_(parameter.grad, alpha=group["lr"])


def updated_large(zero_1, length):
    weights = torch.zeros(length)
    step = zero_1(weights, TwelveStates)
    for number in range(2):
        step(ask("gradient", number).float())
    return weights[ask("places")], TwelveStates.elements


def reduced(shard_gradients, widths, steps=1, seed=0):
    """The pieces of each step, and the names of parameters that still have a gradient."""
    model = Net(widths, seed)
    finish = shard_gradients(model)
    found, left = [], []
    for step in range(steps):
        mean_square(model(ask("batch", step))).backward()
        pieces = finish()  # the next step may write into the same tensors
        found.append({k: v.clone() for k, v in pieces.items()} if isinstance(pieces, dict) else pieces)
        left.append([name for name, p in model.named_parameters() if p.grad is not None])
        model.zero_grad()
    return found, left


def turned(layer, width):
    """The weight of a large layer: random numbers that are drawn once, in another order in each layer."""
    return random(width, width, seed=5).roll(layer, 0) / math.sqrt(width)


def reduced_large(shard_gradients, width, layers):
    new = torch.nn.utils.skip_init  # no random numbers
    model = torch.nn.Sequential(*[new(torch.nn.Linear, width, width, bias=False) for _ in range(layers)])
    for number, layer in enumerate(model):
        layer.weight.data = turned(number, width)
    finish, parameters, counts = shard_gradients(model), list(model.parameters()), []
    x = ask("batch", 0)
    for layer in model:
        x = layer(x)
        x.register_hook(lambda _: counts.append(alive(4 * width**2, 2, parameters)))  # before this layer's backward
    x.sum().backward()
    pieces, places = finish(), ask("places")
    counts.append(alive(4 * width**2, 0, parameters))
    return {name: piece[places] for name, piece in pieces.items()}, counts


def chained(sharded_linear, widths):
    """Layers one after the other: the output, the gradient of the input, and that of each piece."""
    pieces = [ask("piece", layer).requires_grad_() for layer in range(len(widths) - 1)]
    x = ask("batch", 0).requires_grad_()
    output = x
    for piece, width in zip(pieces, widths[1:], strict=True):
        output = torch.tanh(sharded_linear(output, piece, width))
    mean_square(output).backward()
    return output.detach(), x.grad, [piece.grad for piece in pieces]


def from_codes(codes, width):
    """A weight, or a piece of one, from the whole numbers of 8 bits that a rank is sent."""
    return codes.float() / (57 * math.sqrt(width))


def chained_large(sharded_linear, width, layers):
    pieces = [from_codes(ask("piece", layer), width).requires_grad_() for layer in range(layers)]
    first = x = ask("batch", 0).requires_grad_()
    counts = []
    for piece in pieces:
        x = sharded_linear(x, piece, width)
        counts.append(alive(4 * width**2, 0))
        x.register_hook(lambda _: counts.append(alive(4 * width**2, 0)))  # before this layer's backward
    x.sum().backward()
    counts.append(alive(4 * width**2, 0))
    places = ask("places")
    return [x.detach(), first.grad, *(each.grad[places] for each in pieces)], counts


def gathered(forward_prefetched, x, widths, seconds):
    """Return the output, the layers in the order in which they were used, the layers that were gathered into memory
    still read by the layer before, the lengths of the whole weights, and whether `pieces` is as it was."""
    pieces = [ask("piece", layer) for layer in range(len(seconds))]
    before = [piece.clone() for piece in pieces]
    used, places, lengths, held = [], [None], [], []

    def use(layer, whole, x):
        compute(seconds[layer], "layer")
        used.append(layer)
        lengths.append(whole.numel())
        places.append(whole.data_ptr())
        held[:] = [whole]  # so that its memory is not given to the next one, unless the answer does so itself
        return torch.tanh(whole.view(widths[layer + 1], widths[layer]) @ x)

    output = forward_prefetched(pieces, use, x)
    reused = [layer for layer, (a, b) in enumerate(pairwise(places)) if a == b]
    same = len(pieces) == len(before) and all(
        torch.is_tensor(a) and torch.equal(a, b) for a, b in zip(pieces, before, strict=True)
    )
    return output, used, reused, lengths, same


def gathered_large(forward_prefetched, x, layers):
    width = len(x)
    pieces = [from_codes(ask("piece", layer), width) for layer in range(layers)]
    counts = []

    def use(layer, whole, x):
        counts.append(alive(whole.numel() * whole.element_size(), 2))
        return whole.view(width, width) @ x

    return forward_prefetched(pieces, use, x), counts


def alike(got, expected):
    return torch.is_tensor(got) and got.shape == expected.shape and torch.allclose(got.double(), expected, 1e-4, 1e-6)


def require_close(got, expected, what, slips=None, otherwise=""):
    """`got` is `expected`, in float64; `slips` maps the words for each known mistake to its result."""
    check.true(got is not None, f"{what} is None")
    cause = next((why for why, slip in (slips or {}).items() if alike(got, slip)), otherwise)
    check.close(got, expected, rtol=1e-4, atol=1e-6, what=what, hint="" if alike(got, expected) else cause)


def require_memory(run, limit, expected, what, cause):
    """No rank took more than `limit` bytes; an answer that keeps to the rules takes about `expected`."""
    worst = max(run.memory)
    check.true(
        worst <= limit,
        f"{what}: a rank took {worst / MIB:.1f} MiB, expected at most {limit / MIB:.1f} MiB (about {expected / MIB:.0f} MiB "
        f"are needed): {cause}",
    )


def require_no_barrier(run):
    barriers = sum(span.what == "barrier" for span in run.collectives if span.rank == 0)
    check.equal(barriers, 0, what="barriers, in each of which all ranks send to each other and wait")


def sent_by_ranks(run):
    """Bytes that each rank has sent."""
    return [sum(row) for row in run.bytes]


# %% tags=["setup", "oracle"] nbgrader={"grade": false, "grade_id": "oracles", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
# In graded runs, your answers cannot call the functions of this cell: a rank only has the data that it gets or asks for.


def trained(ranks, length, optimizer, options, steps, seed, how="mean", forget=False):
    """In one process, in float64."""
    weights = torch.nn.Parameter(random(length, seed=seed).double())
    updater = OPTIMIZERS[optimizer]([weights], **options)
    for number in range(steps):
        gradients = [gradient_of(rank, number, length, seed).double() for rank in range(ranks)]
        weights.grad = sum(gradients) / (1 if how == "sum" else ranks)
        if forget:
            updater = OPTIMIZERS[optimizer]([weights], **options)
        updater.step()
    return weights.detach()


def of_one_process(widths, batches, seed):
    """The gradients of the mean over all batches, in float64."""
    model = Net(widths, seed).double()
    for batch in batches:
        (mean_square(model(batch.double())) / len(batches)).backward()
    return {name: p.grad.flatten() for name, p in model.named_parameters()}


def linear_alone(weights, batch, activation=lambda x: x, loss=torch.sum):
    """The output of linear layers, and the gradients of its loss with regard to the input and each weight. In one
    process, in float64."""
    x, weights = batch.double().requires_grad_(), [weight.double().requires_grad_() for weight in weights]
    output = x
    for weight in weights:
        output = activation(output @ weight.T)
    loss(output).backward()
    return output.detach(), x.grad, [weight.grad.flatten() for weight in weights]


def chain_alone(widths, batch, seed):
    """The same for the layers of `chained`."""
    weights = [weight_of(layer, widths, seed) for layer in range(len(widths) - 1)]
    return linear_alone(weights, batch, torch.tanh, mean_square)


def mean_over_ranks(alone):
    """The mean gradient of each weight, from what `linear_alone` returns for each rank."""
    return [sum(own) / len(alone) for own in zip(*(of_weights for _, _, of_weights in alone), strict=True)]


def codes(*shape, seed):
    """Whole numbers of 8 bits, for data of which a rank gets many MiB."""
    return torch.randint(-99, 100, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(seed))


class Places:
    """Tell ranks which elements of their results to show: different ones each time a rank asks, so that it cannot know
    them before. `last` has those of each rank."""

    def __init__(self, size, seed):
        self.size, self.generator, self.last = size, torch.Generator().manual_seed(seed), {}

    def __call__(self, rank):
        self.last[rank] = torch.randint(self.size, (64,), generator=self.generator)
        return self.last[rank]


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
plot, axes = figure(width=9.5, height=3.6)
for rank in range(4):
    x = 2.4 * rank
    for row, (name, colour) in enumerate(
        (("optimizer states", palette.orange), ("gradients", palette.sky), ("parameters", palette.green))
    ):
        axes.barh([row], [2.0], left=x, height=0.9, color=colour, alpha=0.75)
        axes.text(x + 1.0, row, name, ha="center", va="center")
    axes.barh([-1.35], [2.0], left=x, height=0.7, color=palette.grey, alpha=0.25 + 0.15 * rank)
    axes.text(x + 1.0, -1.35, f"batch {rank}", ha="center", va="center", weight="bold")
    axes.text(x + 1.0, 2.85, f"GPU {rank}", ha="center", va="center", weight="bold")
    if rank:
        for row in range(3):
            axes.text(x - 0.2, row, "=", ha="center", va="center", size=15, weight="bold", color=palette.vermillion)
        axes.text(x - 0.2, -1.35, "≠", ha="center", va="center", size=15, weight="bold", color=palette.blue)
axes.set(xlim=(-0.1, 9.4), ylim=(-1.9, 3.2))
axes.axis("off")
show.figure(plot, "Four GPUs hold the same parameters, gradients and optimizer states, and only their batches differ")

# %% [markdown]
# Programs run on the virtual cluster of lab 09: every rank is a process with real tensors and plain
# `torch.distributed` code, and time is computed. Unless a run says otherwise, a link has a latency α of 10 µs and a
# bandwidth β of 1 GB/s, a layer takes 0.1 ms forward and 0.2 ms backward, and all tensors are float32. New here: the
# operating system reports each rank's peak **memory**, in `run(…, memory=True).memory`.
#
# You build the three stages of **ZeRO** (zero redundancy optimizer), of which the last is also known as **FSDP** (fully
# sharded data parallelism). Each stage trains as DDP does, up to rounding, and cuts one more part of what is copied.
#
# ## 1 · What a GPU holds
#
# The **model states** are parameters, gradients and optimizer states. In *mixed* precision, parameters and gradients take
# 2 bytes per parameter each, and the optimizer 12: a float32 *master* copy of the parameters, and two float32 states of
# Adam (lab 05). In float32 there are 4 bytes for each parameter, 4 for its gradient and 8 for Adam.
#
# DDP keeps all of that on every rank. Each stage of ZeRO cuts one more part into N pieces, and rank r keeps piece r:
#
# | stage | cut |
# |---|---|
# | 0 (DDP) | nothing |
# | 1 | optimizer states, master copy included |
# | 2 | gradients as well |
# | 3 | parameters as well |
#
# A piece has ⌈P/N⌉ of P elements; if N does not divide P, the last pieces are shorter. *Worked example.* 10 parameters
# on 4 ranks: rank 0 has a piece of 3. Stage 1 in mixed precision keeps 2 · 10 = 20 bytes of parameters, 20 of gradients, and
# 12 · 3 = 36 bytes for the optimizer.
#
# ### Exercise 1 (16 points)
#
# `state_bytes(parameters, ranks, stage, mixed) -> States` returns the bytes on rank 0, between backward and step, as
# `States(parameters=…, gradients=…, optimizer=…)`.
#
# - Count ⌈P/N⌉ elements for each part that the stage cuts, and P for each that it does not. All bytes are integers.
# - `mixed` is True for mixed precision, and False for float32.
# - A `stage` other than 0 to 3, or `ranks` below 1, raises a `ValueError` with its name and value, as in `stage = 4`.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "floor",
    "Stage 1 in mixed precision on 64 ranks instead of 8: by what factor does a rank's memory for model states shrink?",
    unit="×",
)
myth("zero-1")
myth("zero-2")
myth("zero-6")
myth("zero-7")
myth("zero-5")


# %% nbgrader={"grade": false, "grade_id": "state_bytes", "locked": false, "schema_version": 3, "solution": true, "task": false}
def state_bytes(parameters: int, ranks: int, stage: int, mixed: bool) -> States:
    """Bytes of the model states on rank 0."""
    ### BEGIN SOLUTION
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage = {stage}: expected 0, 1, 2 or 3")
    if ranks < 1:
        raise ValueError(f"ranks = {ranks}: expected 1 or more")
    piece = -(-parameters // ranks)
    per_parameter, per_gradient, for_optimizer = (2, 2, 12) if mixed else (4, 4, 8)
    return States(
        per_parameter * (piece if stage >= 3 else parameters),
        per_gradient * (piece if stage >= 2 else parameters),
        for_optimizer * (piece if stage >= 1 else parameters),
    )
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "state_bytes_test_values", "locked": true, "points": 13, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("state_bytes", "bytes on rank 0", part="values", hidden="other models and numbers of ranks"):

    def holds(expected, parameters, ranks, stage, mixed):
        wanted, piece = States(*expected), -(-parameters // ranks)
        causes = {
            "parameters": {
                "parameters are cut in stage 3 only": 2 * piece,
                "parameters are cut in stage 3": 2 * parameters,
            },
            "gradients": {
                "gradients are whole before stage 2": 2 * piece,
                "gradients are cut from stage 2 on": 2 * parameters,
            },
            "optimizer": {
                "the float32 master copy is missing": 8 * parameters,
                "the master copy is cut as well": 4 * parameters + 8 * piece,
                "the last rank's piece is shorter: this is about rank 0": 12 * (parameters // ranks),
                "round the number of elements up first, and then multiply": -(-12 * parameters // ranks),
                "optimizer states are cut from stage 1 on": 12 * parameters,
            },
        }
        got = state_bytes(parameters, ranks, stage, mixed)
        hints = {}
        for field, slips in causes.items():
            seen = getattr(got, field, None)
            hints[field] = next((why for why, slip in slips.items() if mixed and seen == slip), "")
        check.equal(got, wanted, what=f"state_bytes({parameters:,}, {ranks}, {stage}, {mixed})", hint=hints)

    holds((20, 20, 120), 10, 4, 0, True)
    holds((20, 20, 36), 10, 4, 1, True)
    holds((20, 6, 36), 10, 4, 2, True)
    holds((6, 6, 36), 10, 4, 3, True)
    holds((40, 40, 80), 10, 4, 0, False)
    holds((40, 12, 24), 10, 4, 2, False)
    holds((4, 4, 8), 3, 8, 3, False)
    holds((14 * 10**9, 14 * 10**9, 84 * 10**9), 7 * 10**9, 1, 3, True)
    ### BEGIN HIDDEN TESTS
    for seed in range(16):
        rng = check.rng(seed)
        count, among = int(rng.integers(1, 10**9)), int(rng.integers(1, 200))
        cut, mixed = seed % 4, seed % 3 > 0
        sizes = [math.ceil(count / among) if stage <= cut else count for stage in (3, 2, 1)]
        rates = (2, 2, 12) if mixed else (4, 4, 8)
        holds([rate * size for rate, size in zip(rates, sizes, strict=True)], count, among, cut, mixed)
    holds((0, 0, 0), 0, 4, 2, True)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "state_bytes_test_edges", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("state_bytes", "stages and ranks that do not exist", part="edges", hidden="other values"):
    check.raises(ValueError, state_bytes, 10, 4, 4, True, names=("stage = 4",))
    check.raises(ValueError, state_bytes, 10, 4, -1, False, names=("stage = -1",))
    check.raises(ValueError, state_bytes, 10, 0, 1, True, names=("ranks = 0",))
    check.accepts(state_bytes, 10, 1, 3, True)
    ### BEGIN HIDDEN TESTS
    check.raises(ValueError, state_bytes, 7, 2, 5, False, names=("stage = 5",))
    check.raises(ValueError, state_bytes, 7, -3, 2, True, names=("ranks = -3",))
    check.accepts(state_bytes, 7, 2, 0, False)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "state_bytes",
    "`-(-parameters // ranks)` rounds up, and stays an integer.",
    "Each of the three numbers is bytes per parameter times either the piece or all parameters: which stage cuts it?",
)
from threeloops.lab.drawings.training import sharding
from threeloops.training.sharded import model_states

with reveal("floor"):
    explore(sharding.draw_states, billion_parameters=[7, 1.3, 13, 30, 70], ranks=[8, 2, 4, 16, 64, 512])


def per_parameter(ranks, stage):
    return model_states([ranks * 10**6], ranks, stage).total / (ranks * 10**6)


show.against_prediction(
    "floor", round(per_parameter(8, 1) / per_parameter(64, 1), 2), unit="×", source="model: 5.5 ÷ 4.1875 bytes"
)
audit(
    "zero-1",
    per_parameter(8, 1),
    f"bytes per parameter in stage 1 on 8 ranks, {per_parameter(8, 2):g} in stage 2 and {per_parameter(8, 3):g} in stage 3; the claim gives 5, 3.25 and 1.5",
    "model",
    "corrected",
    how="the claim counts two float32 states of Adam, 8 bytes, and leaves the float32 master copy out. With it the optimizer has 12 bytes: 4 + 12/N, 2 + 14/N and 16/N",
)
audit(
    "zero-2",
    round(16 / per_parameter(64, 1), 1),
    f"× less in stage 1 on 64 ranks, {16 / per_parameter(8, 1):.1f}× on 8",
    "model",
    "corrected",
    how="4 is the limit for many ranks: 16/(4 + 12/N)",
)
audit(
    "zero-6",
    round(16 / per_parameter(64, 2), 1),
    f"× less in stage 2 on 64 ranks, {16 / per_parameter(8, 2):.1f}× on 8",
    "model",
    "corrected",
    how="8 is the limit for many ranks: 16/(2 + 14/N)",
)
audit(
    "zero-7",
    round(16 / per_parameter(64, 3)),
    f"× less in stage 3 on 64 ranks, {16 / per_parameter(8, 3):.0f}× on 8",
    "model",
    "corrected",
    how="stage 3 has no limit of 8: it divides all model states by the number of ranks N",
)
audit(
    "zero-5",
    round(16 / (per_parameter(64, 3) + 2 * 2 * 2 / 80), 1),
    f"× on 64 ranks and {16 / (per_parameter(8, 3) + 2 * 2 * 2 / 80):.1f}× on 8, if the whole parameters and gradients of 2 out of 80 layers are there as well",
    "model",
    "corrected",
    how="the states are divided by N, so the factor is the number of ranks and not a property of ZeRO-3. Layers that are whole for a moment reduce it, and activations, which ZeRO does not cut, reduce it further",
)
debrief(
    "state_bytes",
    """With Adam in mixed precision the optimizer holds 12 of 16 bytes, so stage 1, which cuts only the optimizer, already saves
    three quarters of what stage 3 saves. The part that is not cut sets the floor: 4 bytes per parameter in stage 1, 2
    in stage 2, however many ranks there are. Only stage 3 has no floor. The model states are not everything:
    activations (lab 06) come on top, and each rank has those of its own batch.""",
    parts=("values", "edges"),
)

# %% [markdown]
# ## 2 · Cut the optimizer states (ZeRO-1)
#
# Adam treats each element by itself. So a rank needs states only for the elements that it updates, and only their mean
# gradient. Put all parameters into one flat tensor and cut it into N equal pieces. In each step, rank r
#
# 1. gets piece r of the mean gradient, by a **reduce-scatter**,
# 2. updates piece r of the parameters with its own optimizer,
# 3. gets the other pieces of the parameters, by an **all-gather**.
#
# `dist.reduce_scatter_tensor(piece, flat)` leaves piece r of the sum of all ranks' `flat` in `piece` on rank r, and
# `dist.all_gather_into_tensor(flat, piece)` joins the pieces on every rank. The next cell shows both. `flat` must be N
# times as long as `piece`, so a flat tensor of 10 elements is padded with two zeros on 4 ranks: `F.pad(flat, (0, 2))`.
#
# ### Exercise 2 (22 points)
#
# `zero_1(weights, optimizer_class, **options)` returns a function `step(gradient)`.
#
# - `weights` is a flat float32 tensor, equal on all ranks. The parameters of a model are views of it, so it is
#   overwritten in place. `gradient` is this rank's own flat gradient, and stays as it is.
# - After `step`, all ranks have the weights that one process would have after a step with the mean gradient, by
#   `optimizer_class([parameter], **options)`. Later steps continue with its states.
# - Any length is possible, and any N, 1 included. On each rank the optimizer has at most ⌈length/N⌉ elements.
# - A step is one reduce-scatter and one all-gather of the padded length, and sends nothing else. Before the first step nothing is sent.

# %% tags=["demo"]
predict("zero1", "How many times as many bytes as DDP's all-reduce does a rank send in steps 1 to 3 above?", unit="×")


def cut_and_join():
    flat = torch.arange(6.0) * (dist.get_rank() + 1)
    piece = torch.empty(2)
    dist.reduce_scatter_tensor(piece, flat)
    joined = torch.empty(6)
    dist.all_gather_into_tensor(joined, piece)
    return flat.tolist(), piece.tolist(), joined.tolist()


for rank, (flat, piece, joined) in enumerate(Cluster(3).run(cut_and_join).results):
    print(f"rank {rank}: {flat} → its piece of the sum {piece} → joined {joined}")


def take(mebibytes):
    torch.ones(mebibytes * 2**18)  # floats of 4 bytes


took = Cluster(2).run(take, 48, memory=True).memory
print("a tensor of 48 MiB takes", " and ".join(f"{size / MIB:.0f}" for size in took), "MiB on ranks 0 and 1")


# %% nbgrader={"grade": false, "grade_id": "zero_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def zero_1(weights: torch.Tensor, optimizer_class, **options):
    """Train flat weights with optimizer states for this rank's piece only; returns `step(gradient)`."""
    ### BEGIN SOLUTION
    rank, ranks = dist.get_rank(), dist.get_world_size()
    length = -(-len(weights) // ranks)
    padding = length * ranks - len(weights)
    piece = torch.nn.Parameter(F.pad(weights, (0, padding))[rank * length :][:length].clone())
    optimizer = optimizer_class([piece], **options)

    def step(gradient):
        piece.grad = torch.empty(length)
        dist.reduce_scatter_tensor(piece.grad, F.pad(gradient, (0, padding)))
        piece.grad /= ranks
        optimizer.step()
        joined = torch.empty(length * ranks)
        dist.all_gather_into_tensor(joined, piece.detach())
        weights.copy_(joined[: len(weights)])

    return step
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "zero_1_test_values", "locked": true, "points": 11, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("zero_1", "the weights after some steps", part="values", hidden="other lengths, optimizers and ranks"):

    def updates(ranks, length, optimizer, options, steps, seed):
        given = ranks, length, optimizer, options, steps, seed
        served = {"gradient": lambda rank, step: gradient_of(rank, min(99, step), length, seed)}
        weights = random(length, seed=seed)
        run = on_cluster(Cluster(ranks), updated, zero_1, weights, optimizer, options, steps, served=served)
        slips = {
            "the weights have not changed: they must be overwritten in place": random(length, seed=seed).double(),
            "this is the step of the summed gradient: divide by the number of ranks": trained(*given, how="sum"),
            "the optimizer's states were lost between the steps": trained(*given, forget=True),
        }
        for rank, (got, changed) in enumerate(run.results):
            what = f"weights on rank {rank} of {ranks} after {steps} step{'s' * (steps > 1)} of {optimizer}, length {length}"
            require_close(got, trained(*given), what, slips)
            what = f"steps that have changed `gradient` on rank {rank} of {ranks}, length {length}"
            check.equal(changed, [], what=what, hint="it belongs to the caller, so work on a copy")

    updates(2, 6, "SGD", {"lr": 0.5}, 1, seed=1)
    updates(3, 6, "SGD", {"lr": 0.1, "momentum": 0.9}, 3, seed=2)
    updates(4, 10, "Adam", {"lr": 0.1}, 2, seed=3)
    updates(4, 5, "SGD", {"lr": 0.1}, 2, seed=4)
    ### BEGIN HIDDEN TESTS
    updates(3, 2, "AdamW", {"lr": 0.05, "weight_decay": 0.1}, 3, seed=3732050807)
    updates(5, 33, "SGD", {"lr": 0.2, "momentum": 0.5}, 4, seed=3872983346)
    updates(1, 7, "Adam", {"lr": 0.1}, 2, seed=7)
    endless = {"gradient": lambda rank, step: torch.tensor([1.0, math.inf, -1.0]) if rank else torch.ones(3)}
    run = on_cluster(Cluster(2), updated, zero_1, torch.zeros(3), "SGD", {"lr": 0.5}, 1, served=endless)
    for rank, (got, _) in enumerate(run.results):
        what = f"weights on rank {rank} of 2 for the mean gradient [1, inf, 0] and a learning rate of 0.5"
        check.equal(got.tolist(), [-0.5, -math.inf, 0.0], what=what)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "zero_1_test_traffic", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("zero_1", "what is sent", part="traffic", hidden="another number of ranks"):

    def zero_sends(ranks, length, steps, seed=0):
        served = {"gradient": lambda rank, step: gradient_of(rank, min(99, step), length, seed)}
        weights = random(length, seed=seed)
        run = on_cluster(Cluster(ranks), updated, zero_1, weights, "SGD", {"lr": 0.1}, steps, served=served)
        change = trained(ranks, length, "SGD", {"lr": 0.1}, steps, seed) - weights
        for rank, (got, _) in enumerate(run.results):
            check.computed([got - weights], [change], f"rank {rank} of {ranks}, length {length},")
        require_no_barrier(run)
        expected = steps * 2 * (ranks - 1) * 4 * -(-length // ranks)
        for rank, sent in enumerate(sent_by_ranks(run)):
            cause = "an all-reduce of the gradients and an all-gather" if 2 * sent == 3 * expected else ""
            cause = "nothing was sent" if not sent else cause
            check.equal(
                sent,
                expected,
                what=f"bytes from rank {rank} of {ranks}, {steps} step{'s' * (steps > 1)} of length {length}",
                hint=cause,
            )

    zero_sends(4, 16, 1)
    zero_sends(2, 7, 3)
    ### BEGIN HIDDEN TESTS
    zero_sends(3, 100, 2, seed=2236067981)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "zero_1_test_memory", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("zero_1", "the memory of a rank", part="memory", hidden="another number of ranks"):

    def zero_takes(ranks, length, seed=0):
        gradients = [codes(2, length, seed=seed + rank) for rank in range(ranks)]
        places = Places(length, seed)
        served = {"gradient": lambda rank, step: gradients[rank][step], "places": places}
        run = on_cluster(Cluster(ranks), updated_large, zero_1, length, memory=True, served=served)
        change = -0.1 * sum(each.double().sum(0) for each in gradients) / ranks
        piece = -(-length // ranks)
        for rank, (got, elements) in enumerate(run.results):
            check.computed([got], [change[places.last[rank]]], f"rank {rank} of {ranks}, {length:,} weights,")
            check.true(
                elements <= piece,
                f"an optimizer on rank {rank} of {ranks} has {elements:,} elements, {length:,} weights: expected at most "
                f"{piece:,}, one piece",
            )
        whole = 4 * length
        needed = 4 * whole + 14 * whole / ranks
        require_memory(
            run,
            needed + 2.5 * whole,
            needed,
            f"{ranks} ranks, {whole / MIB:.0f} MiB of weights, an optimizer with twelve states per element",
            f"states for all elements take {12 * whole / MIB:.0f} MiB, states for a piece {12 * whole / ranks / MIB:.0f} MiB",
        )

    zero_takes(4, MIB)
    ### BEGIN HIDDEN TESTS
    zero_takes(3, 3 * MIB // 4, seed=2449489744)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "zero_1",
    "Make the piece of the parameters, `torch.nn.Parameter(….clone())`, and the optimizer once, outside `step`.",
    "In `step`: reduce-scatter the padded gradient into `piece.grad`, divide by N, `optimizer.step()`, all-gather "
    "`piece.detach()`, and copy all but the padding into `weights`.",
)
show.against_prediction("zero1", 1.0, unit="×", source="an all-reduce is a reduce-scatter and an all-gather (lab 08)")
with reveal("zero1"):
    three = {
        "DDP: all-reduce of gradients": ("reduce-scatter", "all-gather"),
        "ZeRO-1: update between the two": ("reduce-scatter", "all-gather"),
        "all-reduce, then gather weights": ("reduce-scatter", "all-gather", "all-gather"),
    }
    show.figure(
        sharding.draw_transfers(three), "what DDP sends, what ZeRO-1 sends, and what a less careful one would send"
    )
debrief(
    "zero_1",
    """A ring all-reduce is a reduce-scatter followed by an all-gather. ZeRO-1 does the same two, and puts the update in
    between: instead of the summed gradients it gathers the updated parameters. So it sends what DDP sends, and the
    update itself takes 1/N of the time. Megatron-LM offers it as `--use-distributed-optimizer`. (torch's
    `ZeroRedundancyOptimizer` runs after DDP's all-reduce and then broadcasts the parameters: 1.5 times as much.)

    It works for optimizers that treat each element by itself, such as SGD, Adam and AdamW. Others, such as Muon, need
    whole matrices, and clipping needs the norm of the whole gradient: sum the squares of the pieces over the ranks first.""",
    parts=("values", "traffic", "memory"),
)

# %% [markdown]
# ## 3 · Cut the gradients (ZeRO-2)
#
# In stage 1 all gradients are whole at the end of backward, but a rank only needs its pieces of them. So reduce-scatter each
# gradient as soon as it exists, while backward goes on, and free it. As in lab 09,
# `parameter.register_post_accumulate_grad_hook(f)` calls `f(parameter)` when its gradient is in `parameter.grad`. The hook may
# set that to None.
#
# `work = dist.reduce_scatter_tensor(piece, flat, async_op=True)` returns at once. Until `work.wait()` has returned, `flat`
# is still read, so its memory stays. If the link is slower than backward, such gradients pile up until all of them are there
# at once. Therefore at most **two** reduce-scatters may be under way at one time.
#
# *Worked example.* Four layers of 256 KiB on 4 ranks. One reduce-scatter takes (N − 1)(α + 64 KiB ÷ β) = 3 · 75.5 µs = 0.227 ms,
# and a layer's backward 0.2 ms. The pieces take 256 KiB. Two gradients under way and the one that backward has just made take 768
# KiB, so with four layers nothing is saved. With a hundred layers the whole gradients take 25 MiB, the pieces 6.25 MiB, and those
# three still 768 KiB.
#
# ### Exercise 3 (22 points)
#
# `shard_gradients(model)` registers hooks, and returns a function `finish()`. In each step the test calls `backward()` and
# then `finish()`.
#
# - `finish()` returns a dict: for each parameter's name this rank's piece of the mean gradient, flat. Rank r has part r of N
#   equal ones. (N divides all sizes here.) All reductions are over, and every `parameter.grad` is None.
# - A reduce-scatter starts as soon as the gradient exists, and runs beside backward. There is one per parameter, and nothing
#   else is sent.
# - If two are under way when a gradient arrives, backward waits until the older one is over. A gradient is freed when its
#   reduce-scatter is over.
# - The next step works the same way.


# %% tags=["demo"]
def reduce_and_compute(wait_first):
    piece, flat = torch.empty(16384), torch.ones(65536)
    work = dist.reduce_scatter_tensor(piece, flat, async_op=True)
    if wait_first:
        work.wait()
    compute(BACKWARD)
    work.wait()
    return f"{1e3 * now():.3f} ms"


for wait_first in (True, False):
    took = Cluster(4).run(reduce_and_compute, wait_first).results[0]
    print(f"a reduce-scatter of 256 KiB and 0.2 ms of computation, {wait_first = }: {took}")
model = Net([4, 4, 4])
for name, parameter in model.named_parameters():
    parameter.register_post_accumulate_grad_hook(lambda p, name=name: print("gradient of", name, tuple(p.grad.shape)))
mean_square(model(batch_of(0, 2, 4))).backward()


# %% nbgrader={"grade": false, "grade_id": "shard_gradients", "locked": false, "schema_version": 3, "solution": true, "task": false}
def shard_gradients(model: torch.nn.Module):
    """Reduce-scatter each gradient while backward runs, and free it; returns `finish`."""
    ### BEGIN SOLUTION
    ranks = dist.get_world_size()
    pieces, under_way = {}, []

    def gradient_ready(name, parameter):
        if len(under_way) == 2:
            under_way.pop(0)[0].wait()
        flat = parameter.grad.flatten() / ranks
        parameter.grad = None
        pieces[name] = torch.empty(flat.numel() // ranks)
        under_way.append((dist.reduce_scatter_tensor(pieces[name], flat, async_op=True), flat))

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: gradient_ready(name, p))

    def finish():
        while under_way:
            under_way.pop(0)[0].wait()
        found = dict(pieces)
        pieces.clear()
        return found

    return finish
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "shard_gradients_test_values", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("shard_gradients", "pieces of the mean gradient", part="values", hidden="other models and ranks"):

    def reduces(ranks, widths, steps, seed, data=0):
        served = batches_for_ranks(2, widths[0], data)
        run = on_cluster(Cluster(ranks), reduced, shard_gradients, widths, steps, seed, served=served)
        for step in range(steps):
            batches = [batch_of(rank, 2, widths[0], data + step) for rank in range(ranks)]
            wholes = of_one_process(widths, batches, seed)
            for rank, (found, left) in enumerate(run.results):
                where = f"on rank {rank} of {ranks}, step {step + 1}"
                own = of_one_process(widths, [batches[rank]], seed)
                kind = type(found[step]).__name__
                check.true(kind == "dict", f"finish() returned {kind} {where}: expected a dict from names to pieces")
                check.equal(sorted(found[step]), sorted(wholes), what=f"names that finish() returned {where}")
                for name, whole in wholes.items():
                    pieces = whole.chunk(ranks)
                    slips = {
                        "this is the sum over the ranks, not the mean": ranks * pieces[rank],
                        "this is the rank's own gradient: nothing was reduced": own[name].chunk(ranks)[rank],
                        "this is the whole gradient, not the piece": whole,
                    }
                    require_close(found[step][name], pieces[rank], f"piece of {name} {where}", slips)
                check.equal(left[step], [], what=f"parameters that have a gradient after finish() {where}")

    reduces(2, [4, 6, 2], 1, seed=1)
    reduces(3, [3, 6, 6, 3], 2, seed=2)
    ### BEGIN HIDDEN TESTS
    reduces(4, [4, 8, 4, 4, 8], 3, seed=3, data=3915312349)
    reduces(1, [3, 2], 1, seed=4)
    reduces(2, [4, 4, 4], 1, seed=5, data=4123105625)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "shard_gradients_test_overlap", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("shard_gradients", "time and bytes of a step", part="overlap", hidden="other links and numbers of ranks"):

    def reduction_takes(ranks, width, layers, latency=LATENCY, bandwidth=BANDWIDTH, data=0):
        each = (ranks - 1) * (latency + 4 * width**2 / (ranks * bandwidth))

        def timeline(limit):
            """When each layer's backward starts, and when all is over, with so many reduce-scatters under way."""
            at, starts, ends = layers * FORWARD, [], []
            for number in range(layers):
                starts.append(at)
                at += BACKWARD
                if number >= limit > 0:
                    at = max(at, ends[number - limit])
                ends.append(max(at, ends[-1] if ends else 0.0) + each)
                at = at if limit else ends[-1]
            return starts, max(at, ends[-1])

        cluster, widths = Cluster(uniform(ranks, latency, bandwidth)), [width] * (layers + 1)
        served = batches_for_ranks(2, width, data)
        run = on_cluster(cluster, reduced, shard_gradients, widths, served=served)
        case = f"{ranks} ranks, {layers} layers of {4 * width**2:,} bytes, {bandwidth / 1e9:g} GB/s"
        wholes = of_one_process(widths, [batch_of(rank, 2, width, data) for rank in range(ranks)], 0)
        for rank, ((found, *_), _) in enumerate(run.results):
            pieces = {name: whole.chunk(ranks)[rank] for name, whole in wholes.items()}
            check.computed(found, pieces, f"rank {rank} ({case})")
        for rank, sent in enumerate(sent_by_ranks(run)):
            once = layers * (ranks - 1) * 4 * width**2 // ranks
            cause = "this is an all-reduce of each gradient" if sent == 2 * once else ""
            check.equal(sent, once, what=f"bytes from rank {rank}: {case}", hint=cause)
        charged = sum(span.end - span.start for span in run.spans if span.what in ("forward", "backward"))
        wanted = ranks * layers * (FORWARD + BACKWARD)
        check.close(charged, wanted, rtol=1e-9, unit="s", what="computation that all ranks charged")
        causes = {
            "backward waits for each reduce-scatter": timeline(0)[0],
            "it waits although only one other reduce-scatter is under way": timeline(1)[0],
            "three reduce-scatters or more are under way: wait for the oldest before you start a third": timeline(
                layers
            )[0],
        }
        starts, end = timeline(2)
        for rank in range(ranks):
            seen = [span.start for span in run.spans if span.rank == rank and span.what == "backward"]
            cause = next(
                (why for why, slip in causes.items() if alike(torch.tensor(seen), torch.tensor(slip).double())), ""
            )
            what = f"start times of the layers' backward passes on rank {rank}: {case}"
            check.close(seen, starts, rtol=1e-9, unit="s", what=what, hint=cause)
        late = min(span.start for span in run.collectives) >= layers * (FORWARD + BACKWARD) - 1e-12 and layers > 1
        cause = "nothing was hidden: the first reduce-scatter starts when backward is over" if late else ""
        check.close(run.seconds, end, rtol=1e-9, unit="s", what=f"the step: {case}", hint=cause)

    reduction_takes(4, 256, 4)
    reduction_takes(2, 64, 3)
    reduction_takes(4, 256, 6, bandwidth=0.25e9)
    ### BEGIN HIDDEN TESTS
    reduction_takes(3, 48, 5, latency=200e-6, data=2645751313)
    reduction_takes(2, 128, 7, bandwidth=0.1e9, data=2828427127)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "shard_gradients_test_memory", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("shard_gradients", "the memory of a rank", part="memory", hidden="another number of ranks"):

    def reduction_needs(ranks, width, layers, data=0):
        places = Places(width**2 // ranks, data)
        served = batches_for_ranks(1, width, data) | {"places": places}
        run = on_cluster(Cluster(ranks), reduced_large, shard_gradients, width, layers, memory=True, served=served)
        weights = [turned(layer, width) for layer in range(layers)]
        means = mean_over_ranks([linear_alone(weights, batch_of(rank, 1, width, data)) for rank in range(ranks)])
        for rank, (got, counts) in enumerate(run.results):
            pieces = {f"{k}.weight": mean.chunk(ranks)[rank][places.last[rank]] for k, mean in enumerate(means)}
            check.computed(got, pieces, f"rank {rank} of {ranks}, {layers} layers of {width} × {width},")
            most = max(counts[:-1])
            when = f"when the backward of a layer begins on rank {rank}, and two reduce-scatters may be under way"
            freed = (
                ""
                if most < layers - 1
                else ": if no gradient is freed during backward, all of them are alive at the end"
            )
            check.true(most <= 2, f"{most} whole gradients are alive {when}{freed}")
            check.equal(counts[-1], 0, what=f"whole gradients that are alive after finish() on rank {rank}")
        each = 4 * width**2
        needed = each * (layers + layers / ranks + 3)
        require_memory(
            run,
            needed + 1.4 * each,
            needed,
            f"{ranks} ranks, {layers} layers of {each / MIB:.0f} MiB: parameters, pieces and gradients under way",
            f"if no gradient is freed during backward, that is {layers * each / MIB:.0f} MiB more",
        )

    reduction_needs(4, 1536, 8)
    ### BEGIN HIDDEN TESTS
    reduction_needs(3, 1536, 9, data=3162277663)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "shard_gradients",
    "Keep two things between hooks: a dict of pieces, and a list of (work, flat) pairs under way, the oldest first.",
    "In the hook: if two are under way, `under_way.pop(0)[0].wait()`. Then flatten, divide, set `parameter.grad = None`, and "
    "start the reduce-scatter.",
    "`finish` waits for what is left, hands out the pieces, and clears both.",
)
debrief(
    "shard_gradients",
    """The reduce-scatter runs beside backward as DDP's buckets do, and sends half of what an all-reduce sends. The other
    half is the all-gather of the updated parameters after the step. What is new is that a whole gradient lives only
    from the moment when backward makes it to the end of its reduce-scatter. The limit of two turns a slow link into a
    slower backward instead of an out-of-memory error. Frameworks have such settings too: `reduce_bucket_size`, and
    limits on the number of layers in flight.

    The price: with several microbatches (parts of a batch, each with its own backward), whole gradients can no longer add
    up locally, so each microbatch is reduced on its own.""",
    parts=("values", "overlap", "memory"),
)
predict(
    "zero3",
    "ZeRO-3 keeps only a piece of each weight. It gathers the whole weight for forward, and again for backward. How many times "
    "the bytes of DDP does a rank send per step?",
    unit="×",
)
myth("zero-4")

# %% [markdown]
# ## 4 · Cut the parameters (ZeRO-3)
#
# Now a rank keeps only its piece of each weight. To compute with a layer, it gathers the whole weight, uses it, and frees it.
# Backward needs the weight again, for the gradient of the layer's input, so it gathers it once more.
#
# In PyTorch, such a layer is a `torch.autograd.Function`: you write forward and backward, and decide what is saved in
# between. The next cell has a linear layer without sharding, which also multiplies by a number. For an incoming gradient
# `g`, the gradient of `x` is `g @ weight`, and that of the weight is `g.T @ x`.
#
# ### Exercise 4 (24 points)
#
# `sharded_linear(x, piece, out_features)` returns `x @ weight.T`.
#
# - `piece` is this rank's part of the flattened weight, which has the shape (`out_features`, `x.shape[1]`). Rank r has part r
#   of N equal ones.
# - Backward gives `x` its gradient, and `piece` this rank's piece of the *mean* weight gradient over the ranks.
# - The whole weight, and its whole gradient, exist only while this layer's forward or backward runs.
# - A forward and a backward send two all-gathers and one reduce-scatter of the weight, and nothing else.


# %% tags=["demo"]
class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, scale):
        ctx.save_for_backward(x, weight)  # tensors
        ctx.scale = scale  # anything else
        return scale * (x @ weight.T)

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        g = ctx.scale * g
        return g @ weight, g.T @ x, None  # one for each argument of forward


x, weight = torch.tensor([[1.0, 2.0]], requires_grad=True), torch.tensor([[3.0, 4.0], [5.0, 6.0]], requires_grad=True)
Linear.apply(x, weight, 1.0).sum().backward()
print("gradient of x:", x.grad.tolist(), "and of the weight:", weight.grad.tolist())


# %% nbgrader={"grade": false, "grade_id": "sharded_linear", "locked": false, "schema_version": 3, "solution": true, "task": false}
def sharded_linear(x: torch.Tensor, piece: torch.Tensor, out_features: int) -> torch.Tensor:
    """`x @ weight.T`, where each rank holds a piece of the weight, and all of it only while it is used."""
    ### BEGIN SOLUTION
    return ShardedLinear.apply(x, piece, out_features)


class ShardedLinear(torch.autograd.Function):
    @staticmethod
    def gather(piece, out_features):
        whole = torch.empty(piece.numel() * dist.get_world_size())
        dist.all_gather_into_tensor(whole, piece)
        return whole.view(out_features, -1)

    @staticmethod
    def forward(ctx, x, piece, out_features):
        ctx.save_for_backward(x, piece)
        ctx.out_features = out_features
        return x @ ShardedLinear.gather(piece, out_features).T

    @staticmethod
    def backward(ctx, g):
        x, piece = ctx.saved_tensors
        gradient_of_x = g @ ShardedLinear.gather(piece, ctx.out_features)
        gradient = torch.empty_like(piece)
        dist.reduce_scatter_tensor(gradient, (g.T @ x).flatten() / dist.get_world_size())
        return gradient_of_x, gradient, None

    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "sharded_linear_test_values", "locked": true, "points": 11, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("sharded_linear", "outputs and gradients", part="values", hidden="other layers and numbers of ranks"):

    def chains(ranks, widths, rows, seed):
        served = pieces_for_ranks(ranks, widths, seed) | batches_for_ranks(rows, widths[0], seed)
        run = on_cluster(Cluster(ranks), chained, sharded_linear, widths, served=served)
        alone = [chain_alone(widths, batch_of(rank, rows, widths[0], seed), seed) for rank in range(ranks)]
        for rank, (output, of_x, of_pieces) in enumerate(run.results):
            where = f"on rank {rank} of {ranks}, widths {widths}"
            require_close(output, alone[rank][0], f"output {where}")
            means = mean_over_ranks(alone)
            slips = {
                "this is divided by the number of ranks: the input is this rank's alone": alone[rank][1] / ranks,
            }
            require_close(of_x, alone[rank][1], f"gradient of the input {where}", slips)
            for layer, (got, mean) in enumerate(zip(of_pieces, means, strict=True)):
                pieces = mean.chunk(ranks)
                slips = {
                    "this is the sum over the ranks, not the mean": ranks * pieces[rank],
                    "this is the gradient of the rank's own batch: nothing was reduced": alone[rank][2][layer].chunk(
                        ranks
                    )[rank],
                    "this is a piece of the transposed gradient: the weight has the shape (outputs, inputs)": mean.view(
                        widths[layer + 1], widths[layer]
                    )
                    .T.flatten()
                    .chunk(ranks)[rank],
                }
                require_close(got, pieces[rank], f"gradient of the piece of layer {layer} {where}", slips)

    chains(2, [4, 2], 3, seed=1)
    chains(3, [3, 6, 4], 2, seed=2)
    ### BEGIN HIDDEN TESTS
    chains(4, [8, 4, 4, 2], 1, seed=4242640687)
    chains(1, [3, 5], 2, seed=4)
    chains(2, [4, 6, 2], 2, seed=4080083823)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "sharded_linear_test_traffic", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("sharded_linear", "what is sent", part="traffic", hidden="other layers and numbers of ranks"):

    def chain_sends(ranks, widths, seed=0):
        served = pieces_for_ranks(ranks, widths, seed) | batches_for_ranks(1, widths[0], seed)
        run = on_cluster(Cluster(ranks), chained, sharded_linear, widths, served=served)
        alone = [chain_alone(widths, batch_of(rank, 1, widths[0], seed), seed) for rank in range(ranks)]
        means = mean_over_ranks(alone)
        for rank, (output, of_x, of_pieces) in enumerate(run.results):
            given = [output, of_x, *of_pieces]
            expected = [*alone[rank][:2], *(mean.chunk(ranks)[rank] for mean in means)]
            for got, right in zip(given, expected, strict=True):
                check.computed([got], [right], f"rank {rank} of {ranks}, layers of widths {widths},")
        require_no_barrier(run)
        once = (ranks - 1) * 4 * sum(a * b for a, b in pairwise(widths)) // ranks
        causes = {
            0: "nothing was sent",
            2 * once: "one all-gather or the reduce-scatter is missing",
            4 * once: "an all-reduce where a reduce-scatter is enough, or one all-gather too many",
        }
        for rank, sent in enumerate(sent_by_ranks(run)):
            what = f"bytes that rank {rank} of {ranks} sends for layers of widths {widths}"
            check.equal(sent, 3 * once, what=what, hint=causes.get(sent, ""))

    chain_sends(2, [4, 2])
    chain_sends(4, [8, 8, 4])
    ### BEGIN HIDDEN TESTS
    chain_sends(3, [6, 6, 3, 3], seed=3316624791)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "sharded_linear_test_memory", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("sharded_linear", "the memory of a rank", part="memory", hidden="another number of ranks"):

    def chain_needs(ranks, width, layers, seed=0):
        wholes, places = codes(layers, width**2, seed=seed), Places(width**2 // ranks, seed)
        served = {"piece": lambda rank, layer: wholes[layer].chunk(ranks)[rank], "places": places}
        served |= batches_for_ranks(1, width, seed)
        run = on_cluster(Cluster(ranks), chained_large, sharded_linear, width, layers, memory=True, served=served)
        weights = [from_codes(whole, width).view(width, width) for whole in wholes]
        alone = [linear_alone(weights, batch_of(rank, 1, width, seed)) for rank in range(ranks)]
        means = mean_over_ranks(alone)
        for rank, (given, counts) in enumerate(run.results):
            expected = [*alone[rank][:2], *(mean.chunk(ranks)[rank][places.last[rank]] for mean in means)]
            for got, right in zip(given, expected, strict=True):
                check.computed([got], [right], f"rank {rank} of {ranks}, {layers} layers of {width} × {width},")
            check.true(
                not max(counts),
                f"{max(counts)} whole weights or gradients are alive between two layers on rank {rank}: expected none",
            )
        each = 4 * width**2
        needed = each * (2 * layers / ranks + 2)
        require_memory(
            run,
            needed + 1.4 * each,
            needed,
            f"{ranks} ranks, {layers} layers of {each / MIB:.0f} MiB: pieces, their gradients and the layer in use",
            f"if whole weights stay from forward to backward, that is {layers * each / MIB:.0f} MiB more",
        )

    chain_needs(2, 1536, 6)
    ### BEGIN HIDDEN TESTS
    chain_needs(3, 1536, 6, seed=3464101616)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "sharded_linear",
    "Begin with the class `Linear` of the cell above: forward takes `piece` and gathers the weight, and saves `piece` instead.",
    "In backward, gather again, compute both gradients, flatten that of the weight, and reduce-scatter it ÷ N.",
    "Return one value for each argument of forward: `None` for `out_features`.",
)
show.against_prediction("zero3", 1.5, unit="×", source="two all-gathers and a reduce-scatter, against one of each")
with reveal("zero3"):
    both = {
        "DDP: all-reduce of gradients": ("reduce-scatter", "all-gather"),
        "ZeRO-3: forward, backward, gradient": ("all-gather", "all-gather", "reduce-scatter"),
    }
    show.figure(sharding.draw_transfers(both), "what DDP sends and what ZeRO-3 sends")
from threeloops.training.sharded import bytes_sent

audit(
    "zero-4",
    bytes_sent([2**20], 8, 3)[0] / bytes_sent([2**20], 8, 0)[0],
    f"times the bytes of DDP in stage 3; stage 1 sends {bytes_sent([2**20], 8, 1)[0] / bytes_sent([2**20], 8, 0)[0]:g} times as much, and stage 2 {bytes_sent([2**20], 8, 2)[0] / bytes_sent([2**20], 8, 0)[0]:g} times",
    "model",
    "corrected",
    how="bytes per rank and step with one backward. Stages 1 and 2 send what DDP sends, in another order: reduce-scatter, update, all-gather. Only stage 3 gathers a second time",
)
debrief(
    "sharded_linear",
    """The layer saves its piece instead of its weight, and pays with a second all-gather: three transfers of the
    weight where DDP has two. Apart from the pieces, its memory does not depend on the number of layers.

    FSDP does the same for whole blocks, so that the latency is paid once for many parameters, and with hooks
    instead of a `Function` per operation, so that the model's code stays as it is. It can also keep the weights from forward
    to backward (`reshard_after_forward=False`): then it sends what ZeRO-2 sends, and needs the memory of ZeRO-2.""",
    parts=("values", "traffic", "memory"),
)

# %% [markdown]
# ## 5 · Gather ahead
#
# In section 4 a layer waits for its all-gather, and meanwhile the GPU idles. But the order of the layers is known. So
# the all-gather of the next layer can run while this one computes: it is **prefetched**. With equal layers, one layer
# ahead keeps the link or the GPU busy, and it costs the memory of one more whole weight.
#
# *Worked example.* Two layers take 0.3 ms each, and an all-gather 0.2 ms. Without prefetch: 0.2 + 0.3 + 0.2 + 0.3 =
# 1.0 ms. With it, layer 1 is gathered from 0.2 to 0.4 ms, while layer 0 computes from 0.2 to 0.5 ms, and layer 1
# computes from 0.5 to 0.8 ms.
#
# ### Exercise 5 (16 points)
#
# `forward_prefetched(pieces, use, x)` runs a model forward and returns its output.
#
# - `pieces` holds this rank's flat piece of each layer, in order, and stays as it is. `use(k, whole, x)` computes layer k
#   from its whole flat weight, charges its computation time, and returns the input of layer k + 1.
# - Layer k + 1 is gathered while layer k computes, with `async_op=True` as in the next cell.
# - At most two whole weights exist, those under way included. So the all-gather of layer k + 2 starts only when layer k
#   has computed, and its weight is freed.
# - A weight must not be gathered into memory that the layer before it still reads.

# %% tags=["demo"]
predict(
    "ahead",
    "8 layers of 256 KiB, 0.3 ms of computation each, 4 ranks, α = 10 µs, β = 1 GB/s. With prefetch: ms for the forward pass?",
    unit="ms",
)


def one_after_the_other(layers):
    for _ in range(layers):
        whole = torch.empty(65536)
        work = dist.all_gather_into_tensor(whole, torch.ones(16384), async_op=True)
        work.wait()
        compute(0.3e-3)
    return now()


print(f"without prefetch: {1e3 * max(Cluster(4).run(one_after_the_other, 8).results):.3f} ms")


# %% nbgrader={"grade": false, "grade_id": "forward_prefetched", "locked": false, "schema_version": 3, "solution": true, "task": false}
def forward_prefetched(pieces: list[torch.Tensor], use, x: torch.Tensor) -> torch.Tensor:
    """Run the layers one after the other, and gather each while the one before it computes."""
    ### BEGIN SOLUTION

    def gather(layer):
        whole = torch.empty(pieces[layer].numel() * dist.get_world_size())
        return whole, dist.all_gather_into_tensor(whole, pieces[layer], async_op=True)

    following = gather(0)
    for layer in range(len(pieces)):
        whole, work = following
        following = gather(layer + 1) if layer + 1 < len(pieces) else None
        work.wait()
        x = use(layer, whole, x)
        del whole, work
    return x
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "forward_prefetched_test_values", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("forward_prefetched", "the output", part="values", hidden="other layers and numbers of ranks"):

    def forwards(ranks, widths, seed):
        x, seconds = random(widths[0], seed=seed + 7), [1e-3] * (len(widths) - 1)
        served = pieces_for_ranks(ranks, widths, seed)
        run = on_cluster(Cluster(ranks), gathered, forward_prefetched, x, widths, seconds, served=served)
        sizes = [a * b for a, b in pairwise(widths)]
        expected = chain_alone(widths, x[None], seed)[0][0]
        for rank, (output, used, reused, lengths, same) in enumerate(run.results):
            where = f"on rank {rank} of {ranks}"
            check.equal(used, list(range(len(widths) - 1)), what=f"layers in the order in which they were used {where}")
            check.equal(lengths, sizes, what=f"elements of the whole weights {where}")
            require_close(output, expected, f"output {where}, widths {widths}")
            late = "the all-gather of a layer would overwrite a weight that the layer before may still read"
            check.equal(reused, [], what=f"layers gathered into the memory of the layer before {where}", hint=late)
            check.true(same, f"the list `pieces`, or a piece in it, was changed {where}: leave both as they are")

    forwards(2, [4, 6, 2, 2], seed=1)
    forwards(3, [3, 3, 3], seed=2)
    forwards(2, [4, 4], seed=3)
    ### BEGIN HIDDEN TESTS
    forwards(4, [8, 4, 8, 2, 2, 4], seed=3958231020)
    forwards(2, [4, 4, 4], seed=2884499140)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "forward_prefetched_test_time", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("forward_prefetched", "the time, and what is under way", part="time", hidden="other layers and links"):

    def forward_takes(ranks, widths, seconds, latency=LATENCY, bandwidth=BANDWIDTH, seed=0):
        """A gather starts when the layer two before it has computed and the link is free."""
        gathers = [(ranks - 1) * (latency + 4 * a * b / (ranks * bandwidth)) for a, b in pairwise(widths)]

        def ends(ahead):
            link, computed = [], []
            for layer, gather in enumerate(gathers):
                freed = computed[layer - ahead - 1] if layer > ahead else 0.0
                link.append(max(link[-1] if link else 0.0, freed) + gather)
                computed.append(max(computed[-1] if computed else 0.0, link[-1]) + seconds[layer])
            return computed

        cluster, x = Cluster(uniform(ranks, latency, bandwidth)), random(widths[0], seed=seed + 7)
        served = pieces_for_ranks(ranks, widths, seed)
        run = on_cluster(cluster, gathered, forward_prefetched, x, widths, seconds, served=served)
        charged = sum(span.end - span.start for span in run.spans if span.what == "layer")
        check.close(charged, ranks * sum(seconds), rtol=1e-9, unit="s", what="computation that all ranks charged")
        causes = {
            "nothing was prefetched: each layer waits for its own all-gather": ends(0)[-1],
            "more than one layer was prefetched": ends(len(seconds))[-1],
            "layers were computed before their all-gathers were over: wait for those": max(sum(seconds), sum(gathers)),
        }
        expected = ends(1)[-1]
        cause = next((why for why, slip in causes.items() if math.isclose(run.seconds, slip, rel_tol=1e-9)), "")
        what = f"forward of {ranks} ranks, widths {widths}, layers of {', '.join(f'{1e3 * s:g}' for s in seconds)} ms"
        check.close(run.seconds, expected, rtol=1e-9, unit="s", what=what, hint=cause)
        for rank in range(ranks):
            done = [span.end for span in run.spans if span.rank == rank and span.what == "layer"]
            begun = [span.start for span in run.collectives if span.rank == rank]
            check.equal(len(begun), len(seconds), what=f"all-gathers of rank {rank} for {len(seconds)} layers")
            for layer in range(2, len(begun)):
                check.true(
                    begun[layer] >= done[layer - 2] - 1e-12,
                    f"the all-gather of layer {layer} starts at {1e3 * begun[layer]:.4f} ms on rank {rank}, and layer "
                    f"{layer - 2} computes until {1e3 * done[layer - 2]:.4f} ms: three whole weights at one time",
                )
        output = chain_alone(widths, x[None], seed)[0][0]
        for rank, (got, *_) in enumerate(run.results):
            check.computed([got], [output], f"rank {rank} of {ranks}, widths {widths},")
        return run.seconds, expected

    forward_takes(2, [64] * 3, [0.3e-3] * 2)
    eight = forward_takes(4, [256] * 9, [0.3e-3] * 8)
    forward_takes(4, [256, 64, 64, 256, 256], [0.5e-3, 0.1e-3, 0.1e-3, 0.3e-3])
    forward_takes(2, [64] * 5, [0.01e-3, 0.02e-3, 0.01e-3, 0.03e-3])
    check.note("forward of 8 layers", *(1e3 * seconds for seconds in eight), "ms")
    ### BEGIN HIDDEN TESTS
    forward_takes(
        3, [48, 96, 48, 192, 48, 48], [0.2e-3, 0.4e-3, 0.01e-3, 0.3e-3, 0.1e-3], bandwidth=0.1e9, seed=3605551277
    )
    forward_takes(2, [32] * 7, [1e-3] * 6, latency=1e-4, seed=3741657387)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "forward_prefetched_test_memory", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("forward_prefetched", "the memory of a rank", part="memory", hidden="another number of ranks"):

    def forward_needs(ranks, width, layers, seed=0):
        wholes, x = codes(layers, width**2, seed=seed), random(width, seed=seed + 7)
        served = {"piece": lambda rank, layer: wholes[layer].chunk(ranks)[rank]}
        run = on_cluster(Cluster(ranks), gathered_large, forward_prefetched, x, layers, memory=True, served=served)
        weights = [from_codes(whole, width).view(width, width) for whole in wholes]
        expected = linear_alone(weights, x[None])[0][0]
        for rank, (got, counts) in enumerate(run.results):
            check.computed([got], [expected], f"rank {rank} of {ranks}, {layers} layers of {width} × {width},")
            most = max(counts)
            check.true(
                most <= 2,
                f"{most} whole weights are alive while layer {counts.index(most)} computes on rank {rank}: expected its own, "
                "and the one that is being gathered",
            )
        each = 4 * width**2
        needed = each * (layers / ranks + 2)
        require_memory(
            run,
            needed + 1.4 * each,
            needed,
            f"{ranks} ranks, {layers} layers of {each / MIB:.0f} MiB: pieces and two whole weights",
            f"if whole weights stay, that is up to {layers * each / MIB:.0f} MiB more",
        )

    forward_needs(2, 1536, 6)
    ### BEGIN HIDDEN TESTS
    forward_needs(3, 1536, 6, seed=3872983347)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "forward_prefetched",
    "A helper `gather(k)` makes an empty tensor, starts the all-gather with `async_op=True`, and returns both.",
    "Start layer 0 before the loop. In the loop: start layer k + 1, wait for layer k, use it, and `del` it.",
)


def prefetched_step(layers):
    forward_prefetched([torch.ones(16384)] * layers, lambda layer, whole, x: compute(0.3e-3, "forward"), None)
    return now()


with reveal("ahead"):
    alone = 3 * (LATENCY + 65536 / BANDWIDTH)
    show.against_prediction(
        "ahead", round(1e3 * (alone + 8 * 0.3e-3), 3), unit="ms", source="one all-gather and 8 layers"
    )
    from threeloops.training.cluster.pictures import gantt

    try:
        ahead = Cluster(4).run(prefetched_step, 8)
        show.figure(gantt(ahead, most_arrows=0), "yours: the all-gather of the next layer beside the computation")
    except ClusterError:
        print("your timeline appears here when exercise 5 passes")

UNITS = 6
ORDER = [("forward", k) for k in range(UNITS)] + [("backward", k) for k in reversed(range(UNITS))]


def units_at(moment):
    """Units that are whole, and those with a whole gradient, while a unit computes."""
    kind, unit = ORDER[moment]
    following = ORDER[moment + 1][1] if moment + 1 < len(ORDER) else unit
    return {unit, following}, ({unit, unit + 1} & set(range(UNITS)) if kind == "backward" else set())


def draw_units(frame):
    plot, (axes, curve) = figure(2, 1, width=8.5, height=4.6)
    wholes, gradients = units_at(frame)
    kind, current = ORDER[frame]
    for unit in range(UNITS):
        axes.barh([0], [0.25 if unit not in wholes else 0.9], left=unit, height=0.7, color=palette.green)
        axes.barh(
            [-1],
            [0.9 if unit in gradients else 0.25 if kind == "backward" and unit > current + 1 else 0.0],
            left=unit,
            height=0.7,
            color=palette.sky,
        )
        axes.text(
            unit + 0.45,
            0.62,
            f"unit {unit}",
            ha="center",
            weight="bold" if unit == current else "normal",
            color=palette.vermillion if unit == current else palette.ink,
        )
    axes.set(xlim=(-0.1, UNITS), ylim=(-1.6, 1.1), yticks=[0, -1], yticklabels=["parameters", "gradients"], xticks=[])
    axes.set_title(f"{kind} of unit {current}: short bars are pieces, long ones are whole", loc="left")
    axes.grid(visible=False)
    held = []
    for moment in range(frame + 1):
        whole, reducing = units_at(moment)
        done = max(0, moment - UNITS + 1) - 1
        held.append(0.25 * UNITS + 0.75 * len(whole) + len(reducing) + 0.25 * max(0, done))
    curve.step(range(frame + 1), held, where="post", color=palette.blue)
    curve.plot([frame, frame + 1], [held[-1]] * 2, color=palette.blue)
    curve.axhline(2 * UNITS, color=palette.vermillion, ls="--")
    curve.text(0, 2 * UNITS - 0.3, "DDP: parameters and gradients", va="top", color=palette.vermillion)
    curve.set(xlim=(0, len(ORDER)), ylim=(0, 2.2 * UNITS), ylabel="units held", xlabel="units computed")
    return plot


animate(
    draw_units,
    range(len(ORDER)),
    seconds=0.9,
    caption="A step of FSDP on 4 ranks: units (what is gathered at once, here a layer) are gathered and freed, one ahead. "
    "The last one stays whole from forward to backward, as in some implementations",
    still=UNITS + 2,
)
debrief(
    "forward_prefetched",
    """As long as an all-gather takes no longer than a layer, only the first one is exposed: the pass takes
    0.227 + 8 · 0.3 = 2.627 ms in the example, and 4.213 ms without prefetch. If the all-gather takes longer, the link is
    always busy and the GPU waits, and gathering further ahead would not help: equal layers cannot be gathered faster
    than the link allows. That would help if layers differed.

    Backward prefetches in the opposite order, and shares the link with the reduce-scatters. FSDP2 has
    `set_modules_to_forward_prefetch` and `set_modules_to_backward_prefetch` for this. Inference with weights that do not fit
    works the same way, from the memory of the host.""",
    parts=("values", "time", "memory"),
)

# %% [markdown]
# ## 6 · Which stage?
#
# Stages 1 and 2 send what DDP sends, and hold less. (The price of stage 2 appears with several microbatches per step, as section 3
# says.) Stage 3 holds the least, and sends 1.5 times as much. Freed memory has a use: a larger batch per GPU, which spreads the
# communication over more samples. To keep it simple, leave the overlap out. For P parameters in mixed precision on N GPUs with
# a link of β bytes/s:
#
# - A GPU's batch is the largest integer number of samples that fits beside its model states.
# - A step takes batch · seconds per sample + f · (N − 1)/N · 2P/β, where f is 2, and 3 in stage 3.
# - The rate is N · batch ÷ step.
#
# *Worked example.* 20 billion parameters on 16 GPUs of 80 GB, 2 GB and 0.5 s per sample, 25 GB/s. Stage 0 needs 320 GB, and stage 1
# 95 GB. Stage 2 needs 57.5 GB, which leaves room for 11 samples: 5.5 s + 3 s, or 20.7 samples/s. Stage 3
# needs 20 GB, and 30 samples take 15 s + 4.5 s: 24.6 samples/s.
#
# Predict first, then move the numbers: where does stage 2 win, and when does even stage 3 not fit?

# %% tags=["demo"] jupyter={"source_hidden": true}
predict("stage", "The worked example on a link of 1 GB/s instead of 25 GB/s: which stage is best?", options=("2", "3"))
myth("zero-3")
slow = {}
for stage, (batch, factor) in {2: (11, 2), 3: (30, 3)}.items():
    slow[stage] = 16 * batch / (0.5 * batch + factor * 15 / 16 * 2 * 20e9 / 1e9)
show.against_prediction(
    "stage", str(max(slow, key=slow.get)), source=f"model: {slow[2]:.2f} and {slow[3]:.2f} samples/s in stages 2 and 3"
)
with reveal("stage"):
    explore(
        sharding.draw_rates,
        billion_parameters=[20, 7, 10, 13, 70],
        ranks=[16, 8, 64],
        gpu_gb=[80, 40, 141],
        gb_per_second=[25, 1, 5, 450],
        labels={"gpu_gb": "GB per GPU", "gb_per_second": "link (GB/s)"},
    )
    print(
        "Among stages 0 to 2 the traffic is equal, so the one with the largest batch wins. Between 2 and 3 compare batch ÷ f, "
        "whatever the link: in the worked example 11/2 against 30/3. If memory is plentiful the two batches are nearly "
        "equal, and stage 2 wins. The model leaves out overlap, latencies, and the effect of a larger batch on training "
        "(lab 09). Recomputation (lab 06) makes samples smaller, and is often tried before stage 3."
    )
audit(
    "zero-3",
    model_states([70 * 10**9], 8, 3).total / 1e9,
    f"GB of model states per GPU in stage 3 on 8 GPUs of 80 GB; {math.ceil(16 * 70 / 80)} GPUs are needed for the states alone",
    "model",
    "corrected",
    how="70 billion parameters take 1,120 GB with Adam in mixed precision: 140 GB on each of 8 GPUs, so it needs offloading or fewer bytes per parameter. And hundreds of GPUs do not help DDP, since each of them would hold all 1,120 GB",
)

# %% [markdown]
# ## 7 · One model, four ways
#
# Your pieces train a model: eight layers of 1 MiB, six steps of Adam in float32 on four ranks. It runs as DDP, with your
# `zero_1` for each layer, with your `shard_gradients`, and with your `sharded_linear`. Your `state_bytes` predicts what a rank
# holds, and the operating system says what it took. Exercises that do not pass yet are replaced by the reference.

# %% tags=["demo"] jupyter={"source_hidden": true}
if parts := together(*sharding.REFERENCE, library=sharding.REFERENCE):
    runs = [Cluster(4).run(sharding.loss_of_stage, stage, vars(parts), memory=True) for stage in range(4)]
    held = [parts.state_bytes(8 * 2**18, 4, stage, False) for stage in range(4)]
    counted = [(each.parameters, each.gradients, each.optimizer) for each in held]
    sent = [sum(sent_by_ranks(run)) / sum(sent_by_ranks(runs[0])) for run in runs]
    losses = [[sum(step) / 4 for step in zip(*run.results, strict=True)] for run in runs]
    show.table(
        [
            (name, *(f"{loss:.6f}" for loss in of))
            for name, of in zip(("DDP", "stage 1", "stage 2", "stage 3"), losses, strict=True)
        ],
        header=("mean loss in step", *range(1, 7)),
        caption="The same training in all four, up to rounding",
    )
    show.figure(
        sharding.draw_held(counted, [max(run.memory) for run in runs], sent),
        "model states by state_bytes, the measured peak of a rank, and what it sends, for DDP and the stages of ZeRO",
    )
    print("Beyond its states, a rank holds activations, messages under way, and whole weights or gradients in use.")

# %% [markdown]
# ## In practice
#
# In PyTorch you call `fully_shard(block)` for each block and then `fully_shard(model)`. This is **FSDP2**: parameters become
# `DTensor`s (tensors that know how they are cut) with 1/N of the elements per rank, and you make the optimizer from those. With
# `MixedPrecisionPolicy(param_dtype=torch.bfloat16)` the shards stay in float32 and serve as the masters, and copies rounded to 16
# bits are gathered. `reshard_after_forward=False` keeps the parameters after forward, as ZeRO-2 does.
#
# | | DeepSpeed 0.19 (JSON) | Megatron-Core 0.19 | TorchTitan 0.3 (FSDP2) |
# |---|---|---|---|
# | ZeRO-1 | `"stage": 1` | `--use-distributed-optimizer` | — |
# | ZeRO-2 | `"stage": 2` | `--data-parallel-sharding-strategy optim_grads` | `--parallelism.fsdp_reshard_after_forward never` |
# | ZeRO-3 | `"stage": 3` | `--use-megatron-fsdp` | `--parallelism.data_parallel_shard_degree` |
# | gather ahead | `stage3_prefetch_bucket_size` | `--overlap-param-gather` | always, the next block |
# | shard within a node | `zero_hpz_partition_size` | `--num-distributed-optimizer-instances` | `--parallelism.data_parallel_replicate_degree` |
# | states on the host | `offload_optimizer` | `--optimizer-cpu-offload` | `--training.enable_cpu_offload` |
#
# Older PyTorch code has `FullyShardedDataParallel` (FSDP1), which puts the parameters of a block into one flat tensor, as
# exercise 2 does.
#
# The last cell runs one forward and backward of the same 8 layers on your virtual cluster, with torch's DDP and with torch's
# `fully_shard`, with and without resharding after forward, and compares the bytes with those of your `sharded_linear`. It also
# compares your predictions with what was found.
#
# ## What to remember
#
# - In mixed precision with Adam the states take 16 bytes per parameter, of which the optimizer has 12.
# - An all-reduce is a reduce-scatter and an all-gather. ZeRO-1 updates in between, for the same bytes.
# - Stage 3 sends 1.5 times as much, and divides all model states by N.
# - Prefetching hides all-gathers behind computation, and takes the memory of one more whole layer.
# - Freed memory allows a larger batch. Batch ÷ traffic decides the stage.
#
# The deep dives (`10_sharded_data_parallel_dives.ipynb`) shard within nodes only, keep float32 masters, read a DeepSpeed file, and
# put optimizer states on disk.
#
# ## Reflection
#
# A colleague trains 13 billion parameters in stage 2 on 8 GPUs of 80 GB, runs out of memory, and wants to go to stage 3. What
# would you ask or measure first, and in which order would you try which changes? A paragraph is enough.

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# Stage 2 needs 2 · 13 + 14 · 13/8 = 48.75 GB of states, so about 30 GB should be left, and I would first ask what fills them:
# activations of which batch, or gradients that are not freed. If it is activations, recomputation or a smaller microbatch costs
# less communication than stage 3. If the states are the problem, stage 3 brings them to 26 GB. I would then measure the step
# time, and use the freed memory for a larger batch, since stage 3 sends 1.5 times as much. I would look at the link as well: if
# the one between nodes is slow, I would keep the shards within a node.

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.training.cluster import advance_to
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def torch_sends(how):
    """Bytes sent after second 1 are of one forward and backward; before, DDP compares the models of the ranks."""
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256, bias=False) for _ in range(8)])
    if how == "yours":
        advance_to(1.0)
        x = torch.ones(1, 256, requires_grad=True)
        for _ in range(8):
            x = sharded_linear(x, torch.ones(16384, requires_grad=True), 256)
        x.sum().backward()
        return
    if how == "DDP":
        wrapped = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (4,))
        for layer in model:
            fully_shard(layer, mesh=mesh, reshard_after_forward=how == "fully_shard")
        wrapped = fully_shard(model, mesh=mesh)
    advance_to(1.0)
    wrapped(torch.ones(1, 256)).sum().backward()


rows = []
for how in ("DDP", "fully_shard", "fully_shard, reshard_after_forward=False", "yours"):
    try:
        run = Cluster(4).run(torch_sends, how)
    except ClusterError:
        rows.append((how, "not yet", ""))
        continue
    sent = sum(m.size for m in run.messages if m.source == 0 and m.ready >= 1.0)
    rows.append((how, f"{sent / MIB:.2f} MiB", f"{sent / (1.5 * 2 * MIB):.2f}×"))
show.table(
    rows, header=("", "sent per rank", "of DDP"), caption="8 layers of 256 KiB on 4 ranks: one forward and backward"
)
term("FSDP")
calibration()
