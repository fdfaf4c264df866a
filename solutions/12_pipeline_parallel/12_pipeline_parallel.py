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
#     title: How long is a step, before it is run?
#     minutes: 195
#     withholds: [threeloops.training.pipeline, threeloops.training.composition, threeloops.lab.drawings]
#     edition: 2
# ---

# %% [markdown]
# # How long is a step, before it is run?
#
# ![A model of twelve layers is cut into four stages, one per GPU; microbatches wait to pass through them](attachment:opening.png)
#
# A model that does not fit on one GPU can be cut into stages of consecutive layers, one per GPU. Then each GPU waits for the
# one before it, and in backward for the one after it. In which order should each of them work, and how long does a step take?
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import math
from dataclasses import dataclass

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
    Deadlock,
    advance_to,
    ask,
    charge,
    now,
    uniform,
)

FORWARD, BACKWARD = 1e-3, 2e-3  # seconds that a stage takes for a microbatch
LATENCY, BANDWIDTH = 10e-6, 1e9  # of the link from each rank to each other one: seconds, bytes/s


@dataclass(frozen=True)
class Job:
    """A model to train, and the GPUs for it."""

    gpus: int
    samples: int  # per step, on all GPUs together
    layers: int
    forward: float  # seconds per sample and layer; backward takes twice as long
    overhead: float  # seconds per microbatch and stage, for its forward and backward together
    states: float  # bytes per layer: weights, gradients and optimizer
    activations: float  # bytes per sample and layer that backward needs
    boundary: float  # bytes per sample that a stage gets as its input


@dataclass(frozen=True)
class Plan:
    stages: int
    microbatches: int
    recompute: bool


def memory_of(job, plan):
    """Bytes that rank 0 of 1F1B needs: it has the most microbatches in flight, min(stages, microbatches)."""
    layers = job.layers / plan.stages
    samples = job.samples * plan.stages / job.gpus / plan.microbatches  # in a microbatch
    in_flight = min(plan.stages, plan.microbatches)
    whole = samples * layers * job.activations  # of one microbatch
    kept = in_flight * samples * job.boundary + whole if plan.recompute else in_flight * whole
    return layers * job.states + kept


def rows_of(*texts):
    """A schedule from one text per rank: "F0 B0" is [("F", 0), ("B", 0)]."""
    for word in " ".join(texts).split():
        if word[0] not in "FB" or not word[1:].isdecimal():
            raise ValueError(f"{word!r} is not an action: expected F or B and a number, such as F0")
    return [[(word[0], int(word[1:])) for word in text.split()] for text in texts]


def text_of(row):
    """The text of one row: [("F", 0), ("B", 0)] is "F0 B0"."""
    return " ".join(f"{kind}{number}" for kind, number in row)


def receive(source, i, shape):
    """Wait for the tensor that rank `source` sends with the tag i."""
    arrived = torch.empty(shape)
    dist.recv(arrived, source, tag=i)
    return arrived


class Held(torch.autograd.Function):
    """Between a forward and its backward, it holds so many MiB, as the activations of a stage would."""

    @staticmethod
    def forward(ctx, x, mebibytes):
        if mebibytes:
            ctx.save_for_backward(torch.ones(mebibytes << 18))
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        assert all(len(held) for held in ctx.saved_tensors)
        return gradient, None


class Stage(torch.nn.Module):
    """A layer: its weights depend on the rank and the seed. It charges its seconds to the rank's clock."""

    def __init__(self, rank, width, seed, mebibytes=0):
        super().__init__()
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        self.weight = torch.nn.Parameter(torch.randn(width, width, generator=generator) / math.sqrt(width))
        self.bias = torch.nn.Parameter(torch.randn(width, generator=generator))
        self.mebibytes = mebibytes

    def forward(self, x):
        y = charge(torch.tanh(x @ self.weight + self.bias), FORWARD, BACKWARD)
        return Held.apply(y, self.mebibytes)


def cross_entropy(output, target):
    """The loss of this lab: a mean over the microbatch; the softmax of `target` says how likely each class is."""
    return torch.nn.functional.cross_entropy(output, target.softmax(-1))


def data_of(microbatches, samples, width, seed):
    """Inputs and targets, one per microbatch."""
    generator = torch.Generator().manual_seed(seed)
    return [list(torch.randn(microbatches, samples, width, generator=generator)) for _ in range(2)]


# Shared by the test cells: a program that runs on every rank, and the gradients of one process.


def pipelined(run_row, rows, samples, width, mebibytes):
    rank = dist.get_rank()
    stage = Stage(rank, width, 0, mebibytes)
    stage.load_state_dict(ask("weights"))
    inputs, targets = ask("data")
    loss = run_row(rows[rank], stage, inputs, targets, cross_entropy, (samples, width))
    return loss, {name: p.grad for name, p in stage.named_parameters()}


def run_pipeline(cluster, run_row, rows, samples, width, seed, mebibytes=0, memory=False):
    """Give a rank only the weights of its own stage. Only the first gets the inputs, and only the last the targets."""
    inputs, targets = data_of(len(rows[0]) // 2, samples, width, seed)
    served = {
        "weights": lambda rank: dict(Stage(rank, width, seed).state_dict()),
        "data": lambda rank: (inputs if rank == 0 else [], targets if rank == len(rows) - 1 else []),
    }
    program = pipelined, run_row, rows, samples, width, mebibytes
    return on_cluster(cluster, *program, served=served, memory=memory)


class Scale(torch.nn.Module):
    """Times one number per row: hardly any arithmetic, for activations of any size."""

    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x):
        return x * self.weight


def pipelined_wide(run_row, rows, mebibytes):
    """Activations and gradients of so many MiB; inputs and targets take no memory."""
    stage, (inputs, targets), shape = Scale(ask("weight")), ask("data"), (4, mebibytes << 16)
    inputs = [x.expand(shape) for x in inputs]
    run_row(rows[dist.get_rank()], stage, inputs, targets, lambda output, target: (output - target).mean(), shape)
    return stage.weight.grad, [i for i, x in enumerate(inputs) if x.requires_grad]


# %% tags=["setup", "oracle"] nbgrader={"grade": false, "grade_id": "oracles", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
# In graded runs, your answers cannot call the functions of this cell: a rank only has the data that it asks for.


def of_one_process(ranks, microbatches, samples, width, seed, only=None):
    """The mean loss, and the gradients by rank, in float64; of one microbatch if `only` says which."""
    stages = [Stage(rank, width, seed).double() for rank in range(ranks)]
    inputs, targets = data_of(microbatches, samples, width, seed)
    chosen = range(microbatches) if only is None else [only]
    total = 0.0
    for i in chosen:
        loss = cross_entropy(torch.nn.Sequential(*stages)(inputs[i].double()), targets[i].double()) / len(chosen)
        loss.backward()
        total += float(loss.detach())
    return total, [{name: p.grad for name, p in stage.named_parameters()} for stage in stages]


def require_computed(run, expected, case):
    """Require right gradients: without them, bytes, time, order and memory of a run do not count."""
    for rank, (_, gradients) in enumerate(run.results):
        check.computed(gradients, expected[rank], f"rank {rank} ({case})")


def alike(got, expected):
    return torch.is_tensor(got) and got.shape == expected.shape and torch.allclose(got.double(), expected, 1e-4, 1e-6)


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
from threeloops.figures import ON_LIGHT

plot, axes = figure(width=9.5, height=3.0)
SHADES = [palette.sky, palette.green, palette.orange, palette.purple]
for rank, shade in enumerate(SHADES):
    left = 3.0 + 2.6 * rank
    for layer in range(3):
        axes.barh([0], [0.56], left=left + 0.64 * layer, height=1.5, color=shade)
        axes.text(
            left + 0.64 * layer + 0.28,
            0,
            f"layer {3 * rank + layer}",
            rotation=90,
            ha="center",
            va="center",
            color=ON_LIGHT,
        )
    axes.text(left + 0.92, 1.05, f"GPU {rank}", ha="center", weight="bold")
    if rank:
        axes.annotate(
            "",
            (left - 0.08, 0.25),
            (left - 0.66, 0.25),
            arrowprops={"arrowstyle": "->", "color": palette.ink, "lw": 1.8},
        )
        axes.annotate(
            "",
            (left - 0.66, -0.25),
            (left - 0.08, -0.25),
            arrowprops={"arrowstyle": "->", "color": palette.vermillion, "lw": 1.8},
        )
for number in range(4):
    axes.barh([0], [0.5], left=2.2 - 0.62 * number, height=0.5, color=palette.yellow)
    axes.text(2.45 - 0.62 * number, 0, str(number), ha="center", va="center", color=ON_LIGHT)
axes.text(1.5, 0.62, "microbatches", ha="center")
axes.text(8.1, -1.15, "activations go to the right,", ha="right", va="center")
axes.text(8.2, -1.15, "gradients come back", ha="left", va="center", color=palette.vermillion)
axes.text(8.1, -1.75, "Who works when, who waits, and how long does the step take?", ha="center", va="center", size=12)
axes.set(xlim=(0, 13.4), ylim=(-2.1, 1.5))
axes.axis("off")
show.figure(plot, "A model of twelve layers in four stages; microbatches wait to pass through them")

# %% [markdown]
# A rank is one process, with one GPU. In this lab rank r has stage r, so activations go from rank 0 to the last rank, and
# gradients come back. Programs run on the **virtual cluster** of lab 09: real tensors and plain `torch.distributed` code, but
# the time is computed. A stage *charges* 1 ms to its rank's clock for a forward and 2 ms for a backward, and a message takes α +
# size ÷ β, with α = 10 µs and β = 1 GB/s.
#
# ## 1 · The bubble
#
# If the whole batch went through the stages at once, one GPU would work at a time. So the batch is cut into
# **microbatches**: while stage 1 works on microbatch 0, stage 0 works on microbatch 1. When all of them have passed forward
# and backward, the optimizer makes one step. Ranks still wait for their first microbatch, and later for gradients. The time in
# which a rank waits is called the **bubble**.
#
# *Worked example.* 3 stages, 4 microbatches, forward 1 ms, backward 2 ms, and transfers are free. All forwards come first. Stage 2
# gets microbatch 0 after 2 ms, and has done the last of 4 forwards at 6 ms. Backward starts there: stage 2 works until 14 ms, and
# its last gradient then passes stages 1 and 0, 2 ms each. So the step takes 18 ms. Each stage worked for 4 · 3 = 12 ms of
# it, so the bubble is 6 of 18 ms, a third.
#
# ### Exercise 1 (10 points)
#
# `microbatches_for(stages, share) -> int` returns the fewest microbatches with which the bubble is at most `share` of a step.
#
# - All stages take equally long, and transfers are free. The answer does not depend on how long forward and backward take.
# - At least one microbatch is needed, even if there is one stage, which never waits.
# - A floating-point error must not add a microbatch: for 4 stages and 0.2 the answer is 12, not 13.
# - A `share` that is not above 0 and below 1 raises a `ValueError` with its value, as in `share = 0`.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict("bubble", "8 stages and 8 microbatches: how much of the step is bubble, in percent?", unit="%")
myth("pipe-1")
myth("pipe-6")


# %% nbgrader={"grade": false, "grade_id": "microbatches_for", "locked": false, "schema_version": 3, "solution": true, "task": false}
def microbatches_for(stages: int, share: float) -> int:
    """The fewest microbatches with which at most `share` of a step is bubble."""
    ### BEGIN SOLUTION
    if not 0 < share < 1:
        raise ValueError(f"share = {share}: expected a part of the step, above 0 and below 1")
    microbatches = 1
    while stages - 1 > share * (microbatches + stages - 1) * (1 + 1e-9):
        microbatches += 1
    return microbatches
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "microbatches_for_test_values", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("microbatches_for", "how many microbatches", part="values", hidden="other stages and shares"):
    OF_WORK = "the bubble was compared with the time in which a stage works, not with the whole step"
    FOR_ALL = "this is right if a stage waited for all stages, itself included"

    def needs(expected, stages, share, too_large, slips):
        """`too_large` is the bubble with one microbatch fewer, as text. `slips` maps wrong numbers to causes."""
        got = microbatches_for(stages, share)
        cause = slips.get(got, "") if isinstance(got, int) else ""
        if got == expected - 1:
            cause = f"with {got} it is {too_large}" if too_large else "one is needed"
        elif got == expected + 1:
            cause = f"{expected} are enough: at most {share:g} may be bubble, and exactly {share:g} is allowed"
        check.equal(got, expected, what=f"microbatches_for({stages}, {share})", hint=cause)

    needs(21, 8, 0.25, "25.9%", {28: OF_WORK, 24: FOR_ALL})
    needs(4, 3, 0.334, "40.0%", {6: OF_WORK})  # the worked example
    needs(3, 4, 0.5, "60.0%", {6: OF_WORK, 4: FOR_ALL})
    needs(12, 3, 0.15, "15.4%", {14: OF_WORK, 17: FOR_ALL})
    needs(12, 4, 0.2, "21.4%", {15: OF_WORK, 16: FOR_ALL})
    needs(13, 4, 0.199999, "20%, more than 19.9999%", {15: OF_WORK})  # no floating-point error: one more is needed
    needs(17, 4, 0.15, "15.8%", {20: OF_WORK, 23: FOR_ALL})
    needs(1, 2, 0.9, "100.0%", {2: OF_WORK})
    needs(1, 1, 0.1, "", {9: FOR_ALL})

    ### BEGIN HIDDEN TESTS
    def by_search(stages, share):
        low, high = 0, 1 << 20
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if (stages - 1) / (middle + stages - 1) <= share else (middle, high)
        return high

    for seed in range(30):
        rng = check.rng(seed)
        stages, share = int(rng.integers(1, 80)), float(rng.uniform(0.01, 0.95))
        needs(by_search(stages, share), stages, share, "larger", {})
    needs(7 * 63, 64, 0.125, "larger", {})
    for stages, share, expected in ((7, 0.2, 24), (4, 0.6, 2), (8, 0.7, 3), (10, 0.1, 81), (31, 0.3, 70)):
        needs(expected, stages, share, "larger", {})
    for stages, share, expected in ((10, 0.6, 6), (12, 0.22, 39), (19, 0.9, 2), (28, 0.03, 873), (7, 0.59999, 5)):
        needs(expected, stages, share, "larger", {})
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "microbatches_for_test_edges", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("microbatches_for", "shares that no step can have", part="edges", hidden="other shares"):
    check.raises(ValueError, microbatches_for, 4, 0, names=("share = 0",))
    check.raises(ValueError, microbatches_for, 4, 1.0, names=("share = 1",))
    check.raises(ValueError, microbatches_for, 4, -0.25, names=("share = -0.25",))
    check.raises(ValueError, microbatches_for, 1, 1.5, names=("share = 1.5",))
    check.raises(ValueError, microbatches_for, 4, float("nan"))
    check.accepts(microbatches_for, 4, 0.99)
    ### BEGIN HIDDEN TESTS
    check.raises(ValueError, microbatches_for, 8, 2, names=("share = 2",))
    check.raises(ValueError, microbatches_for, 1, 0, names=("share = 0",))
    check.accepts(microbatches_for, 1, 0.01)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "microbatches_for",
    "For how many forwards does the last stage wait at the beginning? For how many backwards does it wait at the end?",
    "With p stages and m microbatches a stage works m times (forward and backward) and waits p − 1 times as long as one of "
    "these. What share is that?",
)
show.against_prediction("bubble", round(100 * 7 / 15, 1), unit="%", source="model: 7 / (8 + 7)")
debrief(
    "microbatches_for",
    """Every stage works for m · (f + b) seconds. It also waits for p − 1 forwards and p − 1 backwards: stage s waits for s
    forwards at the beginning, s backwards at the end, and the rest in between. So the bubble is (p − 1)/(m + p − 1) of
    the step. Neither f nor b matters, only the number of microbatches per stage: four per stage leave at most 20%.

    More microbatches are not free. With a fixed batch each is smaller, and a GPU is less efficient on small matrices.""",
    parts=("values", "edges"),
)
audit(
    "pipe-1",
    round(100 * 7 / (8 + 7), 1),
    f"% with 8 stages and 8 microbatches; 12.5% needs {7**2} microbatches",
    "model",
    "corrected",
    how="the bubble is (p − 1)/(m + p − 1) of a step. That is 1/p only if m = (p − 1)². For 10–20% with 8 stages, 28 to 63 microbatches are needed",
)
audit(
    "pipe-6",
    3,
    "forwards, of the last of 4 stages alone",
    "model",
    "corrected",
    how="stage s waits for s forwards at the beginning of a step, so 4 stages wait for 0, 1, 2 and 3. At the end of the step they wait for as many backwards, in the opposite order",
)

# %% [markdown]
# ## 2 · Backward as early as possible
#
# The schedule of the worked example is **GPipe**: all forwards, then all backwards. Between the forward and the backward of a
# microbatch, a stage keeps its activations; the microbatch is **in flight**. With GPipe all m are in flight on every stage.
#
# A microbatch's backward can start on the last rank right after its forward there, and on every other rank when the gradient
# from the next rank has come. So ranks can start backward long before the last forward.
#
# We write a schedule as data: a row per rank, which lists its actions in order. `("F", 0)` is the forward of microbatch 0,
# `("B", 0)` its backward. The next cell prints GPipe with the lab's `text_of`.
#
# *Worked example.* 2 ranks and 3 microbatches. Rank 1 may keep one microbatch, so it does `F0 B0 F1 B1 F2 B2`. Rank 0 may keep
# two. It does `F0 F1`, then waits for the gradient of microbatch 0, does `B0`, and now has room for the next: `F0 F1 B0 F2 B1 B2`.
#
# ### Exercise 2 (20 points)
#
# `one_f_one_b(ranks, microbatches)` returns the rows of the schedule called **1F1B**, as lists of such tuples.
#
# - Each rank does each microbatch forward once and backward once, both in the order 0, 1, 2 and so on.
# - Rank r has at most `ranks` − r microbatches in flight.
# - Under these rules the step is as short as it can be, with equal stages and free transfers. Only one schedule achieves that.

# %% tags=["demo"]
predict("longer", "4 ranks, 16 microbatches: how many times as long as GPipe's is the step of 1F1B?", unit="×")

gpipe = [[("F", i) for i in range(4)] + [("B", i) for i in range(4)] for rank in range(3)]
for rank, row in enumerate(gpipe):
    print(f"rank {rank}: {text_of(row)}")


# %% nbgrader={"grade": false, "grade_id": "one_f_one_b", "locked": false, "schema_version": 3, "solution": true, "task": false}
def one_f_one_b(ranks: int, microbatches: int) -> list[list[tuple[str, int]]]:
    """The rows of 1F1B, one per rank."""
    ### BEGIN SOLUTION
    rows = []
    for rank in range(ranks):
        row, forwards, backwards = [], 0, 0
        while backwards < microbatches:
            if forwards < microbatches and forwards - backwards < ranks - rank:
                row.append(("F", forwards))
                forwards += 1
            else:
                row.append(("B", backwards))
                backwards += 1
        rows.append(row)
    return rows
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "one_f_one_b_test_rows", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("one_f_one_b", "the rows of 1F1B", part="rows", hidden="other numbers of ranks and microbatches"):

    def in_flight(text):
        """The most microbatches in flight in a row."""
        words, most = text.split(), 0
        for end in range(len(words) + 1):
            kinds = [word[0] for word in words[:end]]
            most = max(most, kinds.count("F") - kinds.count("B"))
        return most

    def seen_in(text, expected, rank, ranks):
        """Say what is wrong in a row, as far as the row alone tells."""
        words, wanted = text.split(), expected.split()
        if sorted(words) != sorted(wanted):
            extra = [word for word in words if word not in wanted] or [w for w in words if words.count(w) > 1]
            missing = [word for word in wanted if word not in words]
            return f"missing: {' '.join(missing) or 'none'}; too many: {' '.join(extra) or 'none'}"
        for kind in "FB":
            numbers = [int(word[1:]) for word in words if word[0] == kind]
            if numbers != sorted(numbers):
                return f"{'forwards' if kind == 'F' else 'backwards'} are not in the order 0, 1, 2, …"
        early = [i for i in range(len(words) // 2) if words.index(f"B{i}") < words.index(f"F{i}")]
        if early:
            return f"B{early[0]} comes before F{early[0]}"
        if in_flight(text) > ranks - rank:
            return f"{in_flight(text)} microbatches are in flight at once, where rank {rank} may keep {ranks - rank}"
        return "a backward comes before a forward for which there was room, so the step takes longer"

    def emits(microbatches, *expected):
        ranks = len(expected)
        rows, call = one_f_one_b(ranks, microbatches), f"one_f_one_b({ranks}, {microbatches})"
        check.true(type(rows) is list and all(type(row) is list for row in rows), f"{call}: expected a list of lists")
        pairs = all(type(a) in (tuple, list) and len(a) == 2 for row in rows for a in row)
        check.true(pairs, f'{call}: expected actions such as ("F", 0)')
        check.equal(len(rows), ranks, what=f"rows of {call}")
        for rank, (row, wanted) in enumerate(zip(rows, expected, strict=True)):
            text = text_of(row)
            cause = "" if text == wanted else seen_in(text, wanted, rank, ranks)
            check.equal(text, wanted, what=f"rank {rank} of {call}", hint=cause)

    emits(3, "F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2")
    emits(4, "F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3")
    emits(2, "F0 B0 F1 B1")

    ### BEGIN HIDDEN TESTS
    def warm_up(ranks, microbatches, rank):
        ahead = min(ranks - rank - 1, microbatches)
        words = [f"F{i}" for i in range(ahead)]
        for i in range(microbatches):
            words += [f"F{i + ahead}"] * (i + ahead < microbatches) + [f"B{i}"]
        return " ".join(words)

    for ranks, microbatches in ((4, 8), (2, 7), (5, 5), (6, 9), (1, 4), (8, 17)):
        emits(microbatches, *(warm_up(ranks, microbatches, rank) for rank in range(ranks)))
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "one_f_one_b_test_few", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("one_f_one_b", "fewer microbatches than ranks", part="few", hidden="other numbers of both"):

    def emits_few(microbatches, *expected):
        rows = one_f_one_b(len(expected), microbatches)
        check.equal(len(rows), len(expected), what=f"rows of one_f_one_b({len(expected)}, {microbatches})")
        for rank, (row, wanted) in enumerate(zip(rows, expected, strict=True)):
            check.equal(text_of(row), wanted, what=f"rank {rank} of one_f_one_b({len(expected)}, {microbatches})")

    emits_few(2, "F0 F1 B0 B1", "F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1")
    emits_few(1, "F0 B0", "F0 B0")
    ### BEGIN HIDDEN TESTS
    full = ["F0 F1 F2 B0 B1 B2", "F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]
    emits_few(3, full[0], full[0], *full)
    emits_few(1, "F0 B0", "F0 B0", "F0 B0", "F0 B0")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "one_f_one_b",
    "Build each row by itself: count the forwards and the backwards that it has so far.",
    "The number in flight is the difference of the two counts. While there is room for another, which is better done next, a forward or a backward?",
    "When no forwards are left, the rest of the row is backwards.",
)
import ipywidgets
from threeloops.lab.drawings import draw_flight
from threeloops.training.pipeline import Action, Durations, Schedule, gantt, run_schedule
from threeloops.training.pipeline import check as check_schedule
from threeloops.training.pipeline import gpipe as course_gpipe
from threeloops.training.pipeline import one_f_one_b as course_1f1b
from threeloops.training.pipeline import simulate as course_simulate

ONE_TWO = Durations(forward=FORWARD, backward=BACKWARD)
with reveal("longer"):
    step = {make: 1e3 * course_simulate(make(4, 16), ONE_TWO).seconds for make in (course_gpipe, course_1f1b)}
    took = f"simulated: GPipe takes {step[course_gpipe]:g} ms, and 1F1B {step[course_1f1b]:g} ms"
    show.against_prediction("longer", step[course_1f1b] / step[course_gpipe], unit="×", source=took)
    both = {"GPipe": course_gpipe(4, 8), "1F1B": course_1f1b(4, 8)}
    both = {name: course_simulate(schedule, ONE_TWO) for name, schedule in both.items()}
    animate(
        lambda frame: draw_flight(both, both["GPipe"].seconds * frame / 22),
        range(23),
        seconds=0.6,
        still=9,
        caption="GPipe and 1F1B with 4 ranks and only 8 microbatches: squares are microbatches in flight",
    )


def draw_edited(rank_0, rank_1, rank_2):
    """The timeline of a schedule in words, as far as it goes; the checker refuses what cannot be completed."""
    rows = [[Action(kind, rank, i) for kind, i in row] for rank, row in enumerate(rows_of(rank_0, rank_1, rank_2))]
    schedule = Schedule(rows, (0, 1, 2), 4)
    check_schedule(schedule, complete=False)
    timeline = course_simulate(schedule, ONE_TWO, complete=False)
    plot = gantt(timeline, until=max(timeline.seconds, 1e-3))
    kept = ", ".join(f"{most:g}" for most in timeline.peak())
    plot.axes[0].set_title(f"{1e3 * timeline.seconds:g} ms; in flight at most {kept}", fontsize=10)
    return plot


def editor(rank):
    return ipywidgets.Text(text_of(gpipe[rank]), description=f"rank {rank}", continuous_update=False)


debrief(
    "one_f_one_b",
    """Every rank begins with as many forwards as it may keep, because nothing else can be done. From then on the last rank always
    has something to do, until its last backward, and that fixes the length of the step. 1F1B takes as long as GPipe, (m
    + p − 1)(f + b), if transfers are free, but rank 0 keeps p microbatches instead of m, and the last rank keeps one.
    So more microbatches, for a smaller bubble, no longer cost memory.

    Below is a schedule editor. It starts with GPipe. Change the texts and press Enter: turn it into 1F1B, and then try to
    break it, for example with a rank 0 that starts with `F0 B0 F1`. An illegal move is refused, with the reason.""",
    parts=("rows", "few"),
)
fill = [text_of(row) for row in gpipe]
alternate = [text_of((action.kind, action.microbatch) for action in row) for row in course_1f1b(3, 4).rows]
examples = {
    "GPipe": fill,
    "1F1B": alternate,
    "one microbatch at a time": alternate[2:] * 3,
    "1F1B, but rank 0 starts with F0 B0 F1": [alternate[2], *alternate[1:]],
    "GPipe, but rank 2 does B1 before F1": [*fill[:2], "F0 B0 B1 F1 F2 F3 B2 B3"],
}
explore(
    draw_edited,
    examples={name: {f"rank_{i}": row for i, row in enumerate(rows)} for name, rows in examples.items()},
    rank_0=editor(0),
    rank_1=editor(1),
    rank_2=editor(2),
)

# %% [markdown]
# ## 3 · Run it
#
# Autograd ends at the boundary between two ranks: the activation that arrives is a new tensor without a history. So
# the ranks carry the chain rule over themselves. A rank receives the activation, marks it with `requires_grad_()`,
# and runs its stage on it. In backward it receives the gradient of its *output*, calls `output.backward(gradient)`,
# and finds the gradient of its *input* in `input.grad`, which the rank before needs.
#
# *Worked example*, and the next cell: rank 0 computes y = 2 · 3 = 6, rank 1 the loss 5 · y = 30. Rank 1's weight gets the gradient 6.
# The gradient of y is 5; it goes back, and rank 0's weight gets 5 · 3 = 15.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "sends",
    "Two ranks both call dist.send to the other, and then dist.recv. What happens?",
    options=("both values arrive", "both wait forever"),
)

# %% [markdown]
# `dist.send(x, to, tag=7)` waits until the other rank has called `recv`; `work = dist.isend(…)` returns at once, and
# `work.wait()` must be called some time later. The given `receive(source, i, shape)` waits for the tensor with tag i.
#
# ### Exercise 3 (28 points)
#
# `run_row(row, stage, inputs, targets, loss_fn, shape)` runs on every rank with its own `row` and `stage`. Its receiving half is
# given: `x` is the stage's input, marked with `requires_grad_()` except on rank 0, and `gradient` is the gradient of the
# stage's output (`None` on the last rank). Write what happens with them.
#
# - `("F", i)`: rank 0 takes `inputs[i]`, every other rank the activation of microbatch i, a float32 tensor of `shape`. The last
#   rank computes `loss_fn(output, targets[i])`; every other one sends its output on. `("B", i)` goes back the same way. On other
#   ranks `inputs` and `targets` are empty.
# - Afterwards each `parameter.grad`, which is None before, is the gradient of the *mean* loss over the microbatches. The last
#   rank returns this loss as a float, the others `None`.
# - Actions are done in the order of `row`. Ranks may differ in the order of microbatches.
# - Each activation and each gradient is sent once, and nothing else is. Sending never holds up a rank's next action.
# - After a backward, input and output of its microbatch are freed. (What is being sent stays until `wait()`, which may be at the
#   end.) Do not mark `inputs`: their gradients would stay in memory.


# %% tags=["demo"]
def by_hand():
    rank = dist.get_rank()
    weight = torch.tensor([2.0, 5.0][rank], requires_grad=True)
    y = torch.empty(1)
    if rank == 0:
        y = weight * torch.tensor([3.0])
        dist.send(y.detach(), 1)
        gradient = torch.empty(1)
        dist.recv(gradient, 1)
        y.backward(gradient)
    else:
        dist.recv(y, 0)
        y.requires_grad_()
        (weight * y).sum().backward()
        dist.send(y.grad, 0)
    return float(weight.grad)


print("gradients of the two weights:", Cluster(2).run(by_hand).results)


# %% nbgrader={"grade": false, "grade_id": "run_row", "locked": false, "schema_version": 3, "solution": true, "task": false}
def run_row(
    row: list[tuple[str, int]],
    stage: torch.nn.Module,
    inputs: list[torch.Tensor],
    targets: list[torch.Tensor],
    loss_fn,
    shape: tuple[int, ...],
) -> float | None:
    """Do this rank's actions; gradients of the mean loss are in the stage's parameters afterwards."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    microbatches = len(row) // 2
    ### BEGIN SOLUTION
    kept, activations, gradients, total = {}, {}, [], 0.0
    ### END SOLUTION
    for kind, i in row:
        if kind == "F":
            x = inputs[i] if rank == 0 else receive(rank - 1, i, shape).requires_grad_()
            ### BEGIN SOLUTION
            output = stage(x)
            if rank < last:
                activations[i] = dist.isend(output.detach(), rank + 1, tag=i)
            else:
                output = loss_fn(output, targets[i]) / microbatches
                total += output.item()
            kept[i] = x, output
            ### END SOLUTION
        else:
            gradient = None if rank == last else receive(rank + 1, i, shape)
            ### BEGIN SOLUTION
            x, output = kept.pop(i)
            if rank < last:
                activations.pop(i).wait()  # it arrived long ago: its gradient is here
            output.backward(gradient)
            if rank > 0:
                gradients.append(dist.isend(x.grad, rank - 1, tag=i))
            ### END SOLUTION
    ### BEGIN SOLUTION
    for work in gradients:
        work.wait()
    return total if rank == last else None
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "run_row_test_values", "locked": true, "points": 13, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("run_row", "gradients and loss", part="values", hidden="other stages, schedules and microbatches"):

    def trains(*texts, samples=2, width=3, seed=0):
        rows, ranks = rows_of(*texts), len(texts)
        microbatches = len(rows[0]) // 2
        run = run_pipeline(Cluster(ranks), run_row, rows, samples, width, seed)
        loss, expected = of_one_process(ranks, microbatches, samples, width, seed)
        last = of_one_process(ranks, microbatches, samples, width, seed, only=microbatches - 1)[1]
        case = f"rows {' | '.join(texts)}"
        for rank, (_, gradients) in enumerate(run.results):
            for name, wanted in expected[rank].items():
                got, what = gradients.get(name), f"gradient of {name} on rank {rank}, {case}"
                check.true(got is not None, f"{what}: there is none; did backward run through this stage?")
                causes = {
                    f"this is the sum over {microbatches} microbatches, not their mean": microbatches * wanted,
                    f"this is the mean divided by {microbatches} once more": wanted / microbatches,
                    "this is the gradient of the last microbatch alone": last[rank][name],
                    "this is the last microbatch's part of the mean alone": last[rank][name] / microbatches,
                }
                cause = next((why for why, slip in causes.items() if alike(got, slip)), "")
                check.close(got, wanted, rtol=1e-4, atol=1e-6, what=what, hint="" if alike(got, wanted) else cause)
        for rank, (got, _) in enumerate(run.results):
            what = f"loss that rank {rank} returns, {case}"
            if rank < ranks - 1:
                check.true(got is None, f"{what}: expected None, since only the last rank has a loss")
                continue
            check.true(type(got) is float, f"{what}: got {type(got).__name__}, expected a float")
            total = math.isclose(got, microbatches * loss, rel_tol=1e-4) and microbatches > 1
            check.close(got, loss, rtol=1e-4, what=what, hint="this is the sum, not the mean" if total else "")

    trains("F0 F1 B0 B1", "F0 F1 B0 B1")
    trains("F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2", seed=1)  # 1F1B
    trains("F0 F1 B0 B1", "F1 F0 B1 B0", seed=2)  # another order on rank 1
    trains("F0 F1 F2 B0 B1 B2", "F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2", samples=1, seed=3)
    trains("F0 B0 F1 B1", seed=4)  # one rank has no neighbours
    ### BEGIN HIDDEN TESTS
    trains("F0 F1 F2 B2 B1 B0", "F0 F1 F2 B2 B1 B0", "F2 F0 F1 B2 B1 B0", samples=3, width=4, seed=2236067977)
    four = ["F0 F1 F2 F3 B0 F4 B1 B2 B3 B4", "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4", "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4"]
    trains(*four, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4", samples=1, width=2, seed=2828427124)
    trains("F0 B0", "F0 B0", samples=1, width=5, seed=3741657386)
    trains("F0 F1 B0 B1", "F0 B0 F1 B1", seed=4294967291)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "run_row_test_traffic", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("run_row", "what is sent, and how long it takes", part="traffic", hidden="other sizes"):

    def sends(ranks, microbatches, samples, width, seed=0):
        """GPipe: with it the time has a closed form, with transfers too."""
        words = [[f"{kind}{i}" for i in range(microbatches)] for kind in "FB"]
        rows = rows_of(*[" ".join(words[0] + words[1])] * ranks)
        run = run_pipeline(Cluster(uniform(ranks, LATENCY, BANDWIDTH)), run_row, rows, samples, width, seed)
        case = f"GPipe, {ranks} ranks, {microbatches} microbatches of {samples * width * 4:,} bytes"
        require_computed(run, of_one_process(ranks, microbatches, samples, width, seed)[1], case)
        for rank in range(ranks):
            for other in range(ranks):
                wanted = microbatches * samples * width * 4 if abs(rank - other) == 1 else 0
                got, why = run.bytes[rank][other], ""
                if wanted and got != wanted:
                    way = "gradients" if other < rank else "activations"
                    why = f"that is {got / wanted:g} times the {way} of {microbatches} microbatches"
                check.equal(got, wanted, what=f"bytes from rank {rank} to rank {other}, {case}", hint=why)
        sent = sum(bool(message.size) for message in run.messages)
        check.equal(sent, 2 * (ranks - 1) * microbatches, what=f"messages, {case}")
        charged = sum(span.end - span.start for span in run.spans if span.what in ("forward", "backward"))
        work = microbatches * (FORWARD + BACKWARD)
        check.close(charged, ranks * work, rtol=1e-9, unit="s", what=f"computation that all ranks charged, {case}")
        transfer = LATENCY + samples * width * 4 / BANDWIDTH
        expected = work + (ranks - 1) * (FORWARD + BACKWARD + 2 * transfer)
        slower = "a rank waited for its own sends before it went on" if run.seconds > expected * (1 + 1e-9) else ""
        check.close(run.seconds, expected, rtol=1e-9, unit="s", what=f"the step, {case}", hint=slower)

    sends(2, 3, 32, 8)
    sends(3, 2, 256, 32)
    ### BEGIN HIDDEN TESTS
    sends(4, 3, 100, 50, seed=2236067982)
    sends(1, 2, 4, 4, seed=2449489745)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "run_row_test_memory", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("run_row", "the order of the row, and what is kept", part="memory", hidden="other rows"):

    def keeps(*texts, mebibytes, seed=0):
        """The stages hold so many MiB for each microbatch in flight; memory is measured from outside the ranks."""
        rows, ranks = rows_of(*texts), len(texts)
        run = run_pipeline(Cluster(ranks), run_row, rows, 1, 2, seed, mebibytes, memory=True)
        require_computed(run, of_one_process(ranks, len(rows[0]) // 2, 1, 2, seed)[1], f"rows {' | '.join(texts)}")
        for rank, row in enumerate(rows):
            kinds = "".join(kind for kind, _ in row)
            what = f"rank {rank} with the row {texts[rank]}"
            work = sorted(span for span in run.spans if span.rank == rank and span.what in ("forward", "backward"))
            done = "".join(span.what[0].upper() for span in work)
            check.equal(done, kinds, what=f"forwards and backwards in the order in which the stage did them, {what}")
            peak = max(kinds[:end].count("F") - kinds[:end].count("B") for end in range(len(kinds) + 1))
            # 20 MiB for libraries that a rank uses for the first time, if the kernel cannot map them before
            took, allowed = run.memory[rank] / 2**20, mebibytes * peak + 20
            check.true(
                took < allowed,
                f"{what}, {mebibytes} MiB per microbatch: it took {took:.0f} MiB, where {peak} in flight need "
                f"{mebibytes * peak}: after its backward, something of a microbatch was kept",
            )

    def frees(*texts, mebibytes, seed=0):
        """The rows of activations are wide. Sent tensors may stay until the end, and nothing else."""
        rows, last = rows_of(*texts), len(texts) - 1
        microbatches, generator = len(rows[0]) // 2, torch.Generator().manual_seed(seed)
        weights = 1 + torch.rand(last + 1, 4, 1, generator=generator)
        inputs, targets = (list(torch.rand(microbatches, 4, 1, generator=generator)) for _ in range(2))
        served = {
            "weight": lambda rank: weights[rank],
            "data": lambda rank: (inputs if rank == 0 else [], targets if rank == last else []),
        }
        run = on_cluster(Cluster(last + 1), pipelined_wide, run_row, rows, mebibytes, memory=True, served=served)
        outputs = sum(inputs) * weights.prod(0) / (4 * microbatches)
        for rank, (got, marked) in enumerate(run.results):
            what = f"rank {rank} with activations of {mebibytes} MiB"
            check.computed([got], [outputs / weights[rank]], what)
            why = "their gradients stay in memory, and nobody needs them"
            check.equal(marked, [], what=f"inputs with requires_grad after the call, {what}", hint=why)
        took, sent = run.memory[last] / 2**20, mebibytes * microbatches
        check.true(
            took < 1.5 * sent + 4 * mebibytes,
            f"rank {last} with the row {texts[last]}, activations of {mebibytes} MiB: it took {took:.0f} MiB. One microbatch is "
            f"in flight, and the gradients sent are {sent} MiB: after its backward, input or output of a microbatch was kept",
        )

    keeps("F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3", mebibytes=32)
    frees(*[" ".join(f"F{i} B{i}" for i in range(8))] * 2, mebibytes=4)
    ### BEGIN HIDDEN TESTS
    keeps("F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B1 F2 B0 F3 B2 B3", mebibytes=36, seed=2645751314)
    frees(*[" ".join(f"F{i} B{i}" for i in range(6))] * 2, mebibytes=5, seed=2828427128)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "run_row",
    "Keep the input and the output of each microbatch in a dict, from its forward until its backward, which pops them.",
    "On the last rank the output is the loss, divided by the number of microbatches: `len(row) // 2`. Its backward gets no gradient.",
    "Send `output.detach()` with `isend` and keep the handle. When the gradient of microbatch i has come, its activation has "
    "arrived: wait for that handle then, which frees it. Wait for the other handles at the end.",
    "Use `tag=i` in every `isend`, as `receive` does. Then the order in which ranks ask does not matter.",
)


def send_first():
    other = 1 - dist.get_rank()
    dist.send(torch.ones(1), other)
    dist.recv(torch.empty(1), other)


with reveal("sends"):
    try:
        Cluster(2).run(send_first)
    except Deadlock as error:
        print(error)
    show.against_prediction("sends", "both wait forever", source="the virtual cluster; gloo waits as well")
debrief(
    "run_row",
    """In the middle of 1F1B two neighbours both have something for each other: one an activation, the other a gradient. If both
    used `dist.send`, both would wait forever, as in the message above. On a real machine this may show up only when tensors become
    large, since small messages often fit into a buffer. We used `isend` with tags. NCCL ignores tags: there, the messages of two
    ranks match in the order of the calls, so neighbours must agree on it, and Megatron-LM sends and receives in one batched call.

    `run_row` knows nothing about GPipe or 1F1B. Each is a list, and the same few lines run both.

    A rank keeps a microbatch's input and output, and autograd keeps what lies between, until backward frees it. The peak
    can be read off the row before anything runs.""",
    parts=("values", "traffic", "memory"),
)

# %% [markdown]
# ## 4 · Predict the step
#
# With equal stages and free transfers one formula was enough. Real stages differ, because the first has the embedding and the
# last has the loss, and messages take time. But all that a step does is in its schedule, so we can compute when each action
# begins and ends.
#
# *Worked example.* 2 ranks with the rows `F0 F1 B0 B1` and `F0 B0 F1 B1`, forward 1, backward 2, and a transfer takes ½. Rank 0 does F0
# until 1 and F1 until 2. F0 is on rank 1 at 1½: it does F0 until 2½ and B0 until 4½. F1 arrived at 2½ and waited for the
# rank, which does it until 5½, and B1 until 7½. Rank 0 gets the gradient of microbatch 0 at 5, and does B0 until 7. That of
# microbatch 1 arrives at 8, so B1 is done at 10. The ends are `[[1, 2, 7, 10], [2.5, 4.5, 5.5, 7.5]]`.
#
# ### Exercise 4 (28 points)
#
# `simulate(schedule, forward, backward, transfer)` returns when each action ends: a list per rank, in the order of its row.
#
# - `forward[r]` and `backward[r]` are the seconds of an action on rank r. A rank does its row in order, one action at a
#   time, each as soon as it can. `schedule` stays as it is.
# - `("F", i)` on rank r needs the result of `("F", i)` on rank r − 1, and `("B", i)` that of `("B", i)` on rank r + 1. It arrives `transfer` seconds after the
#   end of the action that made it. Transfers cost the ranks no time, and never wait for one another.
# - If ranks would wait forever, raise a `RuntimeError` that names the blocked action of each waiting rank, and no
#   others, as in `rank 1: B0`.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "slow",
    "1F1B, 4 ranks, 16 microbatches. The last stage becomes twice as slow. How many times as long is the step?",
    unit="×",
)


# %% nbgrader={"grade": false, "grade_id": "simulate", "locked": false, "schema_version": 3, "solution": true, "task": false}
def simulate(
    schedule: list[list[tuple[str, int]]], forward: list[float], backward: list[float], transfer: float
) -> list[list[float]]:
    """Compute when each action ends, in seconds."""
    ### BEGIN SOLUTION
    ends, done, going_on = [[] for _ in schedule], {}, True
    while going_on:
        going_on = False
        for rank, row in enumerate(schedule):
            while len(ends[rank]) < len(row):
                kind, i = row[len(ends[rank])]
                source = rank - 1 if kind == "F" else rank + 1
                start = ends[rank][-1] if ends[rank] else 0.0
                if 0 <= source < len(schedule):
                    if (kind, i, source) not in done:
                        break
                    start = max(start, done[kind, i, source] + transfer)
                end = start + (forward if kind == "F" else backward)[rank]
                done[kind, i, rank] = end
                ends[rank].append(end)
                going_on = True
    stuck = [
        f"rank {rank}: {row[len(ends[rank])][0]}{row[len(ends[rank])][1]}"
        for rank, row in enumerate(schedule)
        if len(ends[rank]) < len(row)
    ]
    if stuck:
        raise RuntimeError(f"waiting forever: {', '.join(stuck)}")
    return ends
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "simulate_test_free", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("simulate", "free transfers", part="free", hidden="other schedules and stages"):

    def ends_at(expected, texts, forward, backward, transfer=0.0):
        got = simulate(rows_of(*texts), forward, backward, transfer)
        case = f"rows {' | '.join(texts)}, forward {forward}, backward {backward}, transfer {transfer}"
        shaped = type(got) in (list, tuple) and [len(row) for row in got] == [len(row) for row in expected]
        check.true(shaped, f"{case}: expected a list per rank with an end for each of its actions")
        places = [(end, rank, number) for rank, row in enumerate(expected) for number, end in enumerate(row)]
        for right, rank, number in sorted(places):  # the first one that is wrong, in time
            what = f"end of {texts[rank].split()[number]} on rank {rank}, {case}"
            check.close(float(got[rank][number]), right, rtol=1e-9, unit="s", what=what)

    ends_at([[1.0, 3.0]], ["F0 B0"], [1.0], [2.0])
    ends_at([[1.0, 2.0, 6.0, 9.0], [2.0, 4.0, 5.0, 7.0]], ["F0 F1 B0 B1", "F0 B0 F1 B1"], [1.0, 1.0], [2.0, 2.0])
    slow = [[1.0, 2.0, 10.0, 17.0], [4.0, 8.0, 11.0, 15.0]]
    ends_at(slow, ["F0 F1 B0 B1", "F0 B0 F1 B1"], [1.0, 3.0], [2.0, 4.0])
    crossed = [[1.0, 2.0, 8.0, 10.0], [3.0, 4.0, 6.0, 8.0]]
    ends_at(crossed, ["F0 F1 B1 B0", "F1 F0 B1 B0"], [1.0, 1.0], [2.0, 2.0])
    schedule, *_ = arguments_after(simulate, rows_of("F0 F1 B0 B1", "F0 B0 F1 B1"), [1.0, 1.0], [2.0, 2.0], 0.0)
    left = [text_of(row) for row in schedule]
    check.equal(left, ["F0 F1 B0 B1", "F0 B0 F1 B1"], what="the schedule after the call, which should not change it")
    gpipe_ends = simulate(rows_of(*["F0 F1 F2 F3 B0 B1 B2 B3"] * 3), [1.0] * 3, [2.0] * 3, 0.0)
    step = max(float(end) for row in gpipe_ends for end in row)
    check.close(step, 18.0, rtol=1e-9, unit="s", what="GPipe with 3 ranks and 4 microbatches, as in section 1")

    ### BEGIN HIDDEN TESTS
    def random_case(rng, transfer):
        """GPipe or something like 1F1B, with microbatches in any order that all ranks share."""
        ranks, count = int(rng.integers(1, 6)), int(rng.integers(1, 8))
        order, slack = [int(i) for i in rng.permutation(count)], int(rng.integers(0, 3))
        texts = []
        for rank in range(ranks):
            ahead = min(count, ranks - rank - 1 + slack)
            words = [f"F{i}" for i in order[:ahead]]
            for place in range(count):
                words += [f"F{i}" for i in order[place + ahead : place + ahead + 1]] + [f"B{order[place]}"]
            texts.append(" ".join(words))
        forward, backward = ([float(x) for x in rng.uniform(0.5, 3, ranks)] for _ in range(2))
        return relaxed(texts, forward, backward, transfer), texts, forward, backward, transfer

    def relaxed(texts, forward, backward, transfer):
        """The longest paths through the graph of what waits for what, found by going over all edges again and again."""
        ends = {(rank, word): 0.0 for rank, text in enumerate(texts) for word in text.split()}
        for _ in range(len(ends)):
            for rank, text in enumerate(texts):
                before = 0.0
                for word in text.split():
                    takes = forward[rank] if word[0] == "F" else backward[rank]
                    there = ends.get((rank + (-1 if word[0] == "F" else 1), word), -transfer) + transfer
                    before = ends[rank, word] = max(before, there) + takes
        return [[ends[rank, word] for word in text.split()] for rank, text in enumerate(texts)]

    for seed in range(8):
        ends_at(*random_case(check.rng(seed), 0.0))
    tiny = [[1e-10, 2e-10, 6.2e-10, 9.3e-10], [2.1e-10, 4.1e-10, 5.2e-10, 7.2e-10]]
    ends_at(tiny, ["F0 F1 B0 B1", "F0 B0 F1 B1"], [1e-10, 1.1e-10], [2.1e-10, 2e-10])
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "simulate_test_transfers", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("simulate", "transfers that take time", part="transfers", hidden="other schedules, stages and transfers"):

    def ends_after(expected, texts, forward, backward, transfer):
        got = simulate(rows_of(*texts), forward, backward, transfer)
        case = f"rows {' | '.join(texts)}, forward {forward}, backward {backward}, transfer {transfer}"
        shaped = type(got) in (list, tuple) and [len(row) for row in got] == [len(row) for row in expected]
        check.true(shaped, f"{case}: expected a list per rank with an end for each of its actions")
        places = [(end, rank, number) for rank, row in enumerate(expected) for number, end in enumerate(row)]
        for right, rank, number in sorted(places):  # the first one that is wrong, in time
            what = f"end of {texts[rank].split()[number]} on rank {rank}, {case}"
            check.close(float(got[rank][number]), right, rtol=1e-9, unit="s", what=what)

    worked = [[1.0, 2.0, 7.0, 10.0], [2.5, 4.5, 5.5, 7.5]]
    ends_after(worked, ["F0 F1 B0 B1", "F0 B0 F1 B1"], [1.0, 1.0], [2.0, 2.0], 0.5)
    middle = [[1.0, 2.0, 13.0, 16.0], [3.25, 5.25, 10.75, 13.75], [4.5, 6.5, 7.5, 8.5]]
    ends_after(middle, ["F0 F1 B0 B1"] * 3, [1.0, 2.0, 1.0], [2.0, 3.0, 1.0], 0.25)
    ends_after([[2.0, 5.0]], ["F0 B0"], [2.0], [3.0], 7.0)  # one rank transfers nothing
    # two activations are on the way at once, and so are two gradients: neither waits for the other
    at_once = [[1.0, 2.0, 17.0, 19.0], [7.0, 8.0, 10.0, 12.0]]
    ends_after(at_once, ["F0 F1 B0 B1"] * 2, [1.0] * 2, [2.0] * 2, 5.0)

    ### BEGIN HIDDEN TESTS
    def longest_paths(texts, forward, backward, transfer):
        ends = {(rank, word): 0.0 for rank, text in enumerate(texts) for word in text.split()}
        for _ in range(len(ends)):
            for rank, text in enumerate(texts):
                before = 0.0
                for word in text.split():
                    takes = forward[rank] if word[0] == "F" else backward[rank]
                    there = ends.get((rank + (-1 if word[0] == "F" else 1), word), -transfer) + transfer
                    before = ends[rank, word] = max(before, there) + takes
        return [[ends[rank, word] for word in text.split()] for rank, text in enumerate(texts)]

    for seed in range(20, 32):
        rng = check.rng(seed)
        ranks, count = int(rng.integers(2, 6)), int(rng.integers(1, 9))
        texts = []
        for rank in range(ranks):
            ahead = min(count, ranks - rank - 1 + seed % 3)
            words = [f"F{i}" for i in range(ahead)]
            for place in range(count):
                words += [f"F{place + ahead}"] * (place + ahead < count) + [f"B{place}"]
            texts.append(" ".join(words))
        forward, backward = ([float(x) for x in rng.uniform(0.5, 3, ranks)] for _ in range(2))
        transfer = float(rng.uniform(0, 2))
        ends_after(longest_paths(texts, forward, backward, transfer), texts, forward, backward, transfer)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "simulate_test_stuck", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("simulate", "ranks that wait forever", part="stuck", hidden="other schedules"):

    def waits_forever(named, *texts):
        what = f"rows {' | '.join(texts)} can never be finished: expected a RuntimeError with {' and '.join(named)}"
        said = ""
        try:
            simulate(rows_of(*texts), [1.0] * len(texts), [2.0] * len(texts), 0.0)
        except NotImplementedError:
            raise
        except RuntimeError as error:
            said = str(error)
        except Exception as error:
            check.true(False, f"{what}; it raised {type(error).__name__}: {error}")
        else:
            check.true(False, f"{what}; it raised nothing")
        check.true(all(name in said for name in named), f"{what}; its message is: {said}")
        every = {f"rank {rank}: {word}" for rank, text in enumerate(texts) for word in text.split()}
        wrong = sorted(name for name in every.difference(named) if name in said)
        check.true(not wrong, f"{what} and no others, but it names {', '.join(wrong)}; its message is: {said}")

    waits_forever(["rank 0: B0", "rank 1: F1"], "F0 B0 F1 B1", "F0 F1 B0 B1")
    waits_forever(["rank 1: F1"], "F0 B0", "F0 B0 F1 B1")  # rank 0 never does F1
    waits_forever(["rank 0: B1"], "F0 F1 B0 B1", "F0 B0 F1")  # rank 1 never does B1, and is done
    ### BEGIN HIDDEN TESTS
    waits_forever(
        ["rank 0: B0", "rank 1: B0", "rank 2: F2"], "F0 F1 B0 F2 B1 B2", "F0 F1 B0 F2 B1 B2", "F0 F1 F2 B0 B1 B2"
    )
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "simulate",
    "Keep a dict with the end of every action that is done, by kind, microbatch and rank.",
    "Go over the ranks again and again, and let each do actions until one needs something that is not in the dict yet.",
    "An action starts at the later of two times: the end of the one before it in its row, and the arrival of what it needs.",
    "If no rank got anything done in a whole round, and rows are left, those ranks wait forever.",
)


def measured_step(schedule, forward, backward, values):
    """One step on the virtual cluster, with the course's runtime: when each action of this rank ended."""
    stages = {rank: torch.nn.Linear(values, values, bias=False) for rank in schedule.stages_of(dist.get_rank())}
    inputs = targets = [torch.ones(1, values)] * schedule.microbatches
    durations = Durations(forward=forward, backward=backward)
    step = run_schedule(schedule, stages, inputs, targets, cross_entropy, torch.empty(1, values), durations=durations)
    return [each.end for each in step.row]


def yours_ends(schedule, *arguments):
    try:
        return max(
            end
            for row in simulate([[(a.kind, a.microbatch) for a in row] for row in schedule.rows], *arguments)
            for end in row
        )
    except NotImplementedError:
        return None


with reveal("slow"):
    tail = [FORWARD, FORWARD, FORWARD, 2 * FORWARD]
    usual, slowed = (
        course_simulate(course_1f1b(4, 16), Durations(forward=f, backward=[2 * x for x in f])).seconds
        for f in ([FORWARD] * 4, tail)
    )
    show.against_prediction("slow", round(slowed / usual, 2), unit="×", source="simulated")
    both = {
        name: course_simulate(course_1f1b(4, 8), Durations(forward=f, backward=[2 * x for x in f]))
        for name, f in (("equal stages", [FORWARD] * 4), ("last stage twice as slow", tail))
    }
    show.figure(
        draw_flight(both, max(each.seconds for each in both.values()), whole=True),
        "with 8 microbatches: the other ranks wait for a slow last stage in every microbatch",
    )
cases = {
    "GPipe, equal stages": (course_gpipe(4, 8), [1e-3] * 4),
    "1F1B, equal stages": (course_1f1b(4, 8), [1e-3] * 4),
    "1F1B, a slow first stage": (course_1f1b(4, 8), [1.7e-3, 1e-3, 1e-3, 1e-3]),
    "1F1B, a slow last stage": (course_1f1b(4, 8), [1e-3, 1e-3, 1e-3, 1.7e-3]),
}
table = []
for name, (schedule, seconds) in cases.items():
    twice, transfer = [2 * each for each in seconds], LATENCY + 4 * 256 / BANDWIDTH
    predicted = yours_ends(schedule, seconds, twice, transfer)
    run = Cluster(uniform(4, LATENCY, BANDWIDTH)).run(measured_step, schedule, seconds, twice, 256)
    measured = max(end for row in run.results for end in row)
    table.append((name, "not yet" if predicted is None else f"{1e3 * predicted:.6f}", f"{1e3 * measured:.6f}"))
show.table(
    table,
    header=("", "predicted by your simulate, ms", "measured on the virtual cluster, ms"),
    caption="4 ranks, 8 microbatches, messages of 1 KiB",
)
debrief(
    "simulate",
    """Prediction and measurement agree to the last digit, because both contain the same things: rows in order, durations, and transfers.
    In the table, 1F1B takes longer than GPipe. GPipe's ranks have further microbatches to do while a message is on its way. A rank
    of 1F1B alternates between a forward and a backward that it must wait for, so it pays for transfers in every round.
    On a real machine kernels vary and transfers share links, so a difference there means that the step contains something
    that your model does not.

    If one stage is twice as slow, the others wait for it in every microbatch, and the step tends to twice its length. A step
    is about m times its slowest stage, plus a bubble.

    The longest chain of actions that wait for one another is called the **critical path**. To shorten a step, shorten
    an action on it.""",
    parts=("free", "transfers", "stuck"),
)

# %% [markdown]
# ## 5 · Decide
#
# With N GPUs, a pipeline of p stages leaves room for N/p copies of it, which share the batch (*data parallelism*). Fewer stages make
# a smaller bubble, but each GPU then holds more layers. Activations can be **recomputed**: a stage keeps only its input, and does its
# forward again before its backward. That costs a third more time: a forward and a backward take 4 units then, not 3.
#
# A `Job` has `gpus`, `samples` (per step), `layers`, `forward` (seconds per sample and layer), `overhead` (seconds per microbatch and
# stage), `states` (bytes per layer), `activations` (bytes per sample and layer) and `boundary` (bytes per sample that a stage gets).
#
# For a microbatch of b samples, p stages and m microbatches per copy, with `L = layers / p` layers per stage:
#
# - A forward and backward take t = `overhead` + 3 · b · L · `forward` on a stage, with recomputation 4 instead of 3. A step takes
#   (m + p − 1) · t.
# - Rank 0 has the most microbatches in flight, min(p, m). The given `memory_of(job, plan)` returns the bytes that it needs. With
#   recomputation these are the inputs of all microbatches in flight, and the activations of one.
#
# *Worked example.* 4 GPUs, 16 samples, 8 layers; 1 ms `forward`, 2 ms `overhead`; 2, ½ and 1/16 GB of `states`, `activations` and
# `boundary`. Two stages: 2 copies with 8 samples each, for example m = 8 with b = 1. Then t = 2 + 3 · 4 · 1 = 14 ms, the step takes 9 · 14 =
# 126 ms, and rank 0 needs 4 · 2 + 2 · 4 · ½ = 12 GB.
#
# ### Exercise 5 (14 points)
#
# `choose_plan(job, memory) -> Plan` returns the `Plan(stages, microbatches, recompute)` with the shortest step that fits into `memory`
# bytes per GPU.
#
# - `stages` divides `gpus` and `layers`; the copies share `samples` equally; `microbatches` divides the samples of a copy.
# - Exactly `memory` bytes still fit. If no plan fits, raise a `ValueError` with the memory, as in `memory = 1`.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "plan",
    "64 GPUs with 44 GB, 512 samples per step, 64 layers with 4 GB of states each. 1 ms of `forward` and 1 ms of `overhead`, ½ GB of "
    "`activations`, 20 MB of `boundary`. Which plan has the shorter step?",
    options=("8 stages, everything recomputed", "32 stages, nothing recomputed"),
)
myth("pipe-2")
myth("pipe-3")


# %% nbgrader={"grade": false, "grade_id": "choose_plan", "locked": false, "schema_version": 3, "solution": true, "task": false}
def choose_plan(job: Job, memory: float) -> Plan:
    """The plan with the shortest step that fits."""
    ### BEGIN SOLUTION
    found = []
    for stages in range(1, job.gpus + 1):
        if job.gpus % stages or job.layers % stages or job.samples % (job.gpus // stages):
            continue
        own, layers = job.samples // (job.gpus // stages), job.layers // stages
        for microbatches in range(1, own + 1):
            if own % microbatches:
                continue
            size = own // microbatches
            for recompute in (False, True):
                seconds = job.overhead + (4 if recompute else 3) * size * layers * job.forward
                if memory_of(job, Plan(stages, microbatches, recompute)) <= memory:
                    found.append(((microbatches + stages - 1) * seconds, stages, microbatches, recompute))
    if not found:
        raise ValueError(f"memory = {memory} bytes: no plan fits")
    return Plan(*min(found)[1:])
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "choose_plan_test_choice", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose_plan", "the plan with the shortest step", part="choice", hidden="other jobs"):
    GB = 1e9
    worked = Job(4, 16, 8, 1e-3, 2e-3, 2 * GB, GB / 2, GB / 16)

    def chooses(expected, job, memory, why=""):
        plan = choose_plan(job, memory)
        check.true(type(plan).__name__ == "Plan", f"expected a Plan, got {type(plan).__name__}")
        got, wanted = (
            f"{stages} stages, {microbatches} microbatches, {'recomputed' if recompute else 'not recomputed'}"
            for stages, microbatches, recompute in ((plan.stages, plan.microbatches, plan.recompute), expected)
        )
        check.equal(got, wanted, what=f"plan for {memory / GB:g} GB{f' ({why})' if why else ''} and {job}")

    chooses((2, 8, False), worked, 12 * GB, "exactly 12 GB fit")
    chooses((4, 16, False), worked, 11.9 * GB, "two stages do not fit any more")
    chooses((4, 16, True), worked, 5.5 * GB, "only with recomputation")
    chooses((1, 4, False), worked, 20 * GB, "four copies of the whole model")
    slow_start = Job(4, 16, 8, 1e-3, 10e-3, 2 * GB, GB / 2, GB / 16)
    chooses((2, 4, False), slow_start, 16 * GB, "with more overhead larger microbatches are better")
    chooses((1, 1, False), worked, 40 * GB, "all samples of a copy at once")
    chooses((4, 8, True), slow_start, 8 * GB, "larger microbatches fit with recomputation")
    chooses((4, 16, True), slow_start, 6 * GB, "the microbatch that is recomputed needs all of its activations")
    chooses((2, 8, False), Job(4, 16, 6, 1e-3, 2e-3, 2 * GB, GB / 2, GB / 16), 11 * GB, "4 does not divide 6 layers")
    chooses((2, 8, True), Job(4, 16, 6, 1e-3, 2e-3, 2 * GB, GB / 2, GB / 16), 8 * GB, "4 does not divide 6 layers")
    chooses(
        (2, 3, False), Job(4, 6, 8, 1e-3, 2e-3, 2 * GB, GB / 2, GB / 16), 40 * GB, "4 copies cannot share 6 samples"
    )
    chooses((4, 6, False), Job(4, 6, 12, 1e-3, 20e-3, 2 * GB, GB / 2, GB / 16), 13 * GB, "3 does not divide 4 GPUs")
    few = Job(8, 8, 8, 1e-3, 20e-3, 2 * GB, GB / 2, GB / 16)
    chooses((4, 2, True), few, 6.25 * GB, "with 2 microbatches on 4 stages, 2 are in flight")

    ### BEGIN HIDDEN TESTS
    def best(job, memory):
        plans = [
            (p, m, again) for p in range(1, job.gpus + 1) for m in range(1, job.samples + 1) for again in (True, False)
        ]
        found = (math.inf, None)
        for p, m, again in plans:
            copies = job.gpus / p
            samples, depth = job.samples / copies, job.layers / p
            b = samples / m
            if not all(float(x).is_integer() for x in (copies, depth, samples, b)):
                continue
            one = b * depth * job.activations
            held = min(p, m) * b * job.boundary + one if again else min(p, m) * one
            t = (m + p - 1) * (job.overhead + (3 + again) * b * depth * job.forward)
            if depth * job.states + held <= memory * (1 + 1e-12):
                found = min(found, (t, (p, m, again)))
        return found[1]

    tried = 0
    for seed in range(40):
        rng = check.rng(seed)
        sizes = [int(rng.choice(each)) for each in ([4, 6, 8, 16], [12, 16, 24, 48], [8, 12, 24, 36])]
        job = Job(*sizes, *(float(x) for x in rng.uniform((1e-3, 1e-4, 1e9, 1e8, 1e7), (5e-3, 1e-1, 4e9, 9e8, 9e7))))
        memory = float(rng.uniform(4, 40)) * GB
        if (plan := best(job, memory)) is not None:
            tried += 1
            chooses(plan, job, memory)
    assert tried > 20
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "choose_plan_test_edges", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose_plan", "nothing fits", part="edges", hidden="other jobs"):
    job = Job(4, 16, 8, 1e-3, 2e-3, 2e9, 0.5e9, 62.5e6)
    check.raises(ValueError, choose_plan, job, 1, names=("memory = 1",))
    check.raises(ValueError, choose_plan, job, 5_200_000_000, names=("memory = 5",))  # in any notation
    check.accepts(choose_plan, job, 40_000_000_000)
    ### BEGIN HIDDEN TESTS
    check.raises(ValueError, choose_plan, Job(2, 5, 3, 1e-3, 0.0, 1.0, 1.0, 1.0), 2, names=("memory = 2",))
    check.accepts(choose_plan, Job(1, 5, 3, 1e-3, 0.0, 1.0, 1.0, 1.0), 1e9)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "choose_plan",
    "Three nested loops: stages, microbatches, and whether to recompute. Skip what does not divide.",
    "Keep the seconds and the plan of whatever fits, and take the one with the least seconds at the end.",
    "`b = samples of a copy // microbatches`. `memory_of` takes a `Plan`, so make one for each combination.",
)


def on_64(stages, recompute, microbatches, samples=512):
    """Milliseconds and GB: 64 layers of 1 ms and 4 GB each, 0.5 GB of activations, 20 MB at a boundary, 1 ms of overhead."""
    size, layers = samples * stages // 64 // microbatches, 64 // stages
    full = size * layers * 0.5
    kept = min(stages, microbatches) * size * 0.02 + full if recompute else min(stages, microbatches) * full
    return (microbatches + stages - 1) * (1 + (4 if recompute else 3) * size * layers), layers * 4 + kept


with reveal("plan"):
    rows, best = [], {}
    for stages in (4, 8, 16, 32, 64):
        for recompute in (True, False):
            counts = [m for m in range(1, 8 * stages + 1) if 8 * stages % m == 0]
            fitting = [(on_64(stages, recompute, m)[0], m) for m in counts if on_64(stages, recompute, m)[1] <= 44]
            if fitting:
                ms, m = min(fitting)
                size = on_64(stages, recompute, m)[1]
                rows.append((stages, 64 // stages, "yes" if recompute else "no", m, f"{size:.1f}", f"{ms:,.0f}"))
    header = ("stages", "copies", "recomputed", "microbatches per copy", "GB per GPU", "ms per step")
    show.table(
        rows,
        header=header,
        caption="64 GPUs with 44 GB, 512 samples per step: the best number of microbatches of each plan",
    )
    show.against_prediction("plan", "32 stages, nothing recomputed", source="model")
debrief(
    "choose_plan",
    """There are two ways to make room: more stages, or recomputation. With one sample per microbatch, S samples on N GPUs
    take (S/N + 1 − 1/p) · `layers` forwards and backwards, plus overhead. Beyond a few stages, adding more costs
    little except overhead, while recomputation adds a third to everything except the overhead. That is why 32 stages win here. It is
    the other way round if `overhead` is large (3 ms are enough), or if recomputation makes the pipeline unnecessary and
    each GPU has only one or two samples.

    The model leaves out the all-reduce between the copies, which more stages make shorter, and the transfers between
    stages, which grow in number. The searches that people run before a large training look like yours, with more
    terms.""",
    parts=("choice", "edges"),
)
audit(
    "pipe-2",
    5.47,
    "GB",
    "model",
    "corrected",
    how="175e9 parameters · 2 bytes ÷ (8 · 8) = 5.47 GB: tensor and pipeline parallelism both divide the weights. 350 GB ÷ 8 = 43.75 GB counts one of the two. It is also what all states take with mixed-precision Adam: 16 bytes per parameter ÷ 64",
)
audit(
    "pipe-3",
    64,
    "microbatches per step",
    "model",
    "corrected",
    how="each of 8 copies sends 8 microbatches through all of its 8 stages: the batch is 8 · 8 microbatches, times the samples in one. Stages divide the model, not the batch, so they do not count. With 8 microbatches on 8 stages, 47% of the step is bubble",
)

# %% [markdown]
# ## 6 · Plan, predict, train
#
# Now your pieces work together. A job needs a plan for 4 GPUs of 4 GB (`choose_plan`), and a bubble of at most 20%
# (`microbatches_for`). `one_f_one_b` writes the schedule, `simulate` predicts the step, and `run_row` trains three steps with
# SGD on the virtual cluster. Does each step take as long as predicted, and are the losses those of one process?

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.lab.drawings import timeline_of

TO_PLAN = Job(4, 24, 4, 0.4e-3, 0.6e-3, 2e9, 0.2e9, 1e6)


def train(rows, run_row, steps=3):
    """Losses of the last rank, and when this rank was done with each step."""
    rank, ranks, losses, ended = dist.get_rank(), dist.get_world_size(), [], []
    stage = Stage(rank, 4, 0)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.3)
    inputs, targets = data_of(len(rows[0]) // 2, 2, 4, 0)
    for step in range(steps):
        advance_to(0.1 * step)
        optimizer.zero_grad()
        data = inputs if rank == 0 else [], targets if rank == ranks - 1 else []
        losses.append(run_row(rows[rank], stage, *data, cross_entropy, (2, 4)))
        ended.append(now() - 0.1 * step)
        optimizer.step()
    return losses, ended


def train_alone(ranks, microbatches, steps=3):
    """The same training in one process, with the whole batch at once."""
    model = torch.nn.Sequential(*(Stage(rank, 4, 0) for rank in range(ranks)))
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.3), []
    inputs, targets = (torch.cat(each) for each in data_of(microbatches, 2, 4, 0))
    for _ in range(steps):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def library_rows(ranks, microbatches):
    return [[(action.kind, action.microbatch) for action in row] for row in course_1f1b(ranks, microbatches).rows]


PIECES = "choose_plan", "microbatches_for", "one_f_one_b", "simulate", "run_row"
if parts := together(*PIECES, library={"one_f_one_b": library_rows}):
    plan, fewest = parts.choose_plan(TO_PLAN, 4e9), parts.microbatches_for(4, 0.2)
    print(f"{plan}; a bubble of at most 20% on 4 stages needs {fewest} microbatches or more")
    rows = parts.one_f_one_b(plan.stages, plan.microbatches)
    seconds = [FORWARD] * plan.stages, [BACKWARD] * plan.stages
    ends = parts.simulate(rows, *seconds, LATENCY + 4 * 2 * 4 / BANDWIDTH)
    run = Cluster(uniform(plan.stages, LATENCY, BANDWIDTH)).run(train, rows, parts.run_row)
    alone = train_alone(plan.stages, plan.microbatches)
    took = [1e3 * max(ended[step] for _, ended in run.results) for step in range(3)]
    show.table(
        [
            ("loss, 4 stages", *(f"{loss:.6f}" for loss in run.results[-1][0])),
            ("loss, one process", *(f"{loss:.6f}" for loss in alone)),
            ("ms, measured", *(f"{ms:.6f}" for ms in took)),
            ("ms, predicted", *[f"{1e3 * max(row[-1] for row in ends):.6f}"] * 3),
        ],
        header=("", "step 1", "step 2", "step 3"),
        caption=f"{plan.stages} stages, {plan.microbatches} microbatches of 2 samples",
    )
    spans = [[s for s in run.spans if s.rank == rank and s.start < 0.1] for rank in range(plan.stages)]
    measured = [[s.end for s in sorted(row) if s.what in ("forward", "backward")] for row in spans]
    both = {name: timeline_of(rows, at, *seconds) for name, at in (("predicted", ends), ("measured", measured))}
    show.figure(
        draw_flight(both, both["measured"].seconds, whole=True), "your prediction of the step, and the step as it ran"
    )

# %% [markdown]
# ## In practice
#
# `torch.distributed.pipelining` has what you have built: `PipelineStage` wraps a rank's layers, and a schedule class,
# such as `Schedule1F1B` or `ScheduleInterleavedZeroBubble`, runs microbatches through it; its schedules are lists of
# actions too. The last cell runs two steps of it on the virtual cluster. Before the first step it runs a forward and
# a backward to find out the shapes of the activations. The second takes as long as a simulation says. Pipelines
# send little, an activation and a gradient per microbatch and boundary, so they can span nodes, while tensor parallelism
# stays inside one.
#
# | | Megatron-Core 0.19 | TorchTitan 0.3 |
# |---|---|---|
# | stages | `--pipeline-model-parallel-size` | `--parallelism.pipeline_parallel_degree` |
# | schedule | 1F1B; interleaved (dives) with `--num-layers-per-virtual-pipeline-stage` | `--parallelism.pipeline_parallel_schedule` |
# | balance | `--pipeline-model-parallel-layout` | `--parallelism.module_fqns_per_model_part` |
#
# ## What to remember
#
# - The bubble is (p − 1)/(m + p − 1) of a step with equal stages, whatever forward and backward take.
# - If transfers are free, 1F1B takes as long as GPipe, and rank r keeps p − r microbatches instead of m.
# - A schedule is data. With the durations and the transfers, it gives the length of a step before it runs.
# - The slowest stage sets the pace: balance first.
# - Neighbours that both send first may wait forever: use `isend` or batched calls.
#
# The deep dives (`12_pipeline_parallel_dives.ipynb`) balance the stages, make the bubble smaller still, and combine the pipeline with data and tensor parallelism.
#
# ## Reflection
#
# A step on 16 stages takes 30% longer than your simulation said. Which two or three measurements would tell you why, and what
# would you change in each case? A paragraph is enough.

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# I would measure forward and backward on every stage (the slowest one, and whether it is always the same), the time that a
# message between neighbours takes while both directions are busy, and how long each rank waits at each receive. If one stage is slower than
# assumed, I would move a layer away from it. If all waits are a little longer, transfers are not free: prefetch the
# receive, or use fewer, larger microbatches. If the waits vary from step to step, some rank or link is noisy, and the
# schedule is not to blame.


# %% tags=["demo"] jupyter={"source_hidden": true}
def torchs_steps(microbatches):
    """Two steps of torch's 1F1B on the lab's stages: when they ended, and the gradient after the first."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(Stage(rank, 4, 0), rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=microbatches, loss_fn=cross_entropy)
    inputs, targets = (torch.cat(each) for each in data_of(microbatches, 2, 4, 0))
    ended, gradients = [], []
    for step in range(2):
        advance_to(0.1 * step)
        stage.submod.zero_grad()
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets)
        ended.append(now() - 0.1 * step)
        gradients.append(stage.submod.weight.grad)
    return ended, gradients[-1]


run = Cluster(uniform(4, LATENCY, BANDWIDTH)).run(torchs_steps, 8)
first, second = (1e3 * max(ended[step] for ended, _ in run.results) for step in range(2))
simulated = 1e3 * course_simulate(course_1f1b(4, 8), ONE_TWO, LATENCY + 4 * 2 * 4 / BANDWIDTH).seconds
print(f"torch's Schedule1F1B: {first:.6f} ms, and the second step {second:.6f} ms; simulated: {simulated:.6f} ms")
wanted = of_one_process(4, 8, 2, 4, 0)[1]
error = max(float((run.results[rank][1] - wanted[rank]["weight"]).abs().max()) for rank in range(4))
print(f"its gradients differ from those of one process by at most {error:.1e}")
term("bubble")
term("1F1B")
calibration()
