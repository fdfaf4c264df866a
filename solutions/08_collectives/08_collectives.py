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
#     title: How do many GPUs sum their gradients?
#     minutes: 190
#     withholds: [threeloops.training.collectives, threeloops.lab.drawings.training.ring]
#     edition: 2
# ---

# %% [markdown]
# # How do many GPUs sum their gradients?
#
# ![Eight GPUs with a tensor each, and below them the same GPUs, each with the sum](attachment:opening.png)
#
# In data-parallel training each GPU computes its own gradient, and before the update every GPU needs the sum of all of
# them. This is called an **all-reduce**. It is a **collective**: an operation that all GPUs of a group call together. How
# long does it take, and how few bytes have to cross the network?
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import math

import numpy as np
import torch
import torch.distributed as dist
from threeloops.lab import (
    animate,
    calibration,
    check,
    debrief,
    figure,
    hint,
    palette,
    predict,
    reveal,
    show,
    term,
    together,
)
from threeloops.lab.checking.on_cluster import on_cluster
from threeloops.training.cluster import Cluster, ClusterError, ask, fabric, now, run_on_processes, uniform
from threeloops.units import readable_bytes

ALPHA, BETA = 14e-6, 50e9  # of the network between machines: seconds, and bytes per second in each direction
NVLINK_ALPHA, NVLINK_BETA = 3.4e-6, 450e9  # of the links inside a machine


def network(ranks):
    """One H100 in each of `ranks` machines, with a network port of 400 Gbit/s (50 GB/s) out and one in."""
    return fabric(ranks, 1)


def integers(ranks, n, seed=0, dtype=torch.float32):
    """A tensor of n whole numbers per rank. Their sums are exact, in whatever order they are added. Those of an integer
    dtype are too large for float32."""
    generator = torch.Generator().manual_seed(1000 * seed + n)
    middle = 0 if dtype.is_floating_point else 2**40
    return [middle + torch.randint(-9999, 10_000, (n,), generator=generator).to(dtype) for _ in range(ranks)]


def on_each(function, tensors, *arguments):
    """Call the function with this rank's own tensor. Return its result, and the tensor afterwards."""
    x = tensors[dist.get_rank()]
    return function(x, *arguments), x


def on_own(function, *arguments):
    """Do the same in the tests, where a rank gets only its own tensor."""
    x = ask("tensor")
    return function(x, *arguments), x


def on_ones(function, n, *arguments):
    """Call the function on each rank and return nothing: only bytes and times matter."""
    function(torch.ones(n), *arguments)


def run_ranks(function, tensors, *arguments, topology=None, collectives=False):
    """Run it on one rank per tensor; whatever stops it becomes the message of the check."""
    ranks, n = len(tensors), len(tensors[0])
    topology = network(ranks) if topology is None else topology
    try:
        served = {"tensor": lambda rank: tensors[rank]}
        run = on_cluster(Cluster(topology), on_own, function, *arguments, seconds=30, served=served)
    except ClusterError as error:
        check.true(False, f"{type(error).__name__} on {ranks} ranks with {n} elements per rank:\n{error}")
    used = sorted({span.what for span in run.collectives} - {"barrier"})
    check.true(
        collectives or not used,
        f"{', '.join(used)} of torch.distributed was called: use isend, irecv, send and recv only",
    )
    return run


def same(got, expected):
    return torch.is_tensor(got) and got.shape == expected.shape and bool((got.double() == expected.double()).all())


def require_results(run, tensors, expected, what, known=lambda rank: {}, argument="x"):
    """Each rank returns exactly its `expected` and leaves its argument alone. `known(rank)` are slips and their values."""
    for rank, (got, after) in enumerate(run.results):
        where = f"{what} on rank {rank} of {len(tensors)}"
        n = max(len(tensors[rank]), len(expected[rank]))
        check.true(torch.is_tensor(got), f"{where} is {type(got).__name__}: expected a tensor; is a `return` missing?")
        check.dtype(got, expected[rank].dtype, what=where)
        cause = next((cause for cause, value in known(rank).items() if same(got, value)), "")
        check.close(got, expected[rank], rtol=0, what=f"{where}, tensors of {n} elements", hint=cause)
        check.equal(
            after, tensors[rank], what=f"{argument} on rank {rank} after the call", hint=f"work on {argument}.clone()"
        )


def require_computed(run, expected, case):
    """Require right results: what a run sends counts only with them."""
    for rank, (got, _) in enumerate(run.results):
        if expected[rank].numel():
            check.computed([got], [expected[rank]], f"rank {rank} ({case})")


def require_bytes(run, expected, messages, case, whole=0):
    """Bytes from each rank to each other, and the number of messages. `whole` are the bytes of a whole tensor."""
    sizes = {m.size for m in run.messages}
    wrong = sorted({(m.source, m.target) for m in run.messages if m.size and not expected[m.source][m.target]})
    if wrong:
        a, b = wrong[0]
        right = ", ".join(f"rank {to}" for to, sent in enumerate(expected[a]) if sent)
        check.true(
            False,
            f"rank {a} sends to rank {b}, {case}: expected {f'messages to {right} only' if right else 'no messages'}",
        )
    cause = "each message holds the whole tensor: send one chunk" if whole and sizes == {whole} else ""
    steps = "N steps: N − 1 are enough" if whole and len(run.messages) == len(expected) ** 2 else ""
    check.equal(len(run.messages), messages, what=f"messages, {case}", hint=cause or steps)
    for a, row in enumerate(run.bytes):
        for b, sent in enumerate(row):
            check.equal(sent, expected[a][b], what=f"bytes from rank {a} to rank {b}, {case}", hint=cause)


def require_no_padding(run, n, ranks, size):
    """Check that chunks are not padded. The traffic check, not this one, faults whole tensors in each step."""
    total, padded = sum(m.size for m in run.messages), ranks * (ranks - 1) * -(-n // ranks) * size
    if total != ranks * (ranks - 1) * n * size:
        check.equal(
            total,
            (ranks - 1) * n * size,
            what=f"bytes in all messages, {ranks} ranks, {n} elements of {size} bytes",
            hint="all chunks are padded to the longest: send them as tensor_split cuts them" if total == padded else "",
        )


def to_next(ranks, sent):
    """The table of bytes where rank r sends sent(r) to rank r + 1 and nothing to any other."""
    return [[sent(a) if b == (a + 1) % ranks else 0 for b in range(ranks)] for a in range(ranks)]


def require_seconds(run, expected, case, known):
    """Virtual seconds, to 12 digits. `known` are slips and the seconds that they take."""
    close = (cause for cause, seconds in known.items() if math.isclose(run.seconds, seconds, rel_tol=1e-9))
    check.close(run.seconds * 1e6, expected * 1e6, rtol=1e-12, unit="µs", what=f"time, {case}", hint=next(close, ""))
    check.note(f"time, {case}", run.seconds * 1e6, expected * 1e6, "µs")


OUTCOMES = ("it works, in the same time", "it works, and takes four times as long", "it never ends")


def show_outcome(key, program, tensors, *, beside):
    """Run a program whose outcome was predicted, and show which outcome it has. `beside` is an ordinary program."""
    usual = Cluster(network(len(tensors))).run(on_each, beside, tensors).seconds
    try:
        seconds = Cluster(network(len(tensors))).run(on_each, program, tensors).seconds
        outcome, said = OUTCOMES[seconds > 2 * usual], f"it takes {seconds * 1e6:.1f} µs"
    except ClusterError as error:
        outcome, said = OUTCOMES[2], error
    show.against_prediction(key, outcome, source="run on the virtual cluster")
    with reveal(key):
        print(said)


RATIOS = ("less than 1.2 times", "1.2 to 2 times", "more than twice")


def length(n, ranks, index):
    """Elements of chunk `index` of torch.tensor_split: the first n mod N chunks have one more."""
    return n // ranks + (index % ranks < n % ranks)


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
def draw_question():
    fig, axes = figure(width=9.5, height=3.4)
    shades = [
        palette.sky,
        palette.orange,
        palette.green,
        palette.yellow,
        palette.blue,
        palette.vermillion,
        palette.purple,
        palette.grey,
    ]
    for rank, shade in enumerate(shades):
        axes.barh([2.5], [0.8], left=rank, height=0.55, color=shade, alpha=0.7)
        axes.text(rank + 0.4, 2.95, f"GPU {rank}", ha="center", fontsize=10)
        for part, other in enumerate(shades):
            axes.barh([0.45 + 0.09 * part], [0.8], left=rank, height=0.09, color=other, alpha=0.7)
        for start, end in (((rank + 0.4, 2.15), (rank + 0.4, 1.9)), ((rank + 0.4, 1.5), (rank + 0.4, 1.25))):
            axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": palette.grey, "linewidth": 2})
    axes.text(3.9, 1.7, "network: 50 GB/s out of each GPU, and 50 GB/s in", ha="center", va="center", fontsize=12)
    axes.text(3.9, 0.05, "all of them need the sum: how long does it take?", ha="center", fontsize=12)
    axes.set(xlim=(-0.2, 8.0), ylim=(-0.1, 3.3), xticks=[], yticks=[])
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    return fig


show.figure(
    draw_question(), "eight GPUs with a tensor each, and below them the same GPUs, each with the sum of all tensors"
)

# %% [markdown]
# ## 1 · Messages
#
# A **rank** is one of the processes that work together, usually one per GPU. Here the ranks run on a **virtual cluster**:
# each is a real process with real tensors, but the network between them is simulated. A message of *s* bytes takes
# **α + s/β** seconds: the latency α, plus its bytes over the bandwidth β. This is the **α–β model**. Our network has
# β = 50 GB/s (400 Gbit/s) and α = 14 µs, which is what NCCL, the communication library for GPUs, assumes for one step of a
# large message over a network. Each rank has one port out and one port in. Messages through the same port share its
# bandwidth, one after the other, but their latencies overlap: N − 1 messages of s bytes to the same rank take
# α + (N − 1)·s/β, even if it receives them one by one. Computation takes no time here.
#
# The next cell is a whole program. Every rank sends its tensor to the next rank, receives the tensor of the rank
# before it, and returns that.
#
# - `dist.isend(tensor, to)` starts to send and returns a handle at once. `tensor` must not change until `wait()` of the
#   handle has returned.
# - `dist.recv(tensor, source)` waits for the next message from `source` and writes it into `tensor`, which must have the
#   right shape and dtype. `dist.irecv` only starts to receive, and its handle's `wait()` does the waiting.
# - `dist.send(tensor, to)` is an `isend` with its `wait()`: it returns when the receiver has asked for the message and the
#   bytes have left.
#
# `Cluster(network(4)).run(f, …)` runs `f` on four ranks, and `run.results` has what each of them returned. `on_each` is a
# helper of the setup cell that hands each rank its own tensor. To try a function of yours, put it in place of `pass_on`.


# %% tags=["demo"]
def pass_on(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    got = torch.empty_like(x)
    sent = dist.isend(x, (rank + 1) % size)
    dist.recv(got, (rank - 1) % size)
    sent.wait()
    return got


from threeloops.training.cluster.pictures import gantt, link_matrix

tensors = [torch.full((250_000,), float(rank)) for rank in range(4)]  # 1 MB per rank
run = Cluster(network(4)).run(on_each, pass_on, tensors)
print("first elements:", [result[0].item() for result, _ in run.results])
print(f"{run.seconds * 1e6:.1f} µs: 14 µs, and 1 MB at 50 GB/s takes 20 µs")
show.figure(gantt(run), "each rank sends one message to the next; all four are on their way at the same time")

predict(
    "recv_first",
    "Four ranks, and each calls dist.recv from the rank before it, then dist.send to the next. What happens?",
    options=OUTCOMES,
)


def recv_first(x):
    rank, size = dist.get_rank(), dist.get_world_size()
    got = torch.empty_like(x)
    dist.recv(got, (rank - 1) % size)
    dist.send(x, (rank + 1) % size)
    return got


show_outcome("recv_first", recv_first, tensors, beside=pass_on)

# %% [markdown]
# Each rank waits for another, so none can go on: this is a **deadlock**. On real GPUs it is a job that hangs until a
# timeout. The virtual cluster says which rank waits for which, and in which line. With `dist.send` first on every rank it is
# the same: each waits until the next one asks. Start one of the two without waiting, with `isend` or `irecv`. (For NCCL put
# both into one `dist.batch_isend_irecv`.)
#
# ### Exercise 1 (15 points)
#
# The simplest all-reduce sends everything to rank 0. Write `sum_through_rank_0(x) -> Tensor`, which runs on every rank.
#
# - Every other rank sends `x` to rank 0. Rank 0 adds them all to its own, and sends the sum to each of the others.
# - Every rank returns the sum of all ranks' `x`, with the shape and dtype of `x` (one dimension). `x` does not change.
# - There are 2(N − 1) messages, each with a whole tensor. One rank alone sends nothing.
# - For s bytes it takes 2(α + (N − 1)·s/β) seconds.
# - Exercises 1 to 3 use `isend`, `irecv`, `send` and `recv` only: the collectives of `torch.distributed` are what you build.
#
# By hand: ranks 0, 1, 2 with (1, 2), (10, 20), (100, 200) all return (111, 222), after four messages.


# %% nbgrader={"grade": false, "grade_id": "sum_through_rank_0", "locked": false, "schema_version": 3, "solution": true, "task": false}
def sum_through_rank_0(x: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' x, on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ### BEGIN SOLUTION
    total = x.clone()
    if rank:
        dist.send(x, 0)
        dist.recv(total, 0)
        return total
    got = torch.empty_like(x)
    for source in range(1, size):
        dist.recv(got, source)
        total += got
    for to in range(1, size):
        dist.send(total, to)
    return total
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "sum_through_rank_0_test_values", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("sum_through_rank_0", "the sum on every rank", part="values", hidden="other numbers of ranks and sizes"):

    def naive_values(tensors):
        total = sum(tensors)

        def known(rank):
            return {
                "that is the rank's own x": tensors[rank],
                "that is the mean: do not divide": total / len(tensors),
                "the last rank's x is missing": total - tensors[-1],
                "the x of rank 0 is missing": total - tensors[0],
                "that is the x of rank 0: it sends before it has added": tensors[0],
                "the rank's own x is added twice": total + tensors[rank],
            }

        run = run_ranks(sum_through_rank_0, tensors)
        require_results(run, tensors, [total] * len(tensors), "the sum", known)

    naive_values([torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0]), torch.tensor([100.0, 200.0])])
    naive_values([torch.tensor([2**60 + 1, 5]), torch.tensor([2**60 + 3, 7])])
    naive_values(integers(1, 3))
    ### BEGIN HIDDEN TESTS
    naive_values(integers(5, 17, seed=2449489742))
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "sum_through_rank_0_test_traffic", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("sum_through_rank_0", "what goes through rank 0", part="traffic", hidden="other sizes"):

    def naive_traffic(ranks, n, seed=0):
        tensors, size, case = integers(ranks, n, seed), 4 * n, f"{ranks} ranks, {4 * n:,} bytes each"
        run = run_ranks(sum_through_rank_0, tensors)
        require_computed(run, [sum(tensors)] * ranks, case)
        expected = [[size if (a == 0) != (b == 0) else 0 for b in range(ranks)] for a in range(ranks)]
        require_bytes(run, expected, 2 * (ranks - 1), case)
        require_seconds(run, 2 * (ALPHA + (ranks - 1) * size / BETA), case, {})

    naive_traffic(4, 1000)
    ### BEGIN HIDDEN TESTS
    naive_traffic(3, 5000, seed=2236067978)
    naive_traffic(3, 0)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "sum_through_rank_0",
    "Two branches: what rank 0 does, and what every other rank does.",
    "Rank 0 needs a tensor to receive into: `got = torch.empty_like(x)`. Its total starts as `x.clone()`.",
    "`dist.send(total, to)` is an `isend` with its `wait()`. The others send first, and then receive.",
)
debrief(
    "sum_through_rank_0",
    """All others send at once, but they share the port into rank 0, so their bytes arrive one after another:
    α + (N − 1)·s/β. The same happens on the way back, and the whole takes 2(α + (N − 1)·s/β). Latency is paid only
    twice, whatever N is. The bytes through rank 0 grow with N, while every other port is idle most of the time.""",
    parts=("values", "traffic"),
)

# %% [markdown]
# ## 2 · The ring: reduce-scatter
#
# To use all ports at once, cut the tensor into N **chunks** and let a partial sum of each travel around a ring. In every
# step each rank sends one chunk to the next rank, and adds the one that arrives. After N − 1 steps each rank holds one
# chunk of the complete sum: this is a **reduce-scatter**. After another N − 1 steps, in which complete chunks are passed
# on, all ranks have everything: an **all-gather**. Both together are the ring all-reduce.
#
# In the animation rank r starts with 10^r in every chunk, so the digits of a sum say whose values are in it.

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.lab.drawings import draw_ring, ring_steps
from threeloops.lab.drawings.training import ring as gathering

animate(
    draw_ring,
    ring_steps(4),
    seconds=1.8,
    caption="A ring all-reduce of four ranks: partial sums (blue) grow on their way, complete ones (green) are passed on.",
    still=2,
)
term("ring all-reduce")
predict(
    "ring_speedup",
    "8 ranks, 16 MiB each, α = 14 µs, β = 50 GB/s. How many times faster than through rank 0 is the ring all-reduce?",
    unit="×",
)

# %% [markdown]
# After the reduce-scatter rank r has chunk r, as in `torch.distributed`. Chunk i of `x` is `x.tensor_split(N)[i]`, and if N
# does not divide the length the first chunks are longer by one element. For N = 3:
#
# | | rank 0 | rank 1 | rank 2 |
# |---|---|---|---|
# | step 0: sends chunk | 2 | 0 | 1 |
# | step 0: receives and adds to chunk | 1 | 2 | 0 |
# | step 1: sends chunk | 1 | 2 | 0 |
# | step 1: receives and adds to chunk | 0 | 1 | 2 |
#
# ### Exercise 2 (25 points)
#
# `reduce_scatter(x) -> Tensor` returns, on rank r, chunk r of the sum of all ranks' `x`.
#
# - `x` is contiguous with one dimension, of any length and dtype, and does not change.
# - A rank sends to the next rank only, N − 1 messages of one chunk each. A chunk may have no elements.
# - It takes (N − 1)(α + ⌈n/N⌉ · e/β) seconds for n elements of e bytes. One rank alone returns its `x`.
#
# By hand: ranks 0 and 1 with (1, 2, 3) and (10, 20, 30). Chunk 0 has two elements and chunk 1 has one. Rank 0 returns
# (11, 22) and rank 1 returns (33).


# %% nbgrader={"grade": false, "grade_id": "reduce_scatter", "locked": false, "schema_version": 3, "solution": true, "task": false}
def reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    """Chunk `rank` of the sum of all ranks' x."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ### BEGIN SOLUTION
    chunks = x.clone().tensor_split(size)
    for step in range(size - 1):
        mine = chunks[(rank - 2 - step) % size]
        got = torch.empty_like(mine)
        sent = dist.isend(chunks[(rank - 1 - step) % size], (rank + 1) % size)
        dist.recv(got, (rank - 1) % size)
        sent.wait()
        mine += got
    return chunks[rank]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "reduce_scatter_test_values", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("reduce_scatter", "a chunk of the sum per rank", part="values", hidden="other numbers of ranks"):

    def scatter_values(tensors):
        ranks, total = len(tensors), sum(tensors)
        parts = [each.tensor_split(ranks) for each in tensors]

        def known(rank):
            chunks, before = total.tensor_split(ranks), (rank - 1) % ranks
            return {
                "that is the rank's own chunk, as it was: a step is missing, or the ring starts one chunk off": parts[
                    rank
                ][rank],
                "what arrives replaces the chunk: add it": parts[(rank + 1) % ranks][rank],
                "that is the mean: do not divide": chunks[rank] / ranks,
                "that is the whole sum: return one chunk of it": total,
                f"that is chunk {(rank + 1) % ranks} of the sum: start one chunk earlier": chunks[(rank + 1) % ranks],
                f"that is chunk {before} of the sum: start one chunk later": chunks[before],
                "only the chunk of the rank before was added, so partial sums were not passed on": parts[rank][rank]
                + parts[before][rank],
            }

        run = run_ranks(reduce_scatter, tensors)
        require_results(run, tensors, total.tensor_split(ranks), "the chunk", known)

    scatter_values([torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])])
    scatter_values(integers(4, 8, dtype=torch.int64))
    ### BEGIN HIDDEN TESTS
    scatter_values(integers(5, 20, seed=2645751311))
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "reduce_scatter_test_uneven", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("reduce_scatter", "lengths that N does not divide", part="uneven", hidden="other lengths"):

    def scatter_uneven(tensors):
        ranks, n, size = len(tensors), len(tensors[0]), tensors[0].element_size()
        run = run_ranks(reduce_scatter, tensors)
        require_results(run, tensors, sum(tensors).tensor_split(ranks), "the chunk")
        require_no_padding(run, n, ranks, size)
        wanted = ranks * (ranks - 1)
        check.equal(
            len(run.messages),
            wanted,
            what=f"messages, {ranks} ranks, {n} elements",
            hint="a chunk without elements is a message too" if n < ranks and len(run.messages) < wanted else "",
        )

    scatter_uneven([torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 30.0])])
    scatter_uneven(integers(4, 5, dtype=torch.int64))  # 2, 1, 1 and 1 elements
    scatter_uneven(integers(3, 2))  # chunk 2 has no elements
    scatter_uneven(integers(1, 3, dtype=torch.int64))
    ### BEGIN HIDDEN TESTS
    scatter_uneven(integers(5, 13, seed=3162277660, dtype=torch.int64))
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "reduce_scatter_test_traffic", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("reduce_scatter", "what reduce_scatter sends", part="traffic", hidden="other sizes"):

    def scatter_traffic(ranks, n, seed=0):
        tensors, case = integers(ranks, n, seed), f"{ranks} ranks, {n:,} float32 each"
        run = run_ranks(reduce_scatter, tensors)
        require_computed(run, sum(tensors).tensor_split(ranks), case)
        sent = to_next(ranks, lambda rank: 4 * (n - length(n, ranks, rank)))
        require_bytes(run, sent, ranks * (ranks - 1), case, whole=4 * n)
        step = ALPHA + 4 * length(n, ranks, 0) / BETA
        known = {"the ranks take turns: start the send, then receive": ranks * (ranks - 1) * step}
        known["each step takes two messages' time: start the send before you wait for the receive"] = (
            2 * (ranks - 1) * step
        )
        require_seconds(run, (ranks - 1) * step, case, known)

    scatter_traffic(4, 4000)
    ### BEGIN HIDDEN TESTS
    scatter_traffic(3, 6000, seed=2828427125)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "reduce_scatter",
    "Begin with `chunks = x.clone().tensor_split(size)`: these are views, so `+=` on a chunk changes the clone only.",
    "In step k rank r sends chunk (r − 1 − k) mod N. Which one does the rank before it send at that moment?",
    "Receive into a new tensor that is like the chunk to be added to: `got = torch.empty_like(chunks[(rank - 2 - step) % size])`.",
)
debrief(
    "reduce_scatter",
    """Chunk i starts at rank i + 1 and makes N − 1 steps, so it ends at rank i with every rank's part in it. In each step
    all N ports out and all N ports in are busy. A rank sends every chunk except its own: (N − 1)/N of the tensor.

    Each chunk is added up in one fixed order, i + 1, i + 2, …, i, at one place at a time. After an all-gather all ranks
    therefore hold the same bits, although floating-point addition depends on the order.

    The all-gather sends as much again: 2(N − 1)/N of the tensor per rank, in 2(N − 1)(α + s/(N·β)) seconds. Where the ranks
    do the additions, no algorithm lets the busiest rank send less (Patarasuk and Yuan 2009). Sharded training (lab 10) uses
    the two halves apart.""",
    parts=("values", "uneven", "traffic"),
)

# %% [markdown]
# ## 3 · The ring: all-gather
#
# Now rank r has chunk r of the sum, and everybody needs all of them. The pattern is the same, but what arrives is stored
# instead of added, and it is sent on in the next step. The next cell has it: `all_gather(chunk, n)` returns the whole
# tensor of `n` elements on every rank. With your `reduce_scatter` it is the ring all-reduce, and the cell runs it
# beside the sum through rank 0, with 8 ranks and 16 MiB each.


# %% tags=["demo"]
def all_gather(chunk, n):
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.empty(n, dtype=chunk.dtype)
    chunks = whole.tensor_split(size)
    chunks[rank].copy_(chunk)
    for step in range(size - 1):
        sent = dist.isend(chunks[(rank - step) % size], (rank + 1) % size)
        dist.recv(chunks[(rank - step - 1) % size], (rank - 1) % size)
        sent.wait()
    return whole


def all_reduce(x):
    return all_gather(reduce_scatter(x), len(x))


def race(function, ranks=8, n=2**22):
    try:
        return Cluster(network(ranks)).run(on_ones, function, n)
    except ClusterError:
        return None  # not written yet


ring, naive = race(all_reduce), race(sum_through_rank_0)
if ring and naive:
    show.against_prediction(
        "ring_speedup", round(naive.seconds / ring.seconds, 2), unit="×", source="run on the virtual cluster"
    )
    with reveal("ring_speedup"):
        print(f"through rank 0: {naive.seconds * 1e6:,.0f} µs, ring: {ring.seconds * 1e6:,.0f} µs")
        print(
            "By bytes alone it would be 8×. But the ring pays 14 latencies, 196 µs, and the sum through rank 0 only 2."
        )
        show.figure(
            gathering.draw_ports({"through rank 0": naive, "in a ring": ring}, BETA),
            "how long each rank's port sends, and how long the all-reduce takes: through rank 0 one port does most of the "
            "work, and in a ring all do the same",
        )
else:
    print("This cell compares the two all-reduces. It runs once exercises 1 and 2 pass.")

# %% [markdown]
# ## 4 · Small tensors: recursive doubling
#
# Many all-reduces are small: a loss, a norm, a flag. Their time is almost all latency, and a ring pays 2(N − 1) of them.
# **Recursive doubling** pays log₂N. In step k = 0, 1, … each rank exchanges its sum so far with the rank whose number differs
# in bit k (`rank ^ 2**k`), and both add. In this simple form it needs a power of two.
#
# By hand: ranks 0 to 3 with 1, 10, 100 and 1,000. In step 0 the pairs (0, 1) and (2, 3) exchange: 11, 11, 1,100, 1,100. In
# step 1 the pairs (0, 2) and (1, 3) do, and all have 1,111.
#
# ### Exercise 3 (20 points)
#
# `doubling_all_reduce(x) -> Tensor` returns the sum of all ranks' `x` on every rank, by recursive doubling.
#
# - N is a power of two, 1 included. `x` has one dimension, any length and dtype, and does not change.
# - A rank exchanges one whole tensor with each rank whose number differs from its own in exactly one bit, and with no
#   other. Any order of the bits works.
# - For s bytes it takes log₂N · (α + s/β) seconds.


# %% nbgrader={"grade": false, "grade_id": "doubling_all_reduce", "locked": false, "schema_version": 3, "solution": true, "task": false}
def doubling_all_reduce(x: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' x, on every rank, in log₂N steps."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ### BEGIN SOLUTION
    total, distance = x.clone(), 1
    while distance < size:
        other = rank ^ distance
        got = torch.empty_like(total)
        sent = dist.isend(total, other)
        dist.recv(got, other)
        sent.wait()
        total += got
        distance *= 2
    return total
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "doubling_all_reduce_test_values", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("doubling_all_reduce", "the sum on every rank", part="values", hidden="other numbers of ranks and lengths"):

    def doubles(tensors):
        ranks, total = len(tensors), sum(tensors)

        def known(rank):
            others = [tensors[rank ^ 2**k] for k in range(ranks.bit_length() - 1)]
            return {
                "that is the rank's own x": tensors[rank],
                "that is the mean: do not divide": total / ranks,
                "the ranks of the first pair alone are in it: a step is missing": tensors[rank] + tensors[rank ^ 1]
                if ranks > 1
                else tensors[rank],
                "each rank passes on its own x: send what it has summed so far": tensors[rank] + sum(others),
            }

        run = run_ranks(doubling_all_reduce, tensors)
        require_results(run, tensors, [total] * ranks, "the sum", known)

    doubles([torch.tensor([10.0**rank]) for rank in range(4)])
    doubles(integers(2, 5, dtype=torch.int64))
    doubles(integers(8, 3))
    doubles(integers(1, 4))
    doubles(integers(4, 0))
    ### BEGIN HIDDEN TESTS
    doubles(integers(8, 13, seed=3316624790))
    doubles(integers(4, 6, seed=3464101615, dtype=torch.int64))
    doubles(integers(16, 2, seed=2718281828))
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "doubling_all_reduce_test_traffic", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("doubling_all_reduce", "what recursive doubling sends", part="traffic", hidden="other sizes"):

    def doubling_traffic(ranks, n, seed=0):
        tensors, case = integers(ranks, n, seed), f"{ranks} ranks, {n:,} float32 each"
        run = run_ranks(doubling_all_reduce, tensors)
        require_computed(run, [sum(tensors)] * ranks, case)
        partners = [2**k for k in range(ranks.bit_length() - 1)]
        sent = [[4 * n if a ^ b in partners else 0 for b in range(ranks)] for a in range(ranks)]
        require_bytes(run, sent, ranks * len(partners), case)
        step = ALPHA + 4 * n / BETA
        known = {"the two of a pair take turns: start the send, then receive": 2 * len(partners) * step}
        require_seconds(run, len(partners) * step, case, known)

    doubling_traffic(4, 1000)
    doubling_traffic(8, 2000)
    ### BEGIN HIDDEN TESTS
    doubling_traffic(2, 6000, seed=3605551276)
    doubling_traffic(16, 500, seed=2645751312)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "doubling_all_reduce",
    "Keep one tensor, the sum so far, which starts as a clone of `x`. How many steps does it take for N ranks?",
    "`rank ^ distance` with `distance` = 1, 2, 4, … is the other rank of each step.",
    "The message must not change before `wait()` has returned: receive into another tensor, wait, and only then add.",
)
debrief(
    "doubling_all_reduce",
    """After step k each sum has the values of 2^(k + 1) ranks, so log₂N steps are enough. A rank sends log₂N whole tensors,
    for 8 ranks three, where a ring sends 1.75. That is cheap as long as a tensor takes less than the latency.

    Both ranks of a pair add the same two sums, and a + b = b + a in floating point as well. So here too all ranks end with
    the same bits.""",
    parts=("values", "traffic"),
)

# %% [markdown]
# ## 5 · Which algorithm, before you run it
#
# Each algorithm takes:
#
# | | seconds |
# |---|---|
# | through rank 0 | 2(α + (N − 1)·s/β) |
# | ring | 2(N − 1)(α + c/β) |
# | recursive doubling | log₂N · (α + s/β) |
#
# Here s is the size of the tensor in bytes, and c that of its longest chunk, which has ⌈n/N⌉ of its n elements. By hand, for 4 ranks,
# α = 10 µs, β = 1 GB/s, float32:
#
# | elements | s/β | through rank 0 | ring | doubling |
# |---|---|---|---|---|
# | 1,000 | 4 µs | 2(10 + 12) = 44 µs | 6(10 + 1) = 66 µs | 2(10 + 4) = **28 µs** |
# | 1,000,000 | 4 ms | 24.02 ms | 6(0.01 + 1) = **6.06 ms** | 8.02 ms |
#
# ### Exercise 4 (14 points)
#
# `all_reduce_seconds(algorithm, elements, element_size, ranks, alpha, beta) -> float` returns the time by the table, for
# the algorithms `"naive"`, `"ring"` and `"doubling"`. An element has `element_size` bytes, and there are two or more ranks.
# The first lines are given: `"doubling"` raises a `ValueError` if `ranks` is not a power of two.
#
# `fastest_all_reduce(elements, element_size, ranks, alpha, beta) -> str` returns the name of the fastest of those that can
# run on this number of ranks.


# %% nbgrader={"grade": false, "grade_id": "choose_algorithm", "locked": false, "schema_version": 3, "solution": true, "task": false}
def all_reduce_seconds(
    algorithm: str, elements: int, element_size: int, ranks: int, alpha: float, beta: float
) -> float:
    """Seconds of an all-reduce of `elements` on `ranks` ranks."""
    size = elements * element_size
    if algorithm == "doubling" and ranks & (ranks - 1):  # a power of two has one bit, and n − 1 has the lower ones
        raise ValueError(f"ranks = {ranks}: recursive doubling needs a power of two")
    ### BEGIN SOLUTION
    if algorithm == "naive":
        return 2 * (alpha + (ranks - 1) * size / beta)
    if algorithm == "ring":
        return 2 * (ranks - 1) * (alpha + math.ceil(elements / ranks) * element_size / beta)
    return (ranks.bit_length() - 1) * (alpha + size / beta)
    ### END SOLUTION


def fastest_all_reduce(elements: int, element_size: int, ranks: int, alpha: float, beta: float) -> str:
    """The name of the fastest algorithm."""
    ### BEGIN SOLUTION
    names = ["naive", "ring", "doubling"] if ranks & (ranks - 1) == 0 else ["naive", "ring"]
    return min(names, key=lambda name: all_reduce_seconds(name, elements, element_size, ranks, alpha, beta))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "choose_algorithm_test_seconds", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose_algorithm", "the time of an all-reduce", part="seconds", hidden="other sizes, ranks and links"):

    def modelled(expected, known, algorithm, n, e, ranks, alpha, beta):
        got = all_reduce_seconds(algorithm, n, e, ranks, alpha, beta)
        number = type(got) in (int, float)
        cause = next((c for c, wrong in known.items() if number and math.isclose(got, wrong, rel_tol=1e-9)), "")
        check.close(
            got,
            expected,
            rtol=1e-12,
            unit="s",
            what=f'"{algorithm}", {n:,} elements of {e} bytes, {ranks} ranks, α = {alpha:g} s, β = {beta:g} B/s',
            hint=cause,
        )

    slips = {  # of the first case of each algorithm
        "naive": {
            "that is with N instead of N − 1": 5.2e-05,
            "that is one way only": 2.2e-05,
            "that pays a latency per message: they arrive together": 8.4e-05,
        },
        "ring": {
            "that is with N instead of N − 1 steps": 8.8e-05,
            "that is the reduce-scatter alone": 3.3e-05,
            "that counts elements as bytes": 6.15e-05,
            "that pays the latency once: each step has its own": 1.6e-05,
            "that sends the whole tensor in each step": 8.4e-05,
        },
        "doubling": {
            "that is both ways: in one step both send and both add": 5.6e-05,
            "that has N − 1 steps: expected log₂N": 4.2e-05,
            "that pays the latency once: each step has its own": 1.8e-05,
        },
    }
    modelled(4.4e-05, slips["naive"], "naive", 1000, 4, 4, 10e-6, 1e9)
    modelled(0.000588, {}, "naive", 1_000_000, 2, 8, 14e-6, 50e9)
    modelled(3.4024e-05, {}, "naive", 1001, 8, 4, 5e-6, 2e9)
    modelled(6.6e-05, slips["ring"], "ring", 1000, 4, 4, 10e-6, 1e9)
    modelled(0.000266, {}, "ring", 1_000_000, 2, 8, 14e-6, 50e9)
    modelled(
        3.6024e-05,
        {
            "that is the mean chunk: the longest one has ⌈n/N⌉ elements": 3.6006e-05,
            "that is the shortest chunk: the longest one has ⌈n/N⌉ elements": 3.6e-05,
        },
        "ring",
        1001,
        8,
        4,
        5e-6,
        2e9,
    )
    modelled(2.8e-05, slips["doubling"], "doubling", 1000, 4, 4, 10e-6, 1e9)
    modelled(0.000162, {}, "doubling", 1_000_000, 2, 8, 14e-6, 50e9)
    modelled(1.8008e-05, {}, "doubling", 1001, 8, 4, 5e-6, 2e9)
    modelled(2.192e-06, {}, "naive", 12, 4, 3, 1e-6, 1e9)
    modelled(0.00013, {}, "ring", 13, 4, 6, 1e-6, 1e6)
    for ranks in (6, 3):
        check.raises(ValueError, all_reduce_seconds, "doubling", 1000, 4, ranks, 1e-6, 1e9, names=f"ranks = {ranks}")
    ### BEGIN HIDDEN TESTS

    def takes(algorithm, n, e, ranks, alpha, beta):
        expected = {
            "naive": 2 * (alpha + (ranks - 1) * n * e / beta),
            "ring": 2 * (ranks - 1) * (alpha + -(-n // ranks) * e / beta),
            "doubling": (ranks.bit_length() - 1) * (alpha + n * e / beta),
        }[algorithm]
        modelled(expected, {}, algorithm, n, e, ranks, alpha, beta)

    for algorithm in ("naive", "ring", "doubling"):
        takes(algorithm, 12345, 2, 16, 3e-6, 7e9)
        takes(algorithm, 3, 4, 64, 3e-6, 450e9)
    takes("ring", 1000, 8, 7, 0.0, 1e9)
    for ranks in (5, 12, 24, 63):
        check.raises(ValueError, all_reduce_seconds, "doubling", 10, 4, ranks, 1e-6, 1e9, names=f"ranks = {ranks}")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "choose_algorithm_test_choice", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose_algorithm", "the fastest algorithm", part="choice", hidden="other sizes, ranks and links"):
    check.returns("doubling", fastest_all_reduce, 1000, 4, 4, 10e-6, 1e9)
    check.returns("ring", fastest_all_reduce, 1_000_000, 4, 4, 10e-6, 1e9)
    check.returns("ring", fastest_all_reduce, 1_000_000, 4, 8, 10e-6, 1e9)
    check.returns("ring", fastest_all_reduce, 1000, 4, 4, 0.0, 1e9, hint="without latency only the bytes count")
    check.returns("naive", fastest_all_reduce, 1, 4, 8, 10e-6, 1e9, hint="its two latencies are the fewest for N = 8")
    for n in (100, 1000):
        cause = "6 is not a power of two: doubling cannot run"
        check.returns("naive", fastest_all_reduce, n, 4, 6, 10e-6, 1e9, hint=cause)
    check.returns("naive", fastest_all_reduce, 100, 4, 12, 10e-6, 1e9, hint="12 is not a power of two")
    check.returns("ring", fastest_all_reduce, 100_000, 4, 6, 10e-6, 1e9)
    check.returns(
        "doubling", fastest_all_reduce, 1000, 4, 1024, 10e-6, 1e9, hint="ten steps are enough for 1,024 ranks"
    )
    check.returns(
        "doubling", fastest_all_reduce, 10**8, 4, 2, 10e-6, 1e9, hint="for N = 2 one exchange is all it takes"
    )
    check.returns("ring", fastest_all_reduce, 15_000, 8, 4, 10e-6, 1e9, hint="15,000 elements of 8 bytes are 120 kB")
    ### BEGIN HIDDEN TESTS
    for n in (1, 100, 3000, 10**4, 10**5, 10**6, 10**7):
        for ranks in (2, 3, 4, 12, 16, 64):
            size, longest, steps = 2 * n, 2 * -(-n // ranks), ranks.bit_length() - 1
            times = {"naive": 2 * (5e-6 + (ranks - 1) * size / 3e9), "ring": 2 * (ranks - 1) * (5e-6 + longest / 3e9)}
            if 2**steps == ranks:
                times["doubling"] = steps * (5e-6 + size / 3e9)
            first, second = sorted(times.values())[:2]
            if second > 1.0001 * first:
                check.returns(min(times, key=times.get), fastest_all_reduce, n, 2, ranks, 5e-6, 3e9)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "choose_algorithm",
    "`size` is the number of bytes. For the ring, first round the elements of a chunk up, then multiply by `element_size`.",
    "If `ranks` is a power of two, `ranks & (ranks - 1)` is 0, and the logarithm is `ranks.bit_length() - 1`.",
    "For the choice, compare the times of those that can run. `min` takes a `key`.",
)
debrief(
    "choose_algorithm",
    """Each algorithm trades latencies for bytes. Small tensors want few steps, large ones want few bytes per port. NCCL
    decides in the same way: a table of latencies and bandwidths per algorithm, and the lowest sum wins.

    The model is too optimistic about rank 0 for tiny tensors. It lets N − 1 of them arrive at one rank for the latency of
    one, and real software pays a few microseconds for each. A tree pays 2·log₂N latencies, and that number is realistic.
    For small messages NCCL also has a protocol with a smaller α, 2.7 µs over a network (both are in the dives).""",
    parts=("seconds", "choice"),
)

# %% [markdown]
# ## 6 · α and β of a real machine
#
# A data sheet does not give α and β for your program. Send messages of several sizes, and find the line α + s/β through their
# times. Ordinary least squares would fit the longest messages and get α wrong. Minimise the sum of the squared
# *relative* errors instead, ((α + s/β − t)/t)². This is linear too: divide each equation α + s/β = t by its t, which gives
# α·(1/t) + (1/β)·(s/t) = 1.
#
# *Worked example.* 1,000 bytes in 11 µs and 1,000,000 bytes in 1,010 µs: 999,000 more bytes take 999 more µs, so
# β = 1 GB/s, and 10 of the 11 µs are left for α.
# `np.linalg.lstsq(matrix, right_side, rcond=None)[0]` finds the two unknowns with the least squared errors; `matrix` has one
# row per message, here (1/t, s/t), and `right_side` is all ones.
#
# ### Exercise 5 (6 points)
#
# `fit_link(sizes, seconds) -> (alpha, beta)` finds the latency in seconds and the bandwidth in bytes per second.
#
# - `sizes` are the bytes of the messages and `seconds` their times, two lists of two or more numbers.
# - It minimises the sum of the squared relative errors. If that makes α negative, return it as it is.
#
# The cell after the exercise times `pass_on` between two real processes on this machine with gloo, PyTorch's backend for
# CPUs, and `fit_link` finds α and β. Then it predicts the ring all-reduce and runs it. NCCL on H100s comes next:
# `fit_link` gets half of NVIDIA's measurements, the others judge it.


# %% nbgrader={"grade": false, "grade_id": "fit_link", "locked": false, "schema_version": 3, "solution": true, "task": false}
def fit_link(sizes: list[int], seconds: list[float]) -> tuple[float, float]:
    """Latency in seconds and bandwidth in bytes per second, by least squares on relative errors."""
    ### BEGIN SOLUTION
    s, t = np.array(sizes, dtype=float), np.array(seconds, dtype=float)
    (alpha, inverse), *_ = np.linalg.lstsq(np.stack([1 / t, s / t], axis=1), np.ones(len(s)), rcond=None)
    return float(alpha), float(1 / inverse)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "fit_link_test", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("fit_link", "α and β from measurements", hidden="other measurements"):

    def fitted(alpha, beta, absolute, sizes, seconds):
        """`absolute` is α and β with the least absolute errors."""
        try:
            got = [each.item() if hasattr(each, "item") else each for each in fit_link(sizes, seconds)]
        except TypeError as error:
            check.true(False, f"fit_link did not return alpha and beta: {error}")
        check.equal(len(got), 2, what="numbers that fit_link returns")
        for i, (name, expected, unit) in enumerate((("α", alpha, "s"), ("β", beta, "bytes/s"))):
            known = {"that minimises absolute errors: divide each equation by its t": absolute[i]} if absolute else {}
            known |= {"that is 1/β": 1 / beta} if i else {}
            number = type(got[i]) in (int, float)
            cause = next((c for c, wrong in known.items() if number and math.isclose(got[i], wrong, rel_tol=1e-6)), "")
            check.close(
                got[i], expected, rtol=1e-6, unit=unit, what=f"{name} of {sizes} bytes in {seconds} s", hint=cause
            )

    fitted(1e-5, 1e9, None, [1000, 1_000_000], [11e-6, 1010e-6])
    fitted(
        1.04112336e-05,
        969284831,
        (1.71302235e-05, 1.02634775e09),
        [1000, 10_000, 100_000, 1_000_000],
        [12e-6, 19e-6, 130e-6, 990e-6],
    )
    fitted(-1e-7, 1e9, None, [1_000_000, 1000], [999.9e-6, 0.9e-6])
    fitted(1e-5, 1e9, None, [0, 1_000_000], [10e-6, 1010e-6])  # a message without bytes takes α
    fitted(1.08353181e-05, 1.00083602e09, None, [1000, 1000, 1_000_000], [11e-6, 13e-6, 1010e-6])

    ### BEGIN HIDDEN TESTS
    def exactly(sizes, seconds):
        size, time = np.array(sizes, dtype=float), np.array(seconds)
        x, y = 1 / time, size / time
        determinant = (x @ x) * (y @ y) - (x @ y) ** 2
        alpha = (x.sum() * (y @ y) - y.sum() * (x @ y)) / determinant
        inverse = (y.sum() * (x @ x) - x.sum() * (x @ y)) / determinant
        slope, start = np.polyfit(size, time, 1)
        return alpha, 1 / inverse, (start, 1 / slope)

    rng = check.rng(8)
    for _ in range(3):
        sizes = [2**k for k in range(10, 24, 2)]
        seconds = [float((20e-6 + size / 5e9) * rng.uniform(0.8, 1.3)) for size in sizes]
        fitted(*exactly(sizes, seconds), sizes, seconds)
    fitted(20e-6, 5e9, None, [4096, 2**33], [20e-6 + 4096 / 5e9, 20e-6 + 2**33 / 5e9])
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "fit_link",
    "Turn the lists into arrays: `s, t = np.array(sizes, dtype=float), np.array(seconds, dtype=float)`.",
    "Two columns, 1/t and s/t, and ones on the right. `np.stack([1 / t, s / t], axis=1)` makes the matrix.",
    "`lstsq` finds α and 1/β; return β.",
)
debrief(
    "fit_link",
    """Dividing an equation by its t gives each point the same weight per percent, so small messages decide α and large ones
    decide β. With absolute errors, 2% of a message of 20 ms is 400 µs, 40 times an α of 10 µs.

    α is not the network's alone: it contains the calls, the copies and the wake-up of the other process. That is what your
    program pays, so it is the right number to predict with, and it belongs to the library as much as to the wire.""",
    parts=("",),
)
predict(
    "gloo",
    "Your model gets α and β from messages on this machine and predicts an all-reduce of 4 MiB. How much longer is the real one?",
    options=RATIOS,
)


def timed(functions, sizes, repeats):
    """Seconds of each run, for each size in bytes and each function, on this rank."""
    found = []
    for size in sizes:
        x = torch.ones(size // 4)
        for function in functions:
            found.append([])
            for _ in range(repeats):
                dist.barrier()
                start = now()
                function(x)
                found[-1].append(now() - start)
    return found


def measured_here(parts):
    """Times of single messages and of ring all-reduces on two processes of this machine, and the model's times."""

    def ring(x):
        return all_gather(parts.reduce_scatter(x), len(x))

    runs = zip(*run_on_processes("gloo", 2, timed, (pass_on, ring), SIZES, 20, seconds=30), strict=True)
    # A run ends when both ranks are done. The fastest of 20 is the one that other programs disturbed least.
    best = [min(map(max, *ranks)) for ranks in runs]
    alpha, beta = map(float, parts.fit_link(SIZES, best[::2]))
    return (
        alpha,
        beta,
        best[1::2],
        [float(parts.all_reduce_seconds("ring", size // 4, 4, 2, alpha, beta)) for size in SIZES],
    )


SIZES = [2**k for k in (12, 14, 16, 18, 20, 22)]
if parts := together("reduce_scatter", "choose_algorithm", "fit_link", library=gathering.REFERENCE):
    try:
        gloo_alpha, gloo_beta, measured, model = measured_here(parts)
    except ClusterError as error:
        print(f"The two processes did not get through:\n{error}")
    else:
        ratio = measured[-1] / model[-1]
        show.against_prediction("gloo", RATIOS[(ratio > 1.2) + (ratio > 2)], source="measured here")
        with reveal("gloo"):
            print(f"gloo on this machine: α = {gloo_alpha * 1e6:.0f} µs, β = {gloo_beta / 1e9:.2f} GB/s")
            rows = [
                (f"{size // 1024:,} KiB", f"{p * 1e6:,.0f}", f"{m * 1e6:,.0f}", f"{m / p:.2f}")
                for size, p, m in zip(SIZES, model, measured, strict=True)
            ]
            show.table(rows, ["size", "predicted µs", "measured µs", "measured ÷ predicted"])
            print(
                "The model knows messages only. Here the processor also copies x, adds the chunks, fills new memory, and has "
                "to wake up the other process in every step. A GPU copies and adds faster than its network sends."
            )

from threeloops.lab.drawings.measured import links

RING_SIZES = [2**k for k in (9, 15, 18, 21, 24)]
SHARES = ("5% or less", "5 to 15%", "15 to 50%", "more than 50%")
predict(
    "nccl",
    "Eight H100s in a node: NVIDIA timed NCCL's all-reduce for 17 sizes from 512 bytes to 512 MiB. fit_link gets every "
    "second one. How far is its line from the other eight, at worst?",
    options=SHARES,
)
predict(
    "engine",
    "Engines for inference have all-reduces of their own: in one kernel each GPU reads what it needs from the others. Up to "
    "which of the measured sizes is vLLM's faster than NCCL?",
    options=("32 KiB", "256 KiB", "32 MiB", "all sizes"),
)


def ring_seconds(parts, topology, sizes):
    """Seconds of the reader's ring all-reduce on the virtual cluster, by size."""

    def ring(x):
        return all_gather(parts.reduce_scatter(x), len(x))

    return {size: Cluster(topology).run(on_ones, ring, size // 4).seconds for size in sizes}


if parts := together("reduce_scatter", "fit_link", library=gathering.REFERENCE):
    nccl, engine = links.nccl("H100 SXM"), links.engine("H100 SXM")
    fitted_half, judged_half = links.halves(nccl)
    alpha, beta = map(float, parts.fit_link(fitted_half.sizes, fitted_half.seconds))
    off = links.errors(judged_half, alpha, beta)
    worst = max(map(abs, off))
    show.against_prediction("nccl", SHARES[(worst > 0.05) + (worst > 0.15) + (worst > 0.5)], source=nccl.source)
    step_alpha, step_beta = alpha / 14, 14 / 8 * beta  # 14 steps of one eighth: 14(α + s/(8β))
    own_links, fitted_links = (fabric(1, 8), uniform(8, step_alpha, step_beta))
    rings = {
        "a ring with 3.4 µs and 450 GB/s per step": ring_seconds(parts, own_links, RING_SIZES),
        "a ring with α and β of the line": ring_seconds(parts, fitted_links, RING_SIZES),
    }
    with reveal("nccl"):
        show.figure(
            links.draw_line(fitted_half, judged_half, (alpha, beta), rings),
            "NCCL's times by size, a line through every second of them, and rings on the virtual cluster",
        )
        sizes = [
            f"{100 * share:+.0f}% at {readable_bytes(size)}" for size, share in zip(judged_half.sizes, off, strict=True)
        ]
        print(f"The line: α = {alpha * 1e6:.1f} µs, β = {beta / 1e9:.0f} GB/s. Its times differ by {', '.join(sizes)}.")
        print(
            f"If NCCL ran a ring of 14 steps, each would have α = {step_alpha * 1e6:.1f} µs and β = {step_beta / 1e9:.0f} GB/s; the "
            "link has 450 GB/s. On a virtual cluster with such links, your ring takes the times of the line (crosses). With the "
            "3.4 µs that NCCL assumes for large messages, small ones would take three times as long as measured (dashed), so "
            "they must use a faster protocol. In the middle NCCL changes protocols and fills a pipeline of chunks, which one α "
            "and one β cannot express."
        )
    largest = links.wins_up_to(engine, nccl)
    show.against_prediction("engine", readable_bytes(largest), source=engine.source)
    with reveal("engine"):
        show.figure(
            links.draw_line(fitted_half, judged_half, (alpha, beta), rings, engine),
            "the same with the times of vLLM's own all-reduce, which is faster up to 32 MiB",
        )
        print(
            f"vLLM takes {1e6 * engine.seconds[engine.sizes.index(512)]:.1f} µs instead of {1e6 * nccl.seconds[nccl.sizes.index(512)]:.1f} for 512 bytes: one step instead of many, and "
            "vLLM was timed in a CUDA graph. But a GPU that reads seven whole tensors needs 7·s/β, where a ring needs 1.75·s/β. "
            "So vLLM (all_reduce_utils.py) uses this kernel below 256 KiB only. From there to 64 MiB the switch adds, and beyond "
            "that vLLM calls NCCL."
        )

# %% [markdown]
# ## 7 · Two kinds of links
#
# Inside a machine (a **node**), GPUs talk over NVLink: 450 GB/s each way, 3.4 µs. Between nodes each GPU has its network
# port of 50 GB/s and 14 µs. A ring over all of them moves at the pace of the network, and uses one port per node. A **hierarchical** all-reduce has three phases,
# for L nodes of P ranks:
#
# 1. a reduce-scatter inside each node, so that place p of a node (its local rank, rank mod P) holds chunk p of the node's
#    sum;
# 2. an all-reduce of that chunk, the *shard*, among the ranks of the same place in all nodes;
# 3. an all-gather inside each node.
#
# Use PyTorch's own collectives here. They take a `group`, and `dist.new_group(ranks)` makes one. **Every** rank has to call
# `new_group` for **every** group, in the same order, even for groups that it is not in. The next cell sums in pairs (0, 1)
# and (2, 3).


# %% tags=["demo"]
def sum_in_pairs(x):
    for ranks in ([0, 1], [2, 3]):
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            mine = group
    half = torch.empty(len(x) // 2)
    dist.reduce_scatter_tensor(half, x, group=mine)  # chunk 0 of the pair's sum, or chunk 1
    whole = torch.empty_like(x)
    dist.all_gather_into_tensor(whole, half, group=mine)
    return half, whole


run = Cluster(fabric(2, 2)).run(on_each, sum_in_pairs, [torch.tensor([10.0**r, 2 * 10.0**r]) for r in range(4)])
for rank, ((half, whole), _) in enumerate(run.results):
    print(f"rank {rank}: after reduce_scatter {half.tolist()}, after all_gather {whole.tolist()}")

# %% [markdown]
# ### Exercise 6 (20 points)
#
# `hierarchical_all_reduce(x, per_node) -> Tensor` returns the sum of all ranks' `x` on every rank. Ranks 0 … P − 1 are the
# first node, the next P the second, and so on. `inside`, the group of the rank's own node, is given.
#
# - P = `per_node` divides the number of ranks and the length of `x`, a float32 tensor. A shard may have any length. `x`
#   does not change.
# - Between nodes a rank talks only to ranks of its own place, and sends no more than a ring all-reduce of its shard does.
# - It takes at most 2(P − 1)(α₁ + s/(P·β₁)) + 2(L − 1)(α₂ + c/β₂) seconds. `x` has n elements in s bytes, c are the bytes of
#   ⌈n/(P·L)⌉ elements, α₁ and β₁ are those of NVLink, α₂ and β₂ those of the network.
# - You may use `new_group`, `reduce_scatter_tensor`, `all_reduce` (which works in place) and `all_gather_into_tensor`.
#
# By hand, for 2 nodes of 2: rank 1 is place 1 of node 0. It gets chunk 1 of x₀ + x₁, sums it with rank 3, which has chunk 1
# of x₂ + x₃, and gets chunk 0 from rank 0.


# %% nbgrader={"grade": false, "grade_id": "hierarchical_all_reduce", "locked": false, "schema_version": 3, "solution": true, "task": false}
def hierarchical_all_reduce(x: torch.Tensor, per_node: int) -> torch.Tensor:
    """The sum of all ranks' x, on every rank, with little traffic between nodes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for first in range(0, size, per_node):  # the groups of the nodes: every rank makes all of them
        ranks = range(first, first + per_node)
        group = dist.new_group(ranks)
        if rank in ranks:
            inside = group
    ### BEGIN SOLUTION
    for place in range(per_node):
        ranks = range(place, size, per_node)
        group = dist.new_group(ranks)
        if rank in ranks:
            across = group
    shard = torch.empty(len(x) // per_node)
    dist.reduce_scatter_tensor(shard, x, group=inside)
    dist.all_reduce(shard, group=across)
    whole = torch.empty_like(x)
    dist.all_gather_into_tensor(whole, shard, group=inside)
    return whole
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "hierarchical_all_reduce_test_values", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check(
    "hierarchical_all_reduce", "the sum on every rank", part="values", hidden="other numbers of nodes and ranks"
):

    def hierarchical_values(nodes, per_node, n, seed=0):
        tensors = integers(nodes * per_node, n, seed)
        total, node = sum(tensors), [sum(tensors[i * per_node : (i + 1) * per_node]) for i in range(nodes)]

        def known(rank):
            return {
                "that is the sum of the rank's own node: the nodes were not summed": node[rank // per_node],
                "that is the sum over the ranks of the same place": sum(tensors[rank % per_node :: per_node]),
                "that is the mean: do not divide": total / len(tensors),
                "each node's sum is in it several times: sum shards across nodes, then gather": per_node * total,
            }

        topology = fabric(nodes, per_node)
        run = run_ranks(hierarchical_all_reduce, tensors, per_node, topology=topology, collectives=True)
        require_results(run, tensors, [total] * len(tensors), f"the sum, {nodes} nodes of {per_node},", known)

    hierarchical_values(2, 2, 4)
    hierarchical_values(2, 3, 15)  # a shard has 5 elements
    hierarchical_values(1, 3, 6)
    hierarchical_values(3, 1, 4)
    ### BEGIN HIDDEN TESTS
    hierarchical_values(3, 2, 10, seed=3605551275)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "hierarchical_all_reduce_test_traffic", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check(
    "hierarchical_all_reduce", "what goes between nodes", part="traffic", hidden="other numbers of nodes and ranks"
):

    def hierarchical_traffic(nodes, per_node, n, seed=0):
        ranks, topology = nodes * per_node, fabric(nodes, per_node)
        tensors, case = integers(ranks, n, seed), f"{nodes} nodes of {per_node}, {n:,} float32 each"
        run = run_ranks(hierarchical_all_reduce, tensors, per_node, topology=topology, collectives=True)
        require_computed(run, [sum(tensors)] * ranks, case)
        shard = n // per_node
        for a in range(ranks):
            across = {b: run.bytes[a][b] for b in range(ranks) if b // per_node != a // per_node and run.bytes[a][b]}
            for b in across:
                own = ", ".join(f"rank {r}" for r in range(a % per_node, ranks, per_node) if r != a)
                check.true(
                    b % per_node == a % per_node,
                    f"rank {a} sends to rank {b}, which is in another node and at another place, {case}: expected {own} only",
                )
            most = 4 * 2 * (nodes - 1) * length(shard, nodes, 0)
            is_whole = sum(across.values()) >= 2 * (nodes - 1) * 4 * n // nodes
            whole = "whole tensors go between nodes: send shards" if is_whole else ""
            check.true(
                sum(across.values()) <= most,
                f"rank {a} sends {sum(across.values()):,} bytes to other nodes, {case}: expected at most {most:,}"
                + (f"\n  {whole}" if whole else ""),
            )
        between = sum(m.size for m in run.messages if m.source // per_node != m.target // per_node)
        check.true(
            between <= 2 * (nodes - 1) * 4 * n,
            f"{between:,} bytes go between the nodes, {case}: expected at most {2 * (nodes - 1) * 4 * n:,}",
        )
        inside = 2 * (per_node - 1) * (NVLINK_ALPHA + 4 * shard / NVLINK_BETA)
        limit = inside + 2 * (nodes - 1) * (ALPHA + 4 * length(shard, nodes, 0) / BETA)
        check.true(
            run.seconds <= limit * (1 + 1e-9),
            f"it takes {run.seconds * 1e6:.3f} µs, {case}: expected at most {limit * 1e6:.3f} µs",
        )
        check.note(f"time, {case}", run.seconds * 1e6, limit * 1e6, "µs")

    hierarchical_traffic(2, 2, 4000)
    hierarchical_traffic(3, 2, 2000)  # a shard of 1,000 elements, of which the nodes sum 334, 333 and 333
    ### BEGIN HIDDEN TESTS
    hierarchical_traffic(4, 3, 3600, seed=3162277661)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "hierarchical_all_reduce",
    "The ranks at place 0 of all nodes are `range(0, size, per_node)`. Which ranks are at place 1?",
    "Make the groups of all places on every rank, as the lines above do for the nodes, and keep the one that contains you.",
    "Three calls: `reduce_scatter_tensor` inside, `all_reduce` of the shard across, `all_gather_into_tensor` inside.",
)
debrief(
    "hierarchical_all_reduce",
    """The network carries shards only: 2(L − 1)/L · s/P per port instead of nearly 2s, and all P ports of a node work at the
    same time. The fast links do the rest. Sharded training across nodes has the same shape (hybrid sharding, lab 10), and NCCL
    lays several rings or trees over the topology with the same aim: few bytes over the slow links, and all of them busy.""",
    parts=("values", "traffic"),
)


def flat_ring(x):
    total = x.clone()
    dist.all_reduce(total)  # of the virtual cluster: one ring
    return total


flat = Cluster(fabric(2, 4)).run(on_ones, flat_ring, 2**22)
predict(
    "hierarchy",
    f"2 nodes of 4 GPUs, 16 MiB per rank. One ring over all 8 takes {flat.seconds * 1e6:,.0f} µs. How many times faster is the hierarchical all-reduce?",
    unit="×",
)
try:
    levels = Cluster(fabric(2, 4)).run(on_ones, hierarchical_all_reduce, 2**22, 4)
except ClusterError:
    print("This cell compares one ring with your hierarchy. It runs once exercise 6 passes.")
else:
    show.against_prediction(
        "hierarchy", round(flat.seconds / levels.seconds, 2), unit="×", source="run on the virtual cluster"
    )
    with reveal("hierarchy"):
        print(f"one ring: {flat.seconds * 1e6:,.0f} µs, hierarchical: {levels.seconds * 1e6:,.0f} µs")
        print(
            "The formula of section 5 would give that ring 783 µs. It is faster because NVLink is: the next chunk has already "
            "arrived when a network port becomes free, so only one of the network's latencies shows."
        )
        show.figure(link_matrix(flat), "bytes from rank to rank in one ring; lines separate the nodes")
        show.figure(link_matrix(levels), "bytes from rank to rank in the hierarchy")
        show.figure(gantt(levels), "the three phases of the hierarchy")

# %% [markdown]
# ## 8 · An all-reduce that chooses
#
# Your pieces work together, on a network of eight ranks with unknown α and β. `fit_link` finds both,
# `fastest_all_reduce` chooses for each size, and the chosen all-reduce runs.

# %% tags=["demo"] jupyter={"source_hidden": true}
UNKNOWN = fabric(8, 1, nic_bandwidth=12.5e9, network_latency=31e-6)
BYTES = [2**k for k in range(8, 27, 2)]


def choosing(parts):
    """Sizes, chosen algorithms, predicted times of all three and the time of the chosen one."""
    seconds = [Cluster(UNKNOWN).run(on_ones, pass_on, size // 4).seconds for size in BYTES[::3]]
    alpha, beta = map(float, parts.fit_link(BYTES[::3], seconds))
    run = {
        "naive": parts.sum_through_rank_0,
        "ring": lambda x: all_gather(parts.reduce_scatter(x), len(x)),
        "doubling": parts.doubling_all_reduce,
    }
    times = {name: [float(parts.all_reduce_seconds(name, n // 4, 4, 8, alpha, beta)) for n in BYTES] for name in run}
    chosen = [parts.fastest_all_reduce(n // 4, 4, 8, alpha, beta) for n in BYTES]
    took = [Cluster(UNKNOWN).run(on_ones, run[name], n // 4).seconds for n, name in zip(BYTES, chosen, strict=True)]
    return alpha, beta, times, chosen, took


if parts := together(*gathering.REFERENCE, library=gathering.REFERENCE):
    alpha, beta, times, chosen, took = choosing(parts)
    print(f"fit_link: α = {alpha * 1e6:.2f} µs, β = {beta / 1e9:.2f} GB/s; the network has 31 µs and 12.5 GB/s")
    always = sum(times["ring"]), sum(times["doubling"]), sum(took)
    predicted = [times[name][place] for place, name in enumerate(chosen)]
    apart = max(abs(run / model - 1) for run, model in zip(took, predicted, strict=True))
    show.figure(
        gathering.draw_choices(BYTES, times, chosen, took),
        "predicted times of the three algorithms, and the measured time of the one that was chosen for each size",
    )
    print(
        f"One all-reduce of each size takes {always[0] * 1e3:.2f} ms with rings alone, {always[1] * 1e3:.2f} ms with doubling "
        f"alone, and {always[2] * 1e3:.2f} ms with your choices. Runs and predictions differ by {apart:.2%} at most."
    )

# %% [markdown]
# ## In practice
#
# At work you call `dist.all_reduce(gradient)`, and NCCL chooses between rings, trees and addition in the switch (NVLink
# SHARP). `NCCL_DEBUG=INFO` prints what it found, `NCCL_ALGO` forces an algorithm, and `nccl-tests`
# measures. Its **bus bandwidth** for an all-reduce is size ÷ time · 2(N − 1)/N, which can be compared with the bandwidth of a
# link. Sweep the sizes (`-b 8 -e 8G -f 2`), and quote a bus bandwidth only together with its size. If a job hangs in a
# collective, find the rank that did not enter it: it took another branch, crashed, or waits for its data. PyTorch's
# watchdog for NCCL reports the ranks that wait. Its flight recorder keeps the last 2,000 collectives of every rank
# (`TORCH_FR_BUFFER_SIZE`), and comparing these shows which one is missing.
#
# ## What to remember
#
# - A message takes α + s/β. Count messages for small tensors, and bytes per port for large ones.
# - A ring all-reduce is a reduce-scatter and an all-gather. Each rank sends 2(N − 1)/N of the tensor, in 2(N − 1) steps.
# - Start the send before you wait for the receive, and do not touch the buffer before `wait()`.
# - Between nodes send shards, and keep all ports busy.
#
# The deep dives show trees, halving-doubling, all-to-all, and what NCCL chooses. Next: `09_data_parallel`.
#
# ## In your own words
#
# Your team trains on 64 nodes of 8 GPUs, with the links of this lab and the hierarchy of exercise 6. An all-reduce of 1 GB
# takes 10.6 ms, and one of 32 bytes takes 1.8 ms. A colleague wants to buy network ports that are twice as fast. Which of
# the two will get faster, by about how much, and what would you try first for the other?

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# The large one: its 126 steps between nodes carry 1.95 MB each, which takes 14 + 39 µs, and with ports twice as fast 14 + 20
# µs. So 6.7 ms between the nodes become 4.2 ms, and 10.6 ms become 8.2 ms, not half. In the small one 126 · 14 µs are
# latency, and no port helps. Fewer steps do help: a tree or recursive doubling over the 64 nodes takes 12 or 6 steps
# instead of 126. Better still, do not send 32 bytes on their own: put several small numbers into one tensor.

# %% tags=["demo"] jupyter={"source_hidden": true}
calibration()
