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
#     title: How do several GPUs share one layer?
#     minutes: 190
#     withholds: [threeloops.training.tensor_parallel, threeloops.training.expert_parallel, threeloops.training.context_parallel, threeloops.training.mesh, threeloops.training.composition, threeloops.lab.drawings]
#     edition: 2
# ---

# %% [markdown]
# # How do several GPUs share one layer?
#
# ![Two matrices of one layer, each with a possible cut from left to right and one from top to bottom](attachment:opening.png)
#
# Each of four GPUs holds a quarter of one layer's weights and does a quarter of its arithmetic. Where do you cut, and what
# do the GPUs have to tell each other?
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import math

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
from threeloops.lab.checking.wall import inout
from threeloops.training.cluster import Cluster, advance_to, ask
from torch.nn import functional


class ExchangeRows(torch.autograd.Function):
    """An all-to-all of rows. Its backward sends the gradients back."""

    @staticmethod
    def forward(ctx, rows, sends, gets):
        ctx.sends, ctx.gets = sends, gets
        out = rows.new_empty(sum(gets), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), gets, sends)
        return out

    @staticmethod
    def backward(ctx, gradient):
        return ExchangeRows.apply(gradient, ctx.gets, ctx.sends), None, None


def exchange_rows(rows, sends, gets):
    """`sends[r]` rows go to rank r, in order, and `gets[r]` rows come from it."""
    return ExchangeRows.apply(rows, sends, gets)


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Stored:
    """A tensor on disk, as safetensors shows it: the slices `up[2:4]` and `down[:, 2:4]` read a part of it."""

    def __init__(self, name, shape):
        self.name, self.shape = name, torch.Size(shape)

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, part):
        parts = part if isinstance(part, tuple) else (part,)
        if len(parts) > len(self.shape) or any(type(p) is not slice or p.step not in (None, 1) for p in parts):
            raise TypeError(f"{self.name}[{part}]: expected slices such as {self.name}[0:2]")
        parts += (slice(None),) * (len(self.shape) - len(parts))
        return ask("read", self.name, [p.indices(size)[:2] for p, size in zip(parts, self.shape, strict=True)])


# The test cells share these programs, which run on every rank.


def watched(function, given, changed):
    """Call the function, and add its name to `changed` if it changes its argument."""
    before = given.detach().clone()
    found = function(given)
    if not torch.equal(before, given.detach()):
        changed.append(function.__name__)
    return found


def mlp_on_ranks(parallel_mlp, x, shapes):
    """The output, and the names of functions that changed x."""
    changed, stored = [], [Stored(name, shape) for name, shape in shapes]

    def mlp(x):
        return parallel_mlp(x, *stored)

    return watched(mlp, x.clone(), changed), changed


def scaled(copy_to_ranks, sum_over_ranks):
    """Compute y, the sum over the ranks of factor · x. Return y, the gradients of x and the factor for the loss y₀ + 10y₁,
    the sum without a factor and without gradients, and the functions that changed their argument."""
    changed, x, factor = [], torch.tensor([1.0, 2.0], requires_grad=True), ask("factor").requires_grad_()
    y = watched(sum_over_ranks, factor * watched(copy_to_ranks, x, changed), changed)
    if y.requires_grad:
        (y * torch.tensor([1.0, 10.0])).sum().backward()
    without = watched(sum_over_ranks, watched(copy_to_ranks, x.detach().clone(), changed), changed)
    return y.detach(), x.grad, factor.grad, without.detach(), changed


def trained_mlps(copy_to_ranks, sum_over_ranks, x, upstream, layers):
    """Compute x + MLP(x), `layers` times. Return the outputs, the gradients of x and of this rank's weights, and the
    functions that changed their argument. Backward begins at second 1, with the gradient `upstream`."""
    x, changed = x.clone().requires_grad_(), []
    y, shards = x, []
    for layer in range(layers):
        shards.append([weight.requires_grad_() for weight in ask("shard", layer)])
        up, up_bias, down, down_bias = shards[-1]
        terms = functional.gelu(watched(copy_to_ranks, y, changed) @ up.T + up_bias) @ down.T
        y = y + watched(sum_over_ranks, terms, changed) + down_bias
    advance_to(1.0)
    if y.requires_grad:
        (y * upstream).sum().backward()
    return y.detach(), x.grad, [[w.grad for w in each] for each in shards], changed


def gradients_of_copies(copy_to_ranks):
    """Return the gradients of a and b for the loss 3 · Σ(copy of a + copy of b), which gives both copies the same tensor."""
    a, b = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
    ((copy_to_ranks(a) + copy_to_ranks(b)) * 3).sum().backward()
    return [a.grad, b.grad]


def shards_of(cut_attention, width, heads, kv_heads, head_dim):
    """This rank's shards, the bytes that they keep in memory, and whether they share memory with the whole."""
    qkv = drawn((heads + 2 * kv_heads) * head_dim, width, seed=1)
    output = drawn(width, heads * head_dim, seed=2)
    shards = cut_attention(qkv, output, heads, kv_heads, dist.get_rank(), dist.get_world_size())
    storages = {s.untyped_storage().data_ptr(): s.untyped_storage().nbytes() for s in shards}
    shared = any(whole.untyped_storage().data_ptr() in storages for whole in (qkv, output))
    return list(shards), sum(storages.values()), shared


def experts_on_ranks(expert_layer, experts):
    """Return outputs, gradients of x and of the rank's experts, run_expert's calls, and which arguments were changed.
    Backward begins at second 1."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own = range(rank * experts // ranks, (rank + 1) * experts // ranks)
    weights = {expert: ask("expert", expert).requires_grad_() for expert in own}
    calls = []

    def run_expert(expert, rows):
        if expert not in weights:
            raise RuntimeError(f"run_expert({expert!r}, …) on rank {rank}, which has the experts {list(own)}")
        calls.append((int(expert), len(rows)))
        return torch.tanh(rows @ weights[expert].T)

    x, chosen, upstream = ask("tokens")
    before = {"x": x.clone(), "chosen": chosen.clone()}
    x.requires_grad_()
    y = expert_layer(x, chosen, run_expert, experts)
    now = {"x": x.detach(), "chosen": chosen}
    changed = [name for name, whole in before.items() if not torch.equal(whole, now[name])]
    advance_to(1.0)
    loss = (y * upstream).sum()
    if loss.requires_grad:
        loss.backward()
    return y.detach(), x.grad, {expert: weight.grad for expert, weight in weights.items()}, calls, changed


def alike(got, expected):
    """Whether this is, to rounding in float32, what one process computes in float64."""
    return torch.is_tensor(got) and got.shape == expected.shape and torch.allclose(got.double(), expected, 1e-4, 1e-5)


def require_alike(got, expected, what, slips=None):
    """`slips` maps causes to the values that they would give."""
    cause = next((cause for cause, value in (slips or {}).items() if alike(got, value)), "")
    check.close(got, expected, rtol=1e-4, atol=1e-5, what=what, hint="" if alike(got, expected) else cause)


def require_no_barrier(run):
    barriers = sum(span.what == "barrier" for span in run.collectives if span.rank == 0)
    check.equal(barriers, 0, what="barriers, in each of which all ranks send to each other and wait")


def sent_by(run, rank, start=0.0, end=math.inf):
    """Bytes that a rank has sent in a stretch of time."""
    return sum(m.size for m in run.messages if m.source == rank and start <= m.ready < end)


# %% tags=["setup", "oracle"] nbgrader={"grade": false, "grade_id": "oracles", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
# In graded runs, your answers cannot call the functions of this cell: a rank only has the data that it gets or reads.


def mlp_weights(width, hidden, seed):
    """Return up (hidden, width), its bias, down (width, hidden) and its bias."""
    up, down = drawn(hidden, width, seed=seed) / width**0.5, drawn(width, hidden, seed=seed + 1) / hidden**0.5
    return up, drawn(hidden, seed=seed + 2), down, drawn(width, seed=seed + 3)


def whole_mlp(x, up, up_bias, down, down_bias):
    return functional.gelu(x @ up.T + up_bias) @ down.T + down_bias


def run_mlp(parallel_mlp, ranks, x, weights):
    """Run `parallel_mlp` on ranks that may read an N-th of each weight, and all of the bias of `down`. Return the run,
    and the rows of `up` that each rank has read."""
    stored = dict(zip(("up", "up_bias", "down", "down_bias"), weights, strict=True))
    seen = [{name: torch.zeros(whole.shape, dtype=torch.bool) for name, whole in stored.items()} for _ in range(ranks)]

    def read(rank, name, bounds):
        part, whole = tuple(slice(*bound) for bound in bounds), stored[name]
        numbers = seen[rank][name].clone()
        numbers[part] = True
        share = whole.numel() if name == "down_bias" else whole.numel() // ranks
        if numbers.sum() > share:
            raise ValueError(
                f"rank {rank} reads {int(numbers.sum()):,} of the {whole.numel():,} numbers of {name}: a rank reads an "
                f"N-th of them, here {share:,}"
            )
        seen[rank][name] = numbers
        return whole[part]

    shapes = [(name, list(whole.shape)) for name, whole in stored.items()]
    run = on_cluster(Cluster(ranks), mlp_on_ranks, parallel_mlp, x, shapes, served={"read": read})
    return run, [mine["up"].any(1).nonzero()[:, 0].tolist() for mine in seen]


def train_mlps(copy_to_ranks, sum_over_ranks, ranks, tokens, width, hidden, layers, seed):
    """Run the student's functions on ranks that have a part of each layer's weights."""
    x, upstream = drawn(tokens, width, seed=seed + 9), drawn(tokens, width, seed=seed + 8)

    def shard(rank, layer):
        own = slice(rank * hidden // ranks, (rank + 1) * hidden // ranks)
        up, up_bias, down, down_bias = mlp_weights(width, hidden, seed + 10 * layer)
        return up[own], up_bias[own], down[:, own], down_bias

    program = (trained_mlps, copy_to_ranks, sum_over_ranks, x, upstream, layers)
    return on_cluster(Cluster(ranks), *program, served={"shard": shard})


def trained_alone(tokens, width, hidden, layers, seed, part=slice(None)):
    """Do the same in one process and float64. `part` selects the hidden features that count in the gradients."""
    x = drawn(tokens, width, seed=seed + 9).double().requires_grad_()
    y, weights = x, []
    for layer in range(layers):
        weights.append([w.double().requires_grad_() for w in mlp_weights(width, hidden, seed + 10 * layer)])
        up, up_bias, down, down_bias = weights[-1]
        y = y + whole_mlp(y, up[part], up_bias[part], down[:, part], down_bias)
    (y * drawn(tokens, width, seed=seed + 8)).sum().backward()
    return y.detach(), x.grad, [[w.grad for w in each] for each in weights]


def tokens_of(rank, chosen, width, seed):
    return drawn(len(chosen[rank]), width, seed=100 * seed + rank)


def expert_weight(expert, width, seed):
    return drawn(width, width, seed=1000 * seed + expert + 50) / width**0.5


def run_experts(expert_layer, chosen, experts, width, seed):
    """Run `expert_layer` on ranks. A rank has its own experts and its own tokens, with `chosen[rank]`, the experts that
    its tokens have chosen."""
    ranks = len(chosen)

    def expert(rank, number):
        if number * ranks // experts != rank:
            raise ValueError(f"rank {rank} asks for expert {number}, which is not its own")
        return expert_weight(number, width, seed)

    def tokens(rank):
        x = tokens_of(rank, chosen, width, seed)
        return x, torch.tensor(chosen[rank], dtype=torch.int64), drawn(len(x), width, seed=seed + 7 + rank)

    served = {"expert": expert, "tokens": tokens}
    return on_cluster(Cluster(ranks), experts_on_ranks, expert_layer, experts, served=served)


def experts_alone(chosen, experts, width, seed):
    """Return the outputs and the gradients of x for each rank, and the gradients of the experts, computed in one
    process and float64. `chosen[rank]` has the experts of that rank's tokens."""
    weights = [expert_weight(expert, width, seed).double().requires_grad_() for expert in range(experts)]
    outputs, inputs = [], []
    for rank, picks in enumerate(chosen):
        x = tokens_of(rank, chosen, width, seed).double().requires_grad_()
        rows = [torch.tanh(row @ weights[expert].T) for row, expert in zip(x, picks, strict=True)]
        y = torch.stack(rows) if rows else x * 1
        (y * drawn(len(x), width, seed=seed + 7 + rank)).sum().backward()
        outputs.append(y.detach())
        inputs.append(x)
    return outputs, [x.grad for x in inputs], [weight.grad for weight in weights]


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
plot, axes = figure(width=9.5, height=3.1)
for left, width, height, name in ((0.0, 1.6, 3.2, "up"), (4.6, 3.2, 1.6, "down")):
    bottom = -height / 2
    axes.barh([0], [width], left=left, height=height, color=palette.sky, alpha=0.55)
    for part in (1, 2, 3):
        axes.plot([left + part * width / 4] * 2, [bottom, -bottom], color=palette.vermillion, lw=1.4, ls="--")
        axes.plot([left, left + width], [bottom + part * height / 4] * 2, color=palette.ink, lw=1.4, ls=":")
    axes.text(left + width / 2, -bottom + 0.12, name, ha="center", va="bottom", weight="bold", size=12)
axes.text(-0.15, 0, "x", ha="right", va="center", weight="bold", size=13)
axes.annotate("", (4.45, 0), (1.75, 0), arrowprops={"arrowstyle": "->", "color": palette.ink, "lw": 1.5})
axes.text(3.1, 0.15, "activation", ha="center", va="bottom")
axes.annotate("", (8.6, 0), (7.95, 0), arrowprops={"arrowstyle": "->", "color": palette.ink, "lw": 1.5})
axes.text(8.7, 0, "y", ha="left", va="center", weight="bold", size=13)
axes.text(6.2, -1.35, "four GPUs, four parts: from top to\nbottom, or from left to right?", ha="center", va="center")
axes.set(xlim=(-0.6, 9.2), ylim=(-1.75, 2.1))
axes.axis("off")
show.figure(plot, "Two matrices of one layer, each with a possible cut from left to right and one from top to bottom")

# %% [markdown]
# Data parallelism (lab 09) keeps a whole model on every rank. **Tensor parallelism** cuts the matrices instead, and all
# ranks of a group work on the *same* tokens. Programs run on the virtual cluster, as in lab 09.
#
# ## 1 · Two ways to cut a matrix
#
# torch stores the weight of `y = x @ weight.T + bias` as (outputs, inputs).
#
# - **Cut by outputs** (papers write y = xA and say *column-parallel*): each rank has some rows of `weight`, with their part
#   of `bias`. It needs all of `x`, and computes its own features of `y`. Nothing is sent.
# - **Cut by inputs** (*row-parallel*): each rank has some columns of `weight`, and needs only those features of `x`. Its product
#   has the shape of `y`, but is one **term** of a sum over the ranks (a *partial sum*). An all-reduce adds the terms.
#
# Papers name the cuts after their own layout, (inputs, outputs). In torch's layout, "column-parallel" takes rows.
#
# *Worked example.* After the activation a token has the hidden features [1, 2, 3, 2], `down` is [[1, 1, 1, 1]], and its bias is
# 10. Rank 0 has the features [1, 2] and finds 3, rank 1 has [3, 2] and finds 5. The output is 3 + 5 + 10 = 18.
#
# The next cell cuts one layer by outputs. It then gathers all features on every rank, because it has no second layer. You
# have one: in an MLP, `up` is followed by `down`, and the activation between them works on each feature by itself.
#
# ### Exercise 1 (20 points)
#
# `parallel_mlp(x, up, up_bias, down, down_bias)` returns `gelu(x @ up.T + up_bias) @ down.T + down_bias` on every rank.
#
# - Every rank gets the same `x` (tokens, width), and does not change it.
# - The weights are on disk: `up` is (hidden, width), `down` is (width, hidden). A slice reads a part of a weight: `up[2:4]`
#   gives two rows of `up` as a tensor, `down[:, 2:4]` two columns of `down`, and `down_bias[:]` all of the bias. `up.shape` and
#   `len(up)` read nothing.
# - Rank r of N uses the r-th of N equal parts of the hidden features; N divides `hidden`. It may read only an N-th of `up`,
#   `up_bias` and `down`, so it does an N-th of the arithmetic.
# - The ranks send what one all-reduce of the output sends, and nothing else.

# %% tags=["demo"]
myth("tp-3")
myth("tp-2")
myth("tp-1")
predict(
    "gather",
    "4 ranks, hidden = 4 · width. Cut both matrices by outputs and gather after each of them, as below: how many times "
    "as many bytes as one all-reduce of y?",
    unit="×",
)


def cut_by_outputs(x, weight):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own = x @ weight.chunk(ranks)[rank].T
    parts = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(parts, own)
    return torch.cat(parts, -1)


x, weight = drawn(3, 4, seed=0), drawn(8, 4, seed=1)
run = Cluster(4).run(cut_by_outputs, x, weight)
print("same as one process:", all(torch.allclose(y, x @ weight.T, atol=1e-6) for y in run.results))


# %% nbgrader={"grade": false, "grade_id": "parallel_mlp", "locked": false, "schema_version": 3, "solution": true, "task": false}
def parallel_mlp(x: torch.Tensor, up: Stored, up_bias: Stored, down: Stored, down_bias: Stored) -> torch.Tensor:
    """The MLP's output on every rank, of which this rank computes its part."""
    ### BEGIN SOLUTION
    rank, ranks = dist.get_rank(), dist.get_world_size()
    size = len(up) // ranks
    own = slice(rank * size, (rank + 1) * size)
    hidden = functional.gelu(x @ up[own].T + up_bias[own])
    y = hidden @ down[:, own].T
    dist.all_reduce(y)
    return y + down_bias[:]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "parallel_mlp_test_values", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("parallel_mlp", "the output of the whole MLP", part="values", hidden="other sizes and numbers of ranks"):

    def gives(ranks, x, weights, expected, slips, terms, features):
        """`terms` has what each rank would return if it did not sum, `features` the hidden features of each rank."""
        weights = [torch.tensor(weight, dtype=torch.float32) for weight in weights]
        run, read = run_mlp(parallel_mlp, ranks, torch.tensor(x, dtype=torch.float32), weights)
        for rank, (y, changed) in enumerate(run.results):
            causes = {why: torch.tensor(slip).double() for why, slip in slips.items()}
            if terms:
                why = "this is the rank's own term: the terms were not added up"
                causes[why] = torch.tensor(terms[rank]).double()
            what = f"output on rank {rank} of {ranks} for x = {x}"
            require_alike(y, torch.tensor(expected).double(), what, causes)
            check.equal(read[rank], features[rank], what=f"hidden features that rank {rank} of {ranks} reads of `up`")
            check.true(not changed, f"x was changed on rank {rank} of {ranks}: leave it as it is")

    # gelu leaves 10 and more as it is, and makes −10 and less 0. The hidden features of the two tokens are [11, 22, 33, 0]
    # and [21, 12, 33, 0].
    gives(
        2,
        [[1, 2], [2, 1]],
        ([[10, 0], [0, 10], [10, 10], [-10, 10]], [1, 2, 3, -40], [[1, 2, 3, 1], [1, 0, 2, 5]], [10, 100]),
        [[164.0, 177.0], [154.0, 187.0]],
        {
            "the bias of `down` was added 2 times, once per rank": [[174.0, 277.0], [164.0, 287.0]],
            "the bias of `down` is missing": [[154.0, 77.0], [144.0, 87.0]],
            "the bias of `up` is missing": [[160.0, 220.0], [140.0, 180.0]],
            "the activation is missing": [[134.0, 27.0], [104.0, -63.0]],
            "this is the mean over the ranks, not the sum": [[87.0, 138.5], [82.0, 143.5]],
            "every rank has used rank 0's part": [[120.0, 122.0], [100.0, 142.0]],
        },
        [[[65.0, 111.0], [55.0, 121.0]], [[109.0, 166.0], [109.0, 166.0]]],
        [[0, 1], [2, 3]],
    )
    # The hidden features are [11, 22, 0, 34], one on each rank.
    gives(
        4,
        [[1, 2, 0, 1]],
        (
            [[10, 0, 0, 0], [0, 10, 0, 0], [0, 0, -10, -20], [10, 0, 0, 20]],
            [1, 2, -3, 4],
            [[1, 2, 3, 4], [0, 1, 1, 1], [1, 0, 0, 2], [2, 1, 5, 0]],
            [10, 20, 30, 40],
        ),
        [[201.0, 76.0, 109.0, 84.0]],
        {
            "the bias of `down` was added 4 times, once per rank": [[231.0, 136.0, 199.0, 204.0]],
            "this is the mean over the ranks, not the sum": [[57.75, 34.0, 49.75, 51.0]],
        },
        [
            [[21.0, 20.0, 41.0, 62.0]],
            [[54.0, 42.0, 30.0, 62.0]],
            [[10.0, 20.0, 30.0, 40.0]],
            [[146.0, 54.0, 98.0, 40.0]],
        ],
        [[0], [1], [2], [3]],
    )
    # gelu(−1) = −0.1586553, and twice that is the sum of the two hidden features.
    gives(
        2,
        [[1, 0]],
        ([[-1, 0], [-1, 0]], [0, 0], [[1, 1], [1, 1]], [0, 0]),
        [[-0.3173105, -0.3173105]],
        {"this is the tanh approximation: use functional.gelu as it is": [[-0.3176160, -0.3176160]]},
        [],
        [[0], [1]],
    )

    ### BEGIN HIDDEN TESTS
    def computes(ranks, tokens, width, hidden, seed):
        x, weights = drawn(tokens, width, seed=seed + 9), mlp_weights(width, hidden, seed)
        run, _ = run_mlp(parallel_mlp, ranks, x, weights)
        expected = whole_mlp(x.double(), *(w.double() for w in weights))
        for rank, (y, changed) in enumerate(run.results):
            what = f"output on rank {rank} of {ranks}, {tokens} tokens, width {width}, hidden {hidden}"
            require_alike(y, expected, what)
            check.true(not changed, f"x was changed on rank {rank} of {ranks}: leave it as it is")

    computes(3, 5, 6, 9, seed=1259921049)
    computes(5, 1, 5, 5, seed=2080083823)
    computes(4, 2, 8, 32, seed=2)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "parallel_mlp_test_cost", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("parallel_mlp", "what is sent", part="cost", hidden="another number of ranks"):

    def costs(ranks, tokens, width, hidden, seed=0):
        x, weights = drawn(tokens, width, seed=seed + 9), mlp_weights(width, hidden, seed)
        run, _ = run_mlp(parallel_mlp, ranks, x, weights)
        expected = whole_mlp(x.double(), *(w.double() for w in weights))
        for rank, (got, _) in enumerate(run.results):
            check.computed([got], [expected], f"rank {rank} of {ranks}")
        require_no_barrier(run)
        case, y, h = (
            f"of {ranks}, {tokens} tokens, width {width}, hidden {hidden}",
            4 * tokens * width,
            4 * tokens * hidden,
        )
        for rank in range(ranks):
            sent = sent_by(run, rank)
            causes = {
                0: "nothing was sent",
                (ranks - 1)
                * (2 * y + h)
                // ranks: "the hidden features were gathered as well: they can stay where they are",
                (ranks - 1)
                * (2 * y + 2 * h)
                // ranks: "the hidden features were summed as well: they can stay where they are",
                (ranks - 1)
                * (y + h)
                // ranks: "two all-gathers: cut `down` by inputs, and the hidden features can stay",
                (ranks - 1)
                * (2 * h + y)
                // ranks: "`up` was cut by inputs and `down` by outputs: so the hidden features have to be summed",
                4 * (ranks - 1) * y // ranks: "two all-reduces of the output",
                (ranks - 1)
                * y: "every rank has sent all of its term to every other: an all-reduce sends 2(N − 1)/N of it",
            }
            check.equal(
                sent,
                2 * (ranks - 1) * y // ranks,
                what=f"bytes that rank {rank} {case} sends",
                hint=causes.get(sent, ""),
            )

    costs(4, 2, 8, 32)
    costs(2, 3, 4, 8)
    ### BEGIN HIDDEN TESTS
    costs(3, 4, 6, 12, seed=1442249570)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "parallel_mlp",
    "With `own = slice(rank * size, (rank + 1) * size)`, `up[own]` and `down[:, own]` belong to the same hidden features.",
    "The activation needs no other rank: each hidden feature is whole on one rank. Only the product with `down` is a term.",
    "A bias that is added before the sum is added by every rank. Add it after `dist.all_reduce(y)`.",
)


def gather_twice(tokens, width):
    hidden = cut_by_outputs(drawn(tokens, width, seed=0), drawn(4 * width, width, seed=1))
    cut_by_outputs(hidden, drawn(width, 4 * width, seed=2))


def sum_once(tokens, width):
    dist.all_reduce(drawn(tokens, width, seed=0))


sent = {each: sent_by(Cluster(4).run(each, 8, 16), 0) for each in (gather_twice, sum_once)}
show.against_prediction(
    "gather", round(sent[gather_twice] / sent[sum_once], 2), unit="×", source="measured on the virtual cluster"
)
audit(
    "tp-2",
    round(sent[gather_twice] / sent[sum_once], 2),
    "times the bytes of the sum",
    "model",
    "corrected",
    how="all-gathers after both matrices against one all-reduce, hidden = 4 · width, 4 ranks. After a row-parallel layer the ranks hold terms, and gathering those gives nothing useful: they must be summed. After a column-parallel layer shards could be gathered, but the next layer takes them as they are",
)
audit(
    "tp-3",
    round(12288**2 * 2 / 1e9, 2),
    f"GB in 16 bits, {12288**2 * 16 / 1e9:.1f} GB with gradients and Adam's state",
    "model",
    "corrected",
    how="12,288² · 2 bytes; training takes 16 bytes per parameter (lab 06). A GPU with 80 GB holds 33 such matrices in training. GPT-3 has 12 · 96 = 1,152 of that size. So a matrix fits, and so does a layer; all 96 layers together do not",
)
debrief(
    "parallel_mlp",
    """The first matrix is cut by outputs and the second by inputs, so what the first leaves on a rank is just what the second
    needs there. Between them nothing is sent, as long as the activation treats each feature by itself. A softmax or a norm
    over the hidden features could not stay there.

    In symbols: gelu(x A) B = Σᵣ gelu(x Aᵣ) Bᵣ. Cut the other way round, the first product would be terms of a sum, and
    gelu(a + b) is not gelu(a) + gelu(b). So there the all-reduce would come before the activation, and it would be
    of the hidden features, often four times as many.""",
    parts=("values", "cost"),
)

# %% [markdown]
# ## 2 · The way back
#
# Training needs gradients too, and autograd does not see `dist.all_reduce`: the backward pass goes by as if it were not there
# (on gloo and NCCL, torch warns that this is deprecated).
#
# *Worked example.* Rank 0 computes 3x, rank 1 computes 5x, and y = 3x + 5x is their sum, on both. If the loss is y itself, the
# gradient of x is 8.
#
# - At the sum, the gradient of y is 1 on both ranks already. Each term of a sum gets the gradient of the sum, so both
#   have the gradient 1, and nothing has to be sent.
# - At x, rank 0 finds 3 and rank 1 finds 5. Each has used its copy of x for its own part of the work, so each finds one
#   term of the gradient. They have to be summed, so that both continue with 8.
#
# A `torch.autograd.Function` states both directions. The next cell has one that multiplies by 2 forward, and prints what
# comes back.
#
# ### Exercise 2 (22 points)
#
# Write two functions that autograd can differentiate. (The papers call them *f* and *g*.)
#
# - `copy_to_ranks(x)` returns x forward and sends nothing. Backward, it sums the gradients of all ranks.
# - `sum_over_ranks(x)` returns the sum over the ranks forward. Backward, it passes on the gradient and sends nothing.
# - Each sends what one all-reduce sends, in one of the two directions only. Neither changes its argument, nor the gradient
#   that it is given. Both also work without gradients.

# %% tags=["demo"]
predict(
    "reduces", "A block has attention and an MLP, and both are cut like this. All-reduces per block and training step?"
)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        print("backward gets", gradient.tolist())
        return 2 * gradient


x = torch.tensor([1.0, 3.0], requires_grad=True)
(Double.apply(x) * torch.tensor([1.0, 10.0])).sum().backward()
print("gradient of x:", x.grad.tolist())


# %% nbgrader={"grade": false, "grade_id": "conjugates", "locked": false, "schema_version": 3, "solution": true, "task": false}
def copy_to_ranks(x: torch.Tensor) -> torch.Tensor:
    """Nothing forward, all-reduce backward."""
    ### BEGIN SOLUTION
    return _Copy.apply(x)
    ### END SOLUTION


def sum_over_ranks(x: torch.Tensor) -> torch.Tensor:
    """All-reduce forward, nothing backward."""
    ### BEGIN SOLUTION
    return _Sum.apply(x)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient

    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "conjugates_test_values", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("conjugates", "outputs and gradients of one process", part="values", hidden="other sizes and more layers"):

    def shares_one_gradient():
        ranks = 2
        run = on_cluster(Cluster(ranks), gradients_of_copies, copy_to_ranks)
        for rank, gradients in enumerate(run.results):
            for name, got in zip("ab", gradients, strict=True):
                what = f"gradient of {name} on rank {rank} of {ranks} for the loss 3 · Σ(copy of a + copy of b)"
                seen = got.tolist() if torch.is_tensor(got) else got
                in_place = seen in ([12.0] * 4, [24.0] * 4)
                cause = "both copies were given the same tensor, and it was summed in place: sum a clone of it"
                check.equal(got, torch.tensor([6.0] * 4), what=what, hint=cause if in_place else "")

    def scales(factors, y, of_x, of_factor, slips):
        """Check y, the sum over the ranks of factor · x for x = [1, 2], and the gradients for the loss y₀ + 10y₁. Each rank
        has its own factor. `slips` has wrong values of y, of x's gradient and of a factor's gradient, by their causes."""
        ranks, served = len(factors), {"factor": lambda rank: torch.tensor(factors[rank])}
        run = on_cluster(Cluster(ranks), scaled, copy_to_ranks, sum_over_ranks, served=served)

        def same(got, expected, what, causes):
            own = {
                why: torch.tensor(slip[rank] if why in own_values else slip).double() for why, slip in causes.items()
            }
            check.true(got is not None, f"{what}: there is none: the result of each function must be part of the graph")
            require_alike(got, torch.tensor(expected).double(), what, own)

        own_values = {wrong_way, own_term}
        for rank, (got, x_grad, factor_grad, without, changed) in enumerate(run.results):
            where = f"on rank {rank} of {ranks}, factors {factors}"
            same(got, y, f"y {where}", slips["y"])
            names = ", ".join(sorted(set(changed)))
            check.true(not changed, f"{where}, {names} changed its argument: work on a clone")
            same(factor_grad, of_factor, f"gradient of the factor {where}", slips["factor"])
            same(x_grad, of_x, f"gradient of x {where}", slips["x"])
            what = f"sum_over_ranks(copy_to_ranks(tensor([1, 2]))) without gradients {where}"
            same(without, [1.0 * ranks, 2.0 * ranks], what, {})

    wrong_way = "copy_to_ranks sums forward, and sum_over_ranks does not: they are the wrong way round"
    own_term = "this is the rank's own term: copy_to_ranks must sum the gradients of all ranks backward"
    twice = "this is {} times the gradient: sum_over_ranks must not sum backward"
    shared = "this is the gradient divided by {}: sum_over_ranks passes it on as it is"
    slips = {
        "y": {wrong_way: [[6.0, 12.0], [10.0, 20.0]], "copy_to_ranks must not sum forward": [16.0, 32.0]},
        "x": {own_term: [[3.0, 30.0], [5.0, 50.0]], "this is the mean over 2 ranks: sum the gradients": [4.0, 40.0]},
        "factor": {twice.format(2): 42.0, shared.format(2): 10.5},
    }
    scales([3.0, 5.0], [8.0, 16.0], [8.0, 80.0], 21.0, slips)
    slips = {
        "y": {},
        "x": {own_term: [[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]]},
        "factor": {twice.format(4): 84.0, shared.format(4): 5.25},
    }
    scales([1.0, 2.0, 3.0, 4.0], [10.0, 20.0], [10.0, 100.0], 21.0, slips)
    shares_one_gradient()

    ### BEGIN HIDDEN TESTS
    def trains(ranks, tokens, width, hidden, layers, seed):
        run = train_mlps(copy_to_ranks, sum_over_ranks, ranks, tokens, width, hidden, layers, seed)
        outputs, of_x, of_weights = trained_alone(tokens, width, hidden, layers, seed)
        for rank, (y, x_grad, gradients, changed) in enumerate(run.results):
            where = f"rank {rank} of {ranks}, {layers} layer{'s' * (layers > 1)}"
            own = slice(rank * hidden // ranks, (rank + 1) * hidden // ranks)
            require_alike(y, outputs, f"output on {where}")
            check.equal(changed, [], what=f"functions that changed their argument on {where}")
            for layer in reversed(range(layers)):
                whole = of_weights[layer]
                expected = (whole[0][own], whole[1][own], whole[2][:, own], whole[3])
                names = ("up", "bias of up", "down", "bias of down")
                for name, got, wanted in zip(names, gradients[layer], expected, strict=True):
                    require_alike(got, wanted, f"gradient of {name}, layer {layer}, {where}")
            require_alike(x_grad, of_x, f"gradient of x on {where}")

    trains(2, 3, 4, 6, 1, seed=1)
    trains(4, 2, 4, 8, 2, seed=2)
    trains(3, 4, 5, 6, 3, seed=1709975946)
    trains(5, 1, 2, 10, 1, seed=1817120592)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "conjugates_test_traffic", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("conjugates", "one all-reduce each way", part="traffic", hidden="other sizes"):

    def traffic(ranks, tokens, width, layers, seed=0):
        run = train_mlps(copy_to_ranks, sum_over_ranks, ranks, tokens, width, 4 * ranks, layers, seed)
        if layers == 1:  # so that a common factor, such as a mean in place of a sum, stays one
            outputs, of_x, _ = trained_alone(tokens, width, 4 * ranks, 1, seed)
            upstream = drawn(tokens, width, seed=seed + 8)
            added = drawn(tokens, width, seed=seed + 9) + mlp_weights(width, 4 * ranks, seed)[3]
            for rank, (y, x_grad, *_) in enumerate(run.results):
                check.computed([y - added], [outputs - added], f"rank {rank} of {ranks}, forward,")
                check.computed([x_grad - upstream], [of_x - upstream], f"rank {rank} of {ranks}, backward,")
        require_no_barrier(run)
        once = 2 * (ranks - 1) * 4 * tokens * width // ranks
        for way, start, end in (("forward", 0.0, 1.0), ("backward", 1.0, math.inf)):
            for rank in range(ranks):
                sent = sent_by(run, rank, start, end)
                cause = (
                    f"that is {sent / (layers * once):g} times one all-reduce per layer" if sent else "nothing was sent"
                )
                what = f"bytes that rank {rank} of {ranks} sends {way} in {layers} MLP{'s' * (layers > 1)}"
                check.equal(sent, layers * once, what=what, hint=cause)

    traffic(2, 3, 4, 1)
    traffic(4, 2, 8, 2)
    ### BEGIN HIDDEN TESTS
    traffic(3, 4, 6, 3)
    traffic(3, 4, 6, 1, seed=2828427130)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "conjugates",
    "Write two classes like `Double`. One communicates in `forward` only, the other in `backward` only.",
    "`dist.all_reduce` works in place: call it on `x.clone()` or `gradient.clone()`, and return that.",
    "`forward` of the copy returns `x.view_as(x)`, and `backward` of the sum returns the gradient itself.",
)
from threeloops.training.tensor_parallel import block_traffic

audit(
    "tp-1",
    1,
    "all-reduce each way",
    "model",
    "holds",
    how="the check above counts bytes: 2(N − 1)/N of the MLP's output forward, and as many backward. It holds for two matrices cut by columns and by rows, without recomputation, which would repeat the forward all-reduce",
)
debrief(
    "conjugates",
    """The two are conjugate: where one communicates forward, the other does so backward. A cut region begins with
    `copy_to_ranks` and ends with `sum_over_ranks`. Outside of it, every rank has the same activations and the same gradients of
    them; inside, each has its own.

    Weights inside the region need no communication at all: a shard's gradient depends on this rank's features alone. Weights
    outside, such as those of norms and the bias of `down`, get the same gradient on all ranks, so they stay equal without
    communication. If you forget `copy_to_ranks`, the forward pass is right and nothing complains. But every rank then
    trains what comes before the region with its own term of the gradient alone, and its copies of those weights drift
    apart.""",
    parts=("values", "traffic"),
)

# %% [markdown]
# ## 3 · Attention: whole heads
#
# Attention heads do not see each other, so they play the part of the hidden features: each rank takes some heads. The projection
# to queries, keys and values is cut by outputs, and the projection after attention by inputs. So a block has the same
# communication twice.
#
# There is a trap. One matrix `qkv` holds first the rows of *all* query heads, then those of all key heads, then those of all
# value heads, with `head_dim` rows per head. With grouped-query attention there are fewer key and value heads
# (`kv_heads`), and each serves `heads // kv_heads` neighbouring query heads.
#
# *Worked example.* 4 heads, 2 key and value heads, head_dim 2, 2 ranks. Rows 0–7 of `qkv` are queries, 8–11 keys, 12–15 values.
# Rank 1 takes the query heads 2 and 3, which are rows 4–7. Both use key head 1, so it also takes the rows 10–11 and 14–15. The
# columns 4–7 of `output` belong to its heads.
#
# ### Exercise 3 (20 points)
#
# `cut_attention(qkv, output, heads, kv_heads, rank, ranks) -> (own_qkv, own_output)`
#
# - `qkv` is ((heads + 2 · kv_heads) · head_dim, width), and `output` is (width, heads · head_dim).
# - `own_qkv` has this rank's queries, then its keys, then its values, with each kind in its original order.
# - Each result has the dtype of its matrix, and memory of its own: a view would keep the whole matrix alive. Neither
#   matrix changes.
# - If `ranks` does not divide `heads` or `kv_heads`, raise a `ValueError` that names it and the ranks, as in
#   `kv_heads = 2, ranks = 4`.


# %% nbgrader={"grade": false, "grade_id": "cut_attention", "locked": false, "schema_version": 3, "solution": true, "task": false}
def cut_attention(
    qkv: torch.Tensor, output: torch.Tensor, heads: int, kv_heads: int, rank: int, ranks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's heads of both projections."""
    ### BEGIN SOLUTION
    for name, count in (("heads", heads), ("kv_heads", kv_heads)):
        if count % ranks:
            raise ValueError(f"{name} = {count}, ranks = {ranks}: heads cannot be shared equally")
    head_dim = output.shape[1] // heads
    kinds = qkv.split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim])
    own_qkv = torch.cat([kind.chunk(ranks)[rank] for kind in kinds])
    return own_qkv, output.chunk(ranks, dim=1)[rank].clone()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "cut_attention_test_values", "locked": true, "points": 13, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("cut_attention", "the heads of each rank", part="values", hidden="other models and numbers of ranks"):

    def cuts(heads, kv_heads, head_dim, width, ranks, rank, rows, columns, slips, seed=0, dtype=torch.float32):
        """`rows` of qkv and `columns` of output belong to this rank. `slips` maps other rows to causes."""
        qkv = drawn((heads + 2 * kv_heads) * head_dim, width, seed=seed).to(dtype)
        output = drawn(width, heads * head_dim, seed=seed + 1).to(dtype)
        before = qkv.clone(), output.clone()
        got = cut_attention(inout(qkv), inout(output), heads, kv_heads, rank, ranks)
        check.equal(len(got), 2, what="number of results")
        case = f"rank {rank} of {ranks}, {heads} heads, {kv_heads} key and value heads of {head_dim}"
        for name, whole, old in zip(("qkv", "output"), (qkv, output), before, strict=True):
            check.true(torch.equal(whole, old), f"cut_attention has changed `{name}` ({case}): leave it as it is")
        found = places(got[0], qkv)
        cause = slips.get(tuple(found), "")
        if found and found != rows and sorted(found) == sorted(rows):
            cause = "these are the right rows in another order"
        elif found and found != rows and not cause:
            cause = f"got the rows {found} of qkv, expected {rows}"
        check.equal(got[0], qkv[rows], what=f"own_qkv of {case}", hint=cause)
        found = places(got[1].T, output.T) if torch.is_tensor(got[1]) and got[1].ndim == 2 else []
        cause = f"got the columns {found} of output, expected {columns}" if found and found != columns else ""
        if torch.is_tensor(got[1]) and got[1].ndim == 2 and places(got[1], output):
            cause = "output was cut by outputs: its columns belong to heads" if ranks > 1 else ""
        check.equal(got[1], output[:, columns], what=f"own_output of {case}", hint=cause)
        for name, own in zip(("own_qkv", "own_output"), got, strict=True):
            check.dtype(own, dtype, what=f"{name} of {case}")

    def places(part, whole):
        """The numbers of the rows of `whole` that `part` consists of; an empty list if it has other rows."""
        if not torch.is_tensor(part) or part.ndim != 2 or part.shape[1] != whole.shape[1]:
            return []
        same = (part[:, None] == whole).all(-1)
        return same.int().argmax(1).tolist() if bool(same.any(1).all()) else []

    one_piece = "qkv was cut in one piece: cut its queries, keys and values each"
    thirds = "qkv was split into three equal parts: there are fewer key and value heads than query heads"
    every = "these are every 2nd head: a rank has neighbouring heads"
    # the worked example: rows 0-7 of qkv are queries, 8-11 keys, 12-15 values
    slips = {
        (0, 1, 2, 3, 4, 5, 6, 7): one_piece,
        (0, 1, 2, 6, 7, 8, 12, 13): thirds,
        (0, 1, 4, 5, 8, 9, 12, 13): every,
    }
    cuts(4, 2, 2, 8, 2, 0, [0, 1, 2, 3, 8, 9, 12, 13], [0, 1, 2, 3], slips)
    slips = {
        (8, 9, 10, 11, 12, 13, 14, 15): one_piece,
        (3, 4, 5, 9, 10, 11, 14, 15): thirds,
        (2, 3, 6, 7, 10, 11, 14, 15): every,
    }
    cuts(4, 2, 2, 8, 2, 1, [4, 5, 6, 7, 10, 11, 14, 15], [4, 5, 6, 7], slips)
    # 4 heads of 3: rows 0-11 are queries, 12-23 keys, 24-35 values
    slips = {(9, 10, 11, 12, 13, 14, 15, 16, 17): one_piece}
    cuts(4, 4, 3, 6, 4, 1, [3, 4, 5, 15, 16, 17, 27, 28, 29], [3, 4, 5], slips, seed=1)
    cuts(4, 4, 3, 6, 4, 3, [9, 10, 11, 21, 22, 23, 33, 34, 35], [9, 10, 11], {}, seed=1)
    cuts(2, 2, 1, 2, 2, 1, [1, 3, 5], [1], {}, dtype=torch.bfloat16)
    cuts(4, 2, 2, 5, 1, 0, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [0, 1, 2, 3, 4, 5, 6, 7], {}, seed=2)

    ### BEGIN HIDDEN TESTS
    def cuts_all(heads, kv_heads, head_dim, width, ranks, seed):
        for rank in range(ranks):
            first, group = rank * heads // ranks, heads // kv_heads
            queries = list(range(first, first + heads // ranks))
            keys = sorted({heads + head // group for head in queries})
            order = queries + keys + [head + kv_heads for head in keys]
            rows = [head * head_dim + i for head in order for i in range(head_dim)]
            cuts(heads, kv_heads, head_dim, width, ranks, rank, rows, rows[: len(queries) * head_dim], {}, seed)

    cuts_all(12, 6, 5, 7, 3, seed=3)
    cuts_all(16, 8, 4, 64, 8, seed=4)
    cuts_all(6, 6, 1, 5, 2, seed=5)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "cut_attention_test_memory", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("cut_attention", "what stays in memory", part="memory", hidden="another model"):

    def keeps(ranks, width, heads, kv_heads, head_dim, wanted):
        run = on_cluster(Cluster(ranks), shards_of, cut_attention, width, heads, kv_heads, head_dim)
        qkv, output = drawn((heads + 2 * kv_heads) * head_dim, width, seed=1), drawn(width, heads * head_dim, seed=2)
        for rank, (shards, kept, shared) in enumerate(run.results):
            size = sum(shard.nbytes for shard in shards)
            check.equal(size, wanted, what=f"bytes of the shards of rank {rank} of {ranks}")
            for name, shard, whole in zip(("qkv", "output"), shards, (qkv, output), strict=True):
                numbers = shard.unique()
                check.true(
                    numbers.numel() == shard.numel() and bool(torch.isin(numbers, whole).all()),
                    f"own_{name} of rank {rank} of {ranks} holds other numbers than {name}",
                )
            what = f"bytes of memory behind the shards of rank {rank} of {ranks}, which are {size:,} bytes themselves"
            check.equal(kept, size, what=what, hint="a shard is a view of the whole matrix" if kept > size else "")
            check.true(
                not shared, f"a shard of rank {rank} of {ranks} lies in the memory of `qkv` or `output`: copy it"
            )

    keeps(2, 8, 4, 2, 2, 384)  # 8 · 8 numbers of qkv, and 8 · 4 of output
    keeps(1, 8, 4, 2, 2, 768)
    ### BEGIN HIDDEN TESTS
    keeps(3, 6, 6, 3, 2, 288)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "cut_attention_test_edges", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("cut_attention", "heads that cannot be shared", part="edges", hidden="other numbers"):

    def refuses(heads, kv_heads, ranks, named):
        qkv, output = drawn((heads + 2 * kv_heads) * 2, 4, seed=1), drawn(4, heads * 2, seed=2)
        check.raises(
            ValueError, cut_attention, qkv, output, heads, kv_heads, 0, ranks, names=(named, f"ranks = {ranks}")
        )

    refuses(8, 2, 4, "kv_heads = 2")
    refuses(6, 6, 4, "heads = 6")
    check.accepts(cut_attention, drawn(24, 4, seed=1), drawn(4, 16, seed=2), 8, 2, 0, 2)
    ### BEGIN HIDDEN TESTS
    refuses(9, 3, 2, "heads = ")
    refuses(12, 2, 3, "kv_heads = 2")
    check.accepts(cut_attention, drawn(18, 4, seed=1), drawn(4, 6, seed=2), 3, 3, 2, 3)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "cut_attention",
    "`head_dim` is `output.shape[1] // heads`. Split `qkv` into its three kinds first, and cut each of them.",
    "`torch.cat` makes memory of its own. `output[:, own]` is a view: add `.clone()`.",
)
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.training.tensor_parallel import gpt_plan, parallelize

SHAPE = {
    "vocabulary_size": 64,
    "width": 32,
    "layers": 1,
    "heads": 4,
    "kv_heads": 4,
    "mlp_width": 64,
    "max_sequence": 16,
}


def one_block(tokens):
    """Forward, and backward after second 1, of one block of the course's GPT, cut as you have cut it."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(**SHAPE))
    block, rotation = model.blocks[0], model.rotation(0, tokens)
    parallelize(block, {name.removeprefix("blocks.*."): s for name, s in gpt_plan().items() if "blocks" in name})
    x = drawn(1, tokens, 32, seed=3).requires_grad_()
    advance_to(1.0)
    y = block(x, rotation)
    advance_to(2.0)
    y.square().mean().backward()


block_run = Cluster(4).run(one_block, 16)
reduced = [
    span.start for span in block_run.collectives if span.rank == 0 and span.what == "all_reduce" and span.start >= 1
]
with reveal("reduces"):
    show.against_prediction("reduces", len(reduced), source="counted on the virtual cluster")
    show.table(
        [
            (
                way,
                sum(start <= at < start + 1 for at in reduced),
                sent_by(block_run, 0, start, start + 1),
                traffic.bytes // 4,
            )
            for way, start, traffic in zip(("forward", "backward"), (1, 2), block_traffic(16, 32, 4), strict=True)
        ],
        header=("one block, 16 tokens of width 32", "all-reduces", "bytes sent by rank 0", "closed form"),
        caption="threeloops.training.tensor_parallel cuts the course's GPT in the same way: 4 ranks, 4 heads",
    )
debrief(
    "cut_attention",
    """A block has two cut regions, attention and MLP, and each has one all-reduce per direction: four per block. Their size is
    tokens · width, whatever the number of ranks, so the arithmetic of a rank shrinks with N, and what it sends does not.
    In forward nothing can be computed meanwhile, because the next layer needs the sum.

    A fused qkv that is cut in one piece has the right shape, and the model trains, but rank 0 then uses query rows as
    keys and values, and the last rank uses keys and values as queries. Checkpoints that are cut for another degree can go
    wrong in this way.

    With fewer key and value heads than ranks, these are copied to several ranks, and the copies' gradients are
    summed.""",
    parts=("values", "memory", "edges"),
)

# %% [markdown]
# ## 4 · Many experts, few of them per token
#
# A **mixture of experts** replaces one MLP by E of them, the *experts*. A small matrix, the *router*, gives each token
# one number per expert, its logits, and only k experts compute the token. So the layer has E times the weights of one
# MLP and k times its arithmetic, and it is cut in another way: each rank holds whole experts.
#
# The router's scores are the softmax of the logits over all experts. The k experts with the highest logits are chosen, and their
# scores, divided by their sum, are the weights with which the experts' outputs are added up.
#
# *Worked example.* A token has the scores [1/8, 3/8, 2/8, 2/8], and k = 2. Expert 1 is chosen first. Experts 2 and 3 are
# equal, and the lower number wins, so that every run decides the same. The weights are 3/5 and 2/5.
#
# `choose_experts` in the next cell does this. Gradients flow through the weights to the logits, but the choice has none, so the
# router only learns how good the chosen experts were relative to each other.


# %% tags=["demo"]
def choose_experts(logits, k):
    """The k best experts of each token, best first, and their weights; both are (tokens, k)."""
    # The order comes from the logits: the softmax rounds -200 and -199 beside a 0 to the same score. A stable sort keeps
    # equal logits in their order, which `topk` does not promise.
    experts = logits.detach().sort(dim=-1, descending=True, stable=True).indices[:, :k]
    scores = logits.softmax(-1).gather(-1, experts)
    return experts, scores / scores.sum(-1, keepdim=True)


for logits in (torch.tensor([[1.0, 3.0, 2.0, 2.0]]).log(), torch.tensor([[-200.0, -199.0, 0.0]])):
    print("logits", logits, "→ experts, weights", *(part.tolist() for part in choose_experts(logits, 2)))
predict(
    "dropped",
    "512 tokens choose one of 8 experts each, at random, so an expert is chosen about 64 times, give or take 7.5. Each expert "
    "takes at most 64 tokens. Which part of the tokens finds its expert full?",
    options=("none", "about 1%", "about 5%", "about 25%"),
)

# %% [markdown]
# ## 5 · Full experts
#
# Tokens choose as they like, so one expert may be chosen by most of them, and its rank then computes while the others
# wait. A **capacity** bounds that: an expert takes only that many tokens, and any further choice is *dropped*. A
# token with no expert left skips the layer through its residual connection. The capacity is usually k · tokens / E,
# the fair share, times a *capacity factor* such as 1.25.
#
# Places go to all first choices before any second choice, and among these to earlier tokens before later ones.
#
# *Worked example.* Three tokens choose [0, 1], [1, 2] and [0, 2], and the capacity is 1. First choices: token 0 gets expert
# 0, token 1 gets expert 1, and token 2 finds expert 0 full. Second choices: token 0 finds expert 1 full, token 1 gets expert 2,
# and token 2 finds it full. The result is [[True, False], [True, True], [False, False]].
#
# ### Exercise 4 (15 points)
#
# `keep_within_capacity(experts, capacity) -> Tensor` says which choices are kept.
#
# - `experts` is (tokens, k), best expert first. The result has the same shape, and the dtype bool.
# - Each expert keeps at most `capacity` choices of all columns together, in the order above.
# - `experts` stays as it is. With a capacity of 0 nothing is kept. There may be no tokens at all, or thousands for one expert.


# %% nbgrader={"grade": false, "grade_id": "keep_within_capacity", "locked": false, "schema_version": 3, "solution": true, "task": false}
def keep_within_capacity(experts: torch.Tensor, capacity: int) -> torch.Tensor:
    """Which choices find a place at their expert."""
    ### BEGIN SOLUTION
    kept, taken = torch.zeros_like(experts, dtype=torch.bool), {}
    for choice in range(experts.shape[1]):
        for token, expert in enumerate(experts[:, choice].tolist()):
            place = taken.get(expert, 0)
            kept[token, choice] = place < capacity
            taken[expert] = place + 1
    return kept
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "keep_within_capacity_test", "locked": true, "points": 15, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("keep_within_capacity", "which choices are kept", hidden="other choices and capacities"):

    def keeps_choices(experts, capacity, expected, slips=None, k=None):
        """`expected` has a word per token with a 1 for each choice that is kept. `slips` maps other results to causes."""
        k = k or len(experts[0])
        given = torch.tensor(experts, dtype=torch.int64).view(len(experts), k)
        before = given.clone()
        got = keep_within_capacity(inout(given), capacity)
        what = (
            f"kept choices of experts = {experts}, capacity = {capacity}"
            if len(experts) < 8
            else (f"kept choices of {len(experts)} tokens, k = {k}, capacity = {capacity}")
        )
        check.dtype(got, torch.bool, what=what)
        check.true(torch.equal(given, before), f"`experts` was changed: leave it as it is ({what})")
        words = " ".join("".join(str(int(kept)) for kept in row) for row in got.tolist()) if got.ndim == 2 else ""
        kept = [[mark == "1" for mark in word] for word in expected.split()]
        cause = (slips or {}).get(words, "")
        check.equal(got, torch.tensor(kept, dtype=torch.bool).view(len(experts), k), what=what, hint=cause)

    slips = {
        "11 01 00": "places were given token by token: all first choices come before any second one",
        "11 11 00": "each column was given a capacity of its own",
        "00 10 11": "the last tokens were given places first",
        "11 11 11": "each expert keeps one choice more than its capacity",
        "01 00 11": "True and False are the other way round",
        "11 00 10": "the rows and columns of the result are mixed up",
        "10 10 01": "a second choice counts even where the first was kept",
        "00 11 00": "a token keeps all of its choices or none here; each choice counts by itself",
    }
    keeps_choices([[0, 1], [1, 2], [0, 2]], 1, "10 11 00", slips)  # the worked example
    slips = {
        "11 00": "each choice counts by itself, so the first choice of token 1 is dropped, and its second one is kept"
    }
    keeps_choices([[0, 1], [0, 2]], 1, "11 01", slips)
    keeps_choices([[0, 1], [1, 0], [0, 1], [2, 0]], 2, "11 10 10 10")
    keeps_choices([[63], [63], [3], [63]], 2, "1 1 1 0")
    keeps_choices([[0, 1], [0, 1]], 4, "11 11")
    keeps_choices([[1, 0], [0, 1]], 0, "00 00")
    keeps_choices([], 3, "", k=2)
    keeps_choices([[5]] * 2100, 2048, "1 " * 2048 + "0 " * 52)  # more than 8 bits, or 16-bit floats, can count

    ### BEGIN HIDDEN TESTS
    def in_order(experts, capacity, k):
        kept, places = [["0"] * k for _ in experts], {}
        for choice in range(k):
            for token, row in enumerate(experts):
                places[row[choice]] = places.get(row[choice], 0) + 1
                if places[row[choice]] <= capacity:
                    kept[token][choice] = "1"
        return " ".join("".join(row) for row in kept)

    for seed in range(8):
        rng = check.rng(seed)
        experts, tokens, k = int(rng.integers(3, 9)), int(rng.integers(1, 40)), int(rng.integers(1, 4))
        rows = [[int(e) for e in rng.permutation(experts)[:k]] for _ in range(tokens)]
        capacity = int(rng.integers(0, 12))
        keeps_choices(rows, capacity, in_order(rows, capacity, k))
    many = [[int(e) for e in check.rng(9).permutation(3)[:2]] for _ in range(700)]
    keeps_choices(many, 300, in_order(many, 300, 2))
    wide = [[int(e) for e in check.rng(10 + token).permutation(256)[:8]] for token in range(64)]
    keeps_choices(wide, 2, in_order(wide, 2, 8))
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "keep_within_capacity",
    "Two loops: over the columns outside, over the tokens inside. Count how many places each expert has given.",
    "Without loops: `experts.T.flatten()` has the choices in the order of the places. A `cumsum` of their `one_hot` numbers "
    "the choices of each expert; reshape to (k, tokens), and transpose back.",
)
from threeloops.lab.drawings import draw_dropped, draw_expert_load, expert_load

with reveal("dropped"):
    show.against_prediction("dropped", "about 5%", source="random routings, drawn below")
    show.figure(draw_dropped((64, 512, 4096, 32768), 8), "tokens dropped although all experts are equally likely")
    explore(
        lambda skew, k, factor: draw_expert_load(expert_load(512, 8, k=k, skew=skew, factor=factor), factor),
        labels={"k": "experts per token", "factor": "capacity factor"},
        skew=[1.0, 0.0, 0.5, 2.0],
        k=[1, 2],
        factor=[1.25, 1.0, 2.0, math.inf],
    )
    print("Skew is how far expert 0's mean logit is above expert 7's; a factor of inf drops nothing.")
debrief(
    "keep_within_capacity",
    """A capacity makes memory and time predictable, but drops tokens. Without one, nothing is dropped, and everybody
    waits for the busiest expert: in the figure, set the factor to inf and raise the skew. So training adds a loss that
    pulls the router towards equal loads (the dives train with it and without it).

    Which token is dropped depends on the others in its batch, and here, as in GShard and Switch, on its place there. Megatron-LM
    with `--moe-expert-capacity-factor` keeps the choices with the highest router probability by default
    (`--moe-token-drop-policy probs`). Either way a
    model with a capacity may answer the same prompt differently in another batch. That is one reason why inference, and more
    and more training too, goes without: "dropless" layers (MegaBlocks) compute whatever comes.""",
    parts=("",),
)

# %% [markdown]
# ## 6 · There and back
#
# Now put the experts on different ranks: **expert parallelism**. Each rank has tokens of its own, as in data parallelism, and
# E/N of the experts. Rank r has the experts from r · E/N on. So tokens travel to their expert and the results travel back,
# each way in an **all-to-all**, in which every rank sends every other a different number of rows.
#
# *Worked example.* 2 ranks, 4 experts. On rank 0 the tokens a, b, c choose the experts 3, 0, 2. Sorted by expert they are b,
# c, a, so b stays, and c and a go to rank 1: `sends = [1, 2]`. Rank 1 must know how many rows come (`gets`), and which of
# them are for expert 2 and which for expert 3, so the counts [1, 0, 1, 1] are exchanged first. The results come back
# in the order b, c, a, and have to be put back as a, b, c.
#
# The given `exchange_rows(rows, sends, gets)` is that all-to-all. It returns the rows that have come, ordered by the
# rank they come from, and its backward sends the gradients back. It also takes counts: `exchange_rows(counts, [2, 2],
# [2, 2])`.
#
# ### Exercise 5 (23 points)
#
# `expert_layer(x, chosen, run_expert, experts)` returns (tokens, width): row t is what expert `chosen[t]` makes of
# `x[t]`. Here k = 1, and nothing is dropped.
#
# - `run_expert(expert, rows)` computes rows with an expert that *this* rank has. Call it at most once per expert, with the
#   rows of all ranks together.
# - Ranks have different numbers of tokens, and some may have none. `experts` is E, which N divides.
# - Each row travels once to its expert and once back. Beyond that, one rank sends another at most 8 bytes per row
#   between them, plus 8 · E · N bytes.
# - Gradients reach `x` and the experts. `x` and `chosen` stay as they are.


# %% tags=["demo"]
def travel():
    rank = dist.get_rank()
    rows = torch.tensor([[10.0 * rank], [10.0 * rank + 1], [10.0 * rank + 2]])
    sends, gets = ([1, 2], [1, 2]) if rank == 0 else ([2, 1], [2, 1])
    return exchange_rows(rows, sends, gets).flatten().tolist()


print("rank 0 has 0, 1, 2 and keeps one row; rank 1 has 10, 11, 12 and keeps one. After the exchange:")
print(*Cluster(2).run(travel).results)


# %% nbgrader={"grade": false, "grade_id": "expert_layer", "locked": false, "schema_version": 3, "solution": true, "task": false}
def expert_layer(x: torch.Tensor, chosen: torch.Tensor, run_expert, experts: int) -> torch.Tensor:
    """Each token's row from its expert, wherever that is."""
    ### BEGIN SOLUTION
    rank, ranks = dist.get_rank(), dist.get_world_size()
    each = experts // ranks
    order = chosen.sort(stable=True).indices
    counts = torch.bincount(chosen, minlength=experts)
    arriving = exchange_rows(counts, [each] * ranks, [each] * ranks).view(ranks, each)
    sends, gets = counts.view(ranks, each).sum(1).tolist(), arriving.sum(1).tolist()
    here = exchange_rows(x[order], sends, gets)
    expert_of = torch.arange(each).repeat(ranks).repeat_interleave(arriving.flatten())
    out = torch.empty_like(here)
    for expert in range(each):
        mine = expert_of == expert
        out[mine] = run_expert(rank * each + expert, here[mine])
    back = exchange_rows(out, gets, sends)
    return back[order.argsort()]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "expert_layer_test_values", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("expert_layer", "rows from their experts", part="values", hidden="other choices and numbers of ranks"):

    def as_if_sorted(chosen, experts):
        """The expert of each token if an owner mistakes its rows, which are in the order of ranks, for sorted by expert."""
        mistaken = [list(picks) for picks in chosen]
        for owner in range(len(chosen)):
            own = [e for e in range(experts) if e * len(chosen) // experts == owner]
            came = [(r, t) for r, p in enumerate(chosen) for e in own for t, pick in enumerate(p) if pick == e]
            for (rank, token), expert in zip(came, sorted(chosen[r][t] for r, t in came), strict=True):
                mistaken[rank][token] = expert
        return mistaken

    def gives(chosen, experts, width=3, seed=1):
        ranks = len(chosen)
        run = run_experts(expert_layer, chosen, experts, width, seed)
        outputs, _, _ = experts_alone(chosen, experts, width, seed)
        counts = [len(picks) for picks in chosen]
        case = f"{experts} experts, " + (
            f"tokens by rank: {counts}" if sum(counts) > 99 else f"chosen by rank: {chosen}"
        )
        for rank, (y, _, _, calls, changed) in enumerate(run.results):
            order = sorted(range(len(chosen[rank])), key=lambda t, rank=rank: chosen[rank][t])
            mistaken = {
                "these rows are sorted by expert: put them back into the order of the tokens": outputs[rank][order],
                "sorted rows were sorted once more: the way back is the inverse of the order, `order.argsort()`": outputs[
                    rank
                ][order][order],
                "rows that came from several ranks were computed as if they stood expert by expert": experts_alone(
                    as_if_sorted(chosen, experts), experts, width, seed
                )[0][rank],
            }
            require_alike(y, outputs[rank], f"output on rank {rank} ({case})", mistaken)
            own = range(rank * experts // ranks, (rank + 1) * experts // ranks)
            for expert in own:
                expected = sum(picks.count(expert) for picks in chosen)
                seen = [rows for which, rows in calls if which == expert and rows]
                what = f"rows in each call of run_expert({expert}, …) on rank {rank} ({case})"
                check.equal(seen, [expected] if expected else [], what=what)
            hint = "they belong to the caller: leave them as they are"
            check.equal(changed, [], what=f"arguments that were changed on rank {rank} ({case})", hint=hint)

    gives([[3, 0, 2], [1, 1, 2]], 4)
    gives([[0, 0, 0], [1], [0, 1, 2, 2, 0]], 3)
    gives([[1, 1], []], 2)
    gives([[1] * 2049 + [0], [0, 1]], 2)  # more than 8 bits, or 16-bit floats, can count
    ### BEGIN HIDDEN TESTS
    rng = check.rng(4)
    gives(
        [[int(e) for e in rng.integers(0, 8, size=int(rng.integers(0, 9)))] for _ in range(4)],
        8,
        width=5,
        seed=1912931182,
    )
    gives([[int(e) for e in rng.integers(0, 6, size=int(rng.integers(1, 7)))] for _ in range(3)], 6, seed=2154434690)
    gives([[], []], 4)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "expert_layer_test_traffic", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("expert_layer", "what travels", part="traffic", hidden="other choices"):

    def travels(chosen, experts, width, seed=0):
        ranks = len(chosen)
        run = run_experts(expert_layer, chosen, experts, width, seed)
        expected, _, _ = experts_alone(chosen, experts, width, seed)
        check.computed([got for got, *_ in run.results], expected, f"the run on {ranks} ranks, {experts} experts,")
        owner = [expert * ranks // experts for expert in range(experts)]
        rows = [[sum(owner[e] == target for e in picks) for target in range(ranks)] for picks in chosen]
        for a in range(ranks):
            for b in range(ranks):
                if a != b:
                    sent = sum(m.size for m in run.messages if (m.source, m.target) == (a, b) and m.ready < 1)
                    there = rows[a][b] + rows[b][a]
                    least, more = there * 4 * width, 8 * there + 8 * experts * ranks
                    what = (
                        f"rank {a} sends {sent:,} bytes to rank {b}: there are {rows[a][b]} rows to their expert and "
                        f"{rows[b][a]} rows back, of {4 * width} bytes each, and at most {more:,} bytes besides, so it "
                        f"should be from {least:,} to {(most := least + more):,}"
                    )
                    check.true(least <= sent <= most, f"{what} ({experts} experts, chosen by rank: {chosen})")
                    both = sum(m.size for m in run.messages if (m.source, m.target) == (a, b))
                    check.true(
                        both <= 2 * most,
                        f"rank {a} sends {both:,} bytes to rank {b} forward and backward: expected at most {2 * most:,}",
                    )

    travels([[3, 0, 2], [1, 1, 2]], 4, 64)
    travels([[0, 0, 2, 0], [1, 0], [2, 2]], 3, 128)
    ### BEGIN HIDDEN TESTS
    travels([[0, 7, 7, 7], [1, 6], [], [2, 2, 5]], 8, 96, seed=2645751316)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "expert_layer_test_gradients", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("expert_layer", "gradients of the tokens and the experts", part="gradients", hidden="other choices"):

    def learns(chosen, experts, width=3, seed=1):
        run = run_experts(expert_layer, chosen, experts, width, seed)
        _, of_x, of_experts = experts_alone(chosen, experts, width, seed)
        case = f"{experts} experts, chosen by rank: {chosen}"
        for rank, (_, x_grad, weights, *_) in enumerate(run.results):
            if chosen[rank]:
                what = f"gradient of x on rank {rank} ({case})"
                cut = "there is none: an all-to-all cut the rows off from the graph, which exchange_rows does not"
                check.true(x_grad is not None, f"{what}: {cut}")
                require_alike(x_grad, of_x[rank], what)
            for expert, got in weights.items():
                if any(expert in picks for picks in chosen):
                    require_alike(got, of_experts[expert], f"gradient of expert {expert} on rank {rank} ({case})")

    learns([[3, 0, 2], [1, 1, 2]], 4)
    learns([[0, 0, 0], [1], [0, 1, 2, 2, 0]], 3)
    ### BEGIN HIDDEN TESTS
    learns([[3, 3], [0, 1, 3, 2], [5, 4, 4]], 6, width=4, seed=2351334687)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "expert_layer",
    "Sort the tokens by expert: `order = chosen.sort(stable=True).indices`. Then rows for one rank stand together.",
    "`torch.bincount(chosen, minlength=experts)` are the counts. Exchange them, E/N to each rank; seen as (ranks, E/N), "
    "their sums are `gets`.",
    "Rows come rank by rank, and from each rank expert by expert. `repeat_interleave` of the counts says whose each row is.",
    "After the way back, `back[order.argsort()]` has the old order.",
    "If the backward pass deadlocks: a rank that received no rows must still compute its (empty) result from the tensor that "
    "it received. Otherwise it skips the exchanges of the backward pass, and the others wait for it.",
)
from threeloops.lab.drawings import draw_exchange

animate(
    lambda frame: draw_exchange([[2, 0, 1, 0], [2, 1, 1, 0], [0, 2, 1, 1]], frame),
    range(9),
    seconds=0.9,
    caption="Twelve tokens on three ranks travel to their experts and back: sorted, sent, computed, returned, put in order",
)
debrief(
    "expert_layer",
    """What a rank sends depends on the tokens. With equal loads it is (N − 1)/N · k · tokens · width · bytes per exchange, and a
    training step has four of them: there and back, forward and backward. An all-reduce of tensor parallelism has a fixed
    size; here the busiest rank decides when the layer ends, in arithmetic and in bytes.

    All sizes must be known before rows can be sent, so the small exchange of counts comes first. On GPUs it also forces the
    CPU to wait for them. Padding each expert to a capacity avoids that, at the price of bytes for empty rows (GShard).

    An expert's gradient is complete where the expert lives, since the rows of all ranks went through it. It is a sum over
    all ranks' tokens, whereas data parallelism averages other gradients over ranks: divide it by N too.""",
    parts=("values", "traffic", "gradients"),
)

import numpy as np
from threeloops.inner.predict.silicon.experts import loads
from threeloops.lab.drawings.measured import experts as silicon
from threeloops.lab.drawings.measured.series import draw_floors

predict(
    "skewed_experts",
    "Eight H100s hold 128 experts of width 2,048, and 16,384 tokens choose 8 each. If experts are chosen by a power law "
    "instead of equally often, how many times as long does the busiest GPU compute?",
    unit="×",
)
predict(
    "few_tokens",
    "The same with 16 tokens. What does the power law do to the time now?",
    options=("longer", "the same, within 5%", "shorter"),
)
routings = {
    name: silicon.experts("H100 SXM", kind)
    for name, kind in {"equal loads": "balanced", "power law": "power_law_1.2"}.items()
}
many, few = (routings["power law"].at(tokens) / routings["equal loads"].at(tokens) for tokens in (16384, 16))
fullest = loads(*map(np.array, ((16, 16384), (8, 8), (128, 128), (8, 8), (1.2, 1.2))))
show.against_prediction("skewed_experts", round(many, 2), unit="×", source=routings["power law"].source)
show.against_prediction("few_tokens", "shorter", source=routings["power law"].source)
with reveal("few_tokens"):
    show.figure(
        draw_floors(
            routings, {}, "Experts on the busiest of eight H100s, measured by NVIDIA", ticks=(1, 16, 256, 4096, 16384)
        ),
        "the time of the busiest GPU by the number of tokens, with equal loads and with a power law",
    )
    print(
        f"16,384 tokens take {many:.2f} times as long: the busiest GPU has {fullest.tokens[1] / 16384:.1f} times its share, and the "
        f"others wait. 16 tokens take {few:.2f} times as long, because most of their time goes into reading weights. With equal loads a "
        f"GPU reads all of its 16 experts; under the power law the busiest reads {fullest.active[0]:.1f}. (Exponent 1.2, mean of random routings.)"
    )
    sent = {
        name: silicon.exchange("H100 SXM", kind, "dispatch")
        for name, kind in {"DeepEP": "deepep_ht", "DeepEP, low latency": "deepep_ll"}.items()
    }
    ranks = 7 * (1 - math.comb(256 - 32, 8) / math.comb(256, 8))
    floor = {tokens: tokens * ranks * 7168 * 2 / 450e9 for tokens in sent["DeepEP"].sizes}
    show.figure(
        draw_floors(
            sent,
            {"bytes at 450 GB/s": floor},
            "Tokens on their way to 256 experts on eight H100s, measured by NVIDIA",
            "tokens of each GPU",
            (2, 32, 512, 8192, 65536),
        ),
        "the time to send tokens to their experts, by two kinds of DeepEP's kernels, and their bytes over the bandwidth",
    )
    print(
        f"DeepEP sends a token of 7,168 elements once to each GPU that has one of its 8 experts, {ranks:.1f} of the other 7 on average. 16,384 "
        f"tokens take {1e3 * sent['DeepEP'].at(16384):.2f} ms, {sent['DeepEP'].at(16384) / floor[16384]:.1f} times as long as their bytes. "
        f"32 tokens take {1e6 * sent['DeepEP'].at(32):.0f} µs, because counts come first, as in your layer. The kernels for low "
        f"latency reserve room for the most rows, so nobody waits for counts: {1e6 * sent['DeepEP, low latency'].at(32):.0f} µs. ({sent['DeepEP'].source})"
    )

# %% [markdown]
# ## 7 · How far to cut
#
# A machine has G GPUs, and you train with tensor parallelism over n of them and data parallelism over d = G/n. The arithmetic
# per GPU is the same for every n, so communication decides. Leave latency and overlap out. Activations and gradients
# are sent in 16 bits.
#
# - **Tensor parallel**: each block has the all-reduces of section 3, each of S = (tokens · n/G) · width · 2 bytes.
#   Each rank sends 2(n − 1)/n · S per all-reduce, over NVLink if n divides `per_node` (then no group spans two
#   nodes), otherwise over the network.
# - **Data parallel**: one all-reduce of a rank's gradients, S = parameters/n · 2 bytes. Each rank sends 2(d − 1)/d · S over the
#   network, even where the whole machine is one node (a simplification).
# - **Memory**: 16 · parameters/n bytes per GPU (lab 06) must fit.
#
# *Worked example.* 13 billion parameters, 40 layers, width 5,120, 40 heads, a million tokens, 64 GPUs of 80 GB, 8 per node, NVLink
# 450 GB/s, network 50 GB/s. n = 2 needs 104 GB. n = 4 needs 52 GB and takes 0.341 + 0.244 = 0.585 s, and n = 8 takes 0.796 + 0.114 = 0.910 s.
#
# n must also divide the heads. The explorer below draws these times. Change the tokens per step, the model and the network:
# what moves the best degree?

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "across",
    "In the worked example, n = 16 instead of 8 (say the model had 48 heads): how many times as long do the tensor-parallel "
    "all-reduces take? They are 15/16 instead of 7/8 of twice as many bytes, over 50 instead of 450 GB/s.",
    unit="×",
)
predict(
    "fewer",
    "With a quarter of the tokens per step, which degree is the best in the worked example?",
    options=("still 4", "8", "16"),
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.lab.drawings import draw_degrees

show.against_prediction(
    "across", round((15 / 50) / (7 / 450), 1), unit="×", source="model: (15 ÷ 50 GB/s) ÷ (7 ÷ 450 GB/s)"
)
show.against_prediction("fewer", "8", source="model: 0.313 s with n = 8, 0.329 s with n = 4")
with reveal("fewer"):
    explore(
        lambda thousand_tokens, billion_parameters, network_GBs: draw_degrees(
            thousand_tokens * 1e3, billion_parameters * 1e9, network_GBs * 1e9
        ),
        labels={"network_GBs": "network, GB/s"},
        thousand_tokens=[250, 1000, 4000],
        billion_parameters=[13, 7, 30],
        network_GBs=[50, 12.5, 450],
    )

# %% [markdown]
# More tensor parallelism means fewer gradients per rank to sum over the network, and more tokens per group to sum over NVLink.
# Beyond a node the second part also jumps by the ratio of the two links, here 9. That is why people say "tensor parallelism
# stays inside the node".
#
# The model leaves out overlap, which hides gradients (lab 09) but hardly the all-reduces inside blocks. So at work the
# smallest degree that fits is a good first try. Lab 10 shrinks what has to fit, and lab 12 cuts between layers instead.
#
# ## 8 · A mixture of experts, trained with your pieces
#
# The next cell trains a small model for five steps, on one rank and on four. Each token chooses 2 of 4 experts. Your
# `keep_within_capacity` gives each expert at most 8 of the 32 choices of 16 tokens, and your `expert_layer` carries them there
# and back. On four ranks, each has 16 tokens and one expert, and all-reduces the gradients of the other weights. Are the losses
# the same?

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.lab.drawings.training.experts import REFERENCE


def train_mixture(parts, steps=5, groups=4, tokens=16, width=8, experts=4, capacity=8):
    """Losses, choices dropped, and bytes sent. A rank has its part of the groups of tokens and of the experts."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own = range(rank * groups // ranks, (rank + 1) * groups // ranks)
    data = torch.cat([drawn(tokens, width, seed=20 + group) for group in own])
    first, router = (drawn(n, width, seed=n).div(2).requires_grad_() for n in (width, experts))
    held = range(rank * experts // ranks, (rank + 1) * experts // ranks)
    weights = {e: drawn(width, width, seed=50 + e).div(2).requires_grad_() for e in held}
    optimizer, losses, dropped = torch.optim.Adam([first, router, *weights.values()], lr=0.05), [], []
    for _ in range(steps):
        x = data @ first.T
        chosen, scores = choose_experts(x @ router.T, 2)
        kept = torch.cat([parts.keep_within_capacity(group, capacity) for group in chosen.split(tokens)])
        token, choice = kept.nonzero(as_tuple=True)
        rows = parts.expert_layer(
            x[token], chosen[token, choice], lambda e, rows: torch.tanh(rows @ weights[int(e)].T), experts
        )
        y = x.index_add(0, token, rows * scores[token, choice, None])
        loss = (y - data.sin()).square().sum() / (groups * tokens * width)
        optimizer.zero_grad()
        loss.backward()
        totals = torch.stack([loss.detach(), (~kept).sum()])
        for shared in (first.grad, router.grad, totals):
            dist.all_reduce(shared)  # an expert's gradient is complete where the expert is
        optimizer.step()
        losses.append(float(totals[0]))
        dropped.append(int(totals[1]))
    return losses, dropped


if parts := together(*REFERENCE, library=REFERENCE):
    runs = {ranks: Cluster(ranks).run(train_mixture, parts) for ranks in (1, 4)}
    show.table(
        [(f"{n} rank{'s' * (n > 1)}", *(f"{loss:.6f}" for loss in run.results[0][0])) for n, run in runs.items()]
        + [("choices dropped, of 128", *runs[4].results[0][1])],
        header=("loss", *(f"step {step}" for step in range(1, 6))),
        caption=f"A top-2 mixture of 4 experts. On four ranks, rank 0 sends {sent_by(runs[4], 0):,} bytes in five steps",
    )
    alone, shared = (torch.tensor(runs[n].results[0][0]) for n in (1, 4))
    print(f"largest difference between the losses on 1 and on 4 ranks: {float((alone - shared).abs().max()):.1e}")

# %% [markdown]
# ## In practice
#
# In PyTorch you name the cuts: `parallelize_module(model, mesh, {"mlp.up": ColwiseParallel(), "mlp.down":
# RowwiseParallel()})`. Elsewhere:
#
# | | Megatron-Core 0.19 | vLLM 0.33 | SGLang 0.5.23 |
# |---|---|---|---|
# | tensor | `--tensor-model-parallel-size` | `--tensor-parallel-size` | `--tp-size` |
# | experts | `--expert-model-parallel-size` | `--enable-expert-parallel` | `--ep-size` |
# | all-to-all | `--moe-token-dispatcher-type` | `--all2all-backend` | `--moe-a2a-backend` |
#
# The last cell trains the course's GPT in one process and on 4 ranks.
#
# ## What to remember
#
# - Cut the first matrix by outputs and the second by inputs: one all-reduce per MLP and one per attention, each way.
# - A cut region begins with a function that communicates only backward, and ends with one that does so only forward.
# - Cut attention by whole heads, and queries, keys and values each.
# - Experts cost two all-to-alls forward and two backward. How long they take depends on where the tokens go.
# - Tensor parallelism sends activations, data parallelism sends gradients. Tokens, parameters and links decide between them.
#
# The deep dives (`11_tensor_and_expert_parallel_dives.ipynb`) have sequence parallelism, a loss without the whole logits,
# attention over a ring, and routers that learn to balance.
#
# ## Reflection
#
# Your model trains on one node of 8 GPUs with tensor parallelism of degree 8. You are given seven more nodes. What do you
# change, what do you measure first, and what would make you change your mind? A paragraph is enough.

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# I keep the degree of 8 inside each node and add data parallelism over the 8 nodes, since the network is slower than NVLink.
# First I measure a step on one node, the time of the all-reduces inside blocks, and the time of one all-reduce of a rank's
# gradients over the network. If the all-reduces inside blocks take much of the step and memory allows it (sharded
# optimizer states), I try a degree of 4 or 2. If gradients dominate because there are few tokens per step, I keep 8, accumulate, or
# enlarge the batch. If the model would not even fit at 8, I cut it into pipeline stages before I let a group span two nodes.

# %% tags=["demo"] jupyter={"source_hidden": true}
TOKENS = torch.randint(0, 64, (2, 17), generator=torch.Generator().manual_seed(5))


def three_steps(cut):
    torch.manual_seed(0)
    model = GPT(GPTConfig(**SHAPE))
    if cut:
        parallelize(model, gpt_plan(sequence_parallel=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        loss = model(TOKENS[:, :-1], TOKENS[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, sum(p.numel() for p in model.parameters())


runs = {"one process": Cluster(1).run(three_steps, False), "4 ranks": Cluster(4).run(three_steps, True)}
show.table(
    [(name, *(f"{loss:.6f}" for loss in run.results[0][0]), f"{run.results[0][1]:,}") for name, run in runs.items()],
    header=("", "loss, step 1", "step 2", "step 3", "parameters per rank"),
    caption="The course's GPT, cut over 4 ranks and in one process",
)
term("tensor parallelism")
calibration()
