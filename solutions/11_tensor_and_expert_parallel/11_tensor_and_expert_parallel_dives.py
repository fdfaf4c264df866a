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
#     title: How do several GPUs share one layer? Deep dives
#     minutes: 70
# ---

# %% [markdown]
# # How do several GPUs share one layer? Deep dives
#
# These sections are complete and ungraded, and can be read in any order: routers that learn to balance, copies of busy
# experts, two half batches that hide each other's messages, sequence parallelism, a loss without the whole logits, and
# attention over a ring.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] jupyter={"source_hidden": true} nbgrader={"grade": false, "grade_id": "setup_dives", "locked": true, "schema_version": 3, "solution": false, "task": false}
import math

import torch
import torch.distributed as dist
from threeloops.hardware import accelerator
from threeloops.lab import animate, audit, calibration, explore, figure, myth, palette, predict, reveal, show, term
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.training.cluster import Cluster, advance_to, compute, now, uniform
from threeloops.training.cluster.pictures import gantt
from threeloops.training.collectives import Link
from threeloops.training.context_parallel import (
    ring_attention,
    ring_attention_bytes,
    ring_attention_ends,
    token_positions,
    visible_pairs,
)
from threeloops.training.expert_parallel import (
    CopyRouter,
    ExpertParallel,
    Router,
    gather_load,
    load_balancing_loss,
    own_experts,
    place_copies,
)
from threeloops.training.planning import LLAMA_8B
from threeloops.training.tensor_parallel import (
    block_traffic,
    gather,
    gpt_plan,
    loss_traffic,
    parallelize,
    vocabulary_parallel_cross_entropy,
)


def sent_by(run, rank, start=0.0, end=math.inf):
    """Bytes that a rank has sent in a stretch of time."""
    return sum(m.size for m in run.messages if m.source == rank and start <= m.ready < end)


# %% [markdown]
# ## Routers that learn to balance
#
# An expert that is chosen more often is trained more often, becomes better, and is chosen even more. So a router that only
# follows the loss of the task tends to leave experts unused. Switch Transformers (Fedus et al. 2021, equations 4 to 6) add
#
# a · E · Σₑ fₑ Pₑ
#
# to the loss. Here fₑ is the share of tokens whose choice is expert e, and Pₑ is the mean score of expert e. E · Σ is
# 1 where both are uniform, and E where one expert gets everything. For example, with 2 experts, shares of 3/4 and 1/4
# and mean scores of 0.6 and 0.4, it is 2 · (0.45 + 0.1) = 1.1. The shares are counts and have no gradient. The
# gradient goes through Pₑ, and lowers an expert's scores in proportion to its share.
#
# The next cell trains 8 experts for 200 steps on a regression task, with four values of the coefficient a. Then it puts the 8
# experts on 8 ranks, sends 64 tokens per rank through them without a capacity, and charges 10 µs per row.

# %% tags=["demo"]
predict(
    "busiest", "Without the extra loss: how many times its fair share does the busiest of 8 experts compute?", unit="×"
)
myth("moe-1")

# %% tags=["demo"] jupyter={"source_hidden": true}
WIDTH, EXPERTS, PER_ROW = 16, 8, 10e-6
TEACHER = torch.randn(4, WIDTH, WIDTH, generator=torch.Generator().manual_seed(1)) / 2


def task(rows, seed):
    """Four kinds of tokens, some more frequent than others, each with a map of its own."""
    generator = torch.Generator().manual_seed(seed)
    kind = torch.multinomial(torch.tensor([0.55, 0.25, 0.15, 0.05]), rows, replacement=True, generator=generator)
    centre = 1.5 * torch.eye(WIDTH)[kind]
    x = torch.randn(rows, WIDTH, generator=generator) * 0.7 + centre
    return x, torch.tanh(torch.einsum("tj,tij->ti", x, TEACHER[kind]))


def trained_router(coefficient, steps=200):
    """The router's weight, the loss of the task, and the busiest expert's load every 10 steps."""
    torch.manual_seed(2)
    router = Router(WIDTH, EXPERTS, 1)
    experts = torch.nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / 4)
    optimizer = torch.optim.Adam([router.weight, experts], lr=0.01)
    busiest = []
    for step in range(steps + 1):
        x, target = task(256, seed=step)
        routing = router(x)
        chosen = routing.experts[:, 0]
        out = torch.tanh(torch.einsum("tj,tij->ti", x, experts[chosen])) * routing.weights
        loss = (out - target).square().mean()
        if step % 10 == 0:
            busiest.append(torch.bincount(chosen, minlength=EXPERTS).max().item() * EXPERTS / len(x))
        optimizer.zero_grad()
        (loss + coefficient * load_balancing_loss(routing)).backward()
        optimizer.step()
    return router.weight.detach(), float(loss.detach()), busiest


class Charged(torch.nn.Linear):
    def forward(self, rows):
        compute(len(rows) * PER_ROW, "expert")
        return super().forward(rows)


def layer_seconds(router_weight):
    router = Router(WIDTH, EXPERTS, 1)
    router.weight.data = router_weight
    own = [Charged(WIDTH, WIDTH) for _ in own_experts(EXPERTS)]
    layer = ExpertParallel(router, own, capacity_factor=math.inf)
    with torch.no_grad():
        layer(task(64, seed=500 + dist.get_rank())[0])
    took = now()
    return took, gather_load(layer.load).imbalance


torch.set_num_threads(1)
coefficients = (0.0, 0.1, 0.3, 1.0)
routers = {a: trained_router(a) for a in coefficients}
runs = {a: Cluster(EXPERTS).run(layer_seconds, routers[a][0]) for a in coefficients}
took = {a: 1e3 * max(seconds for seconds, _ in runs[a].results) for a in coefficients}
with reveal("busiest"):
    show.against_prediction(
        "busiest", round(runs[0.0].results[0][1], 2), unit="×", source="measured: 8 ranks, 512 tokens"
    )
    plot, axes = figure(width=8.5, height=2.9)
    for a, shade in zip(coefficients, (palette.vermillion, palette.orange, palette.green, palette.blue), strict=True):
        axes.plot(range(0, 201, 10), routers[a][2], color=shade)
        axes.text(203, routers[a][2][-1], f"a = {a:g}", color=palette.ink, va="center")
    axes.set(xlim=(0, 230), ylim=(0, None), xlabel="step", ylabel="busiest ÷ fair share")
    axes.set_title("Load of the busiest of 8 experts while the router is trained")
    show.figure(plot, "the larger the coefficient, the more equal the loads")
    show.table(
        [(f"{a:g}", f"{runs[a].results[0][1]:.2f}×", f"{took[a]:.3f}", f"{routers[a][1]:.4f}") for a in coefficients],
        header=("a", "busiest expert", "layer, ms", "loss of the task"),
        caption="Forward of the layer on 8 ranks: 64 tokens per rank, 10 µs per row, links of 1 GB/s and 10 µs",
    )
audit(
    "moe-1",
    round(took[0.0] / took[1.0], 2),
    f"× the time of the balanced layer, where the busiest expert has {runs[0.0].results[0][1] / runs[1.0].results[0][1]:.2f} times as many rows",
    "model",
    "holds",
    how="eight ranks with one expert each, the same tokens, no capacity, one router trained without the balance loss and one with a = 1. The others wait for the busiest expert in the second all-to-all. With a capacity the time would be bounded, and the surplus tokens would be dropped instead",
)

# %% [markdown]
# The larger the coefficient, the more the router balances at the expense of the task. Which value is right depends on the size
# of the task's loss: Switch used 0.01 beside a cross-entropy. DeepSeek-V3
# (2024) leaves most of this loss out. It adds a bias per expert to the scores, for the choice only. After each step the bias of
# an expert that had too much to do is lowered, and that of one that had too little is raised. The weights of the chosen experts stay as they were.

# %% [markdown]
# ## Copies of the busiest experts
#
# A served model keeps the routing that it was trained with. On many GPUs with few experts each (**wide expert
# parallelism**) the busiest expert then decides the time of every layer. The remedy is memory: give each GPU some slots
# more than it needs, and put **copies** of the busiest experts there. DeepSeek published the rule as EPLB:
#
# 1. The next free slot goes to the expert that has the most tokens per copy. Repeat until the slots are used up.
# 2. Take the copies, the heaviest first. Each goes to the rank that has the least to do and a free slot.
#
# For example, loads of 60, 30 and 15 in six slots: the first expert gets three copies of 20, the second two of 15, the
# third one of 15. On three ranks with two slots each: 20 + 15 on every rank, where one expert per rank would have left
# 60 on one. The next cell does this to the router above that was trained without the extra loss.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "copies",
    "8 ranks, 8 experts, and a second slot on each rank. How many times its fair share does the busiest *rank* compute?",
    unit="×",
)


# %% tags=["demo"]
def seconds_with(placement, router_weight):
    """The layer above, with copies: its time, and the rows that each slot has computed."""
    rank = dist.get_rank()
    router = Router(WIDTH, EXPERTS, 1)
    router.weight.data = router_weight
    own = [Charged(WIDTH, WIDTH) for _ in placement.experts[rank]]
    layer = ExpertParallel(CopyRouter(router, placement, first=rank), own, capacity_factor=math.inf)
    with torch.no_grad():
        layer(task(64, seed=500 + rank)[0])
    return now(), gather_load(layer.load).chosen


def history(router_weight, batches=20):
    """How the choices of earlier batches fell on the experts: what a server has counted so far."""
    router = Router(WIDTH, EXPERTS, 1)
    router.weight.data = router_weight
    with torch.no_grad():
        chosen = torch.cat([router(task(256, seed=900 + batch)[0]).experts for batch in range(batches)])
    return torch.bincount(chosen.flatten(), minlength=EXPERTS).tolist()


# %% tags=["demo"] jupyter={"source_hidden": true}
counted, rows = history(routers[0.0][0]), []
for slots in (1, 2, 3):
    placement = place_copies(counted, EXPERTS, slots)
    run = Cluster(EXPERTS).run(seconds_with, placement, routers[0.0][0])
    computed = run.results[0][1]
    busiest = [sum(computed[slots * rank : slots * (rank + 1)]) for rank in range(EXPERTS)]
    ratio = max(busiest) * EXPERTS / sum(busiest)
    rows.append((slots, str(placement.experts[0]), f"{placement.imbalance(counted):.2f}", f"{ratio:.2f}", run.seconds))
show.against_prediction("copies", float(rows[1][3]), unit="×", source="virtual cluster: 8 ranks, 512 tokens")
with reveal("copies"):
    show.table(
        [(*row[:-1], f"{1e3 * row[-1]:.3f}") for row in rows],
        header=(
            "slots per rank",
            "experts on rank 0",
            "planned, busiest ÷ share",
            "found, busiest ÷ share",
            "layer (ms)",
        ),
        caption="planned from 20 earlier batches, found on another one",
    )


def draw_copies(extra, skew):
    """256 experts on 32 ranks whose loads fall as rank ** −skew: what `extra` slots per rank do."""
    loads = [1 / (place + 1) ** skew for place in range(256)]
    placement = place_copies(loads, 32, 8 + extra)
    plain = [sum(loads[8 * rank : 8 * rank + 8]) for rank in range(32)]
    plot, axes = figure(width=8, height=2.5)
    mean = sum(loads) / 32
    axes.bar(range(32), [load / mean for load in plain], color=palette.grey, label="eight neighbours per rank")
    axes.bar(
        range(32),
        [load / mean for load in placement.rank_loads(loads)],
        width=0.5,
        color=palette.blue,
        label="placed, with copies",
    )
    axes.axhline(1, color=palette.vermillion)
    axes.set(xlabel="rank", ylabel="load ÷ share", ylim=(0, max(load / mean for load in plain) * 1.1))
    axes.set_title(
        f"{32 * extra} copies: the busiest rank has {placement.imbalance(loads):.2f} × its share", loc="left"
    )
    axes.legend(loc="upper right")
    return plot


with reveal("copies"):
    explore(draw_copies, extra=[1, 0, 2, 4], skew=[0.6, 0.3, 1.0], labels={"extra": "extra slots per rank"})

# %% [markdown]
# In the explorer, placing alone (no extra slots) already helps, because busy experts get idle neighbours. What remains
# is an expert with more tokens than a rank's share: only copies can divide it. The plan is made from counts of the past, so it
# is as good as the past predicts the next batch.
#
# In vLLM and SGLang this is `--enable-eplb`, in vLLM with `num_redundant_experts`; its documentation has DeepSeek-R1's 256 experts and 32
# copies on 32 ranks, 9 experts each (v0.26, read in November 2026). The explorer starts at these numbers.
#
# ## Two half batches hide each other's messages
#
# A layer has to wait for its dispatch and for its combine, so it has three parts in sequence: send, compute, send back. If
# the batch is cut in two, one half can travel while the other is computed. vLLM calls it dual batch overlap
# (`--enable-dbo`), SGLang two-batch overlap (`--enable-two-batch-overlap`). The next cell has 4 ranks; a whole batch takes
# 200 µs to compute, and an all-to-all of a half about 60 µs.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict("halves", "Sequential halves take 2 × (60 + 100 + 60) = 440 µs. How long do overlapped halves take?", unit="µs")


# %% tags=["demo"]
HALF, COMPUTE = 4 * 2500, 100e-6  # float32 numbers of half a batch; seconds that its experts take


def send(rows):
    arrived = torch.empty(HALF)
    return arrived, dist.all_to_all_single(arrived, rows, async_op=True)


def half_batches(overlapped, busy=1.0):
    """`busy` is how many times as long rank 0 computes as the others."""
    seconds = COMPUTE * (busy if dist.get_rank() == 0 else 1.0)
    first, second = torch.ones(HALF), torch.ones(HALF)
    if not overlapped:
        for half in (first, second):
            there, handle = send(half)
            handle.wait()
            compute(seconds, "experts")
            send(there)[1].wait()
        return now()
    there_1, handle_1 = send(first)
    handle_1.wait()
    there_2, handle_2 = send(second)  # travels while the first half is computed
    compute(seconds, "experts")
    _, back_1 = send(there_1)  # travels while the second half is computed
    handle_2.wait()
    compute(seconds, "experts")
    _, back_2 = send(there_2)
    back_1.wait()
    back_2.wait()
    return now()


# %% tags=["demo"] jupyter={"source_hidden": true}
halves = {
    (overlapped, busy): Cluster(uniform(4, 10e-6, 1e9)).run(half_batches, overlapped, busy)
    for overlapped in (False, True)
    for busy in (1.0, 1.5)
}
show.against_prediction("halves", round(halves[True, 1.0].seconds * 1e6), unit="µs", source="virtual cluster")
with reveal("halves"):
    show.table(
        [
            (name, f"{halves[False, busy].seconds * 1e6:.0f}", f"{halves[True, busy].seconds * 1e6:.0f}")
            for name, busy in (("balanced", 1.0), ("rank 0 computes 1.5 times as long", 1.5))
        ],
        header=("experts", "one half after the other (µs)", "overlapped (µs)"),
        caption="4 ranks, α = 10 µs, β = 1 GB/s",
    )
    show.figure(gantt(halves[True, 1.0], most_arrows=0), "only the first dispatch and the last combine are not hidden")

# %% [markdown]
# The overlap hides messages, not a busy rank: if one rank has half as much again to compute, all others wait for it in
# both halves. So copies come first, and overlap second. Simulators that assume balanced experts miss exactly this.
#
# ## Sequence parallelism: the same bytes, less memory
#
# Outside of the cut regions every rank holds the same activations: the residual stream, and what norms save for their
# backward pass. **Sequence parallelism** (Korthikanti et al. 2022; `--sequence-parallel` in Megatron-Core) cuts these along the tokens. A region then begins with an
# all-gather of the tokens, and it ends with a reduce-scatter in place of the all-reduce. An all-reduce *is* a
# reduce-scatter and an all-gather (lab 08), so the bytes are the same.
#
# The next cell runs one block on 4 ranks in both ways, and counts the bytes sent and the bytes that autograd saves for backward.

# %% tags=["demo"]
predict(
    "saved",
    "4 ranks, 64 tokens, width 64, MLP 192: which part of the saved activations remains with sequence parallelism, in percent?",
    unit="%",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
SHAPE = {
    "vocabulary_size": 64,
    "width": 64,
    "layers": 1,
    "heads": 4,
    "kv_heads": 4,
    "mlp_width": 192,
    "max_sequence": 64,
}


def one_block(sequence_parallel, tokens=64):
    """Bytes that autograd saves in the forward pass of a block, weights left out."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(**SHAPE))
    block, rotation = model.blocks[0], model.rotation(0, tokens)
    plan = gpt_plan(sequence_parallel=sequence_parallel)
    parallelize(block, {name.removeprefix("blocks.*."): style for name, style in plan.items() if "blocks" in name})
    own = tokens // dist.get_world_size() if sequence_parallel else tokens
    x = torch.randn(1, own, 64, requires_grad=True)
    outside = {p.untyped_storage().data_ptr() for p in block.parameters()}
    saved = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in outside:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    advance_to(1.0)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = block(x, rotation)
    advance_to(2.0)
    y.square().mean().backward()
    return sum(saved.values())


plain, cut = (Cluster(4).run(one_block, each) for each in (False, True))
with reveal("saved"):
    show.against_prediction(
        "saved", round(100 * cut.results[0] / plain.results[0]), unit="%", source="counted on the virtual cluster"
    )
    rows = []
    for name, run, sequence_parallel in (("tensor parallel", plain, False), ("and sequence parallel", cut, True)):
        closed = [t.bytes // 4 for t in block_traffic(64, 64, 4, sequence_parallel=sequence_parallel)]
        for way, start, expected in (("forward", 1.0, closed[0]), ("backward", 2.0, closed[1])):
            kept = f"{run.results[0]:,}" if way == "forward" else ""
            rows.append((name, way, f"{sent_by(run, 0, start, start + 1):,}", f"{expected:,}", kept))
    show.table(
        rows,
        header=("", "", "bytes sent by rank 0", "closed form", "bytes it saves for backward"),
        caption="One block of the course's GPT, 64 tokens of width 64, 4 ranks, float32",
    )
print(
    "Backward with sequence parallelism also sums the gradients of the two norms, whose weights see a part of the tokens."
)

# %% [markdown]
# The inputs of the cut regions, which were gathered, are still saved whole: the projections need them for their weights'
# gradients. Megatron saves only a rank's own tokens of them and gathers the rest again in backward. That makes the saved
# activations of a block a true N-th, for two more all-gathers.

# %% [markdown]
# ## A loss without the whole logits
#
# With a vocabulary of 128,000, the logits of 8,192 tokens have 2.1 GB in 16 bits, and their softmax in float32 has 4.2 GB more.
# If the last matrix is cut by outputs, a rank has the logits of its part of the vocabulary. The loss of a token is log Σ exp(z) − z of
# the target, and three numbers per token are enough to put it together: the maximum, the sum of the exponentials, and the
# target's own logit, which one rank has.

# %% tags=["demo"]
predict(
    "logits",
    "Vocabulary 128,000, 8 ranks, float32: gathering the logits sends how many times the bytes of the three numbers?",
    unit="×",
)

# %% tags=["demo"] jupyter={"source_hidden": true}


def losses(whole, tokens=32, vocabulary=512):
    """The loss and its gradient for this rank's logits, with the logits gathered or not."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(tokens, vocabulary, generator=generator)
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator)
    own = logits.chunk(ranks, -1)[rank].clone().requires_grad_()
    if whole:
        loss = torch.nn.functional.cross_entropy(gather(own, -1), targets)
    else:
        loss = vocabulary_parallel_cross_entropy(own, targets)
    loss.backward()
    return float(loss.detach()), own.grad


gathered, parted = (Cluster(8).run(losses, whole) for whole in (True, False))
with reveal("logits"):
    show.against_prediction(
        "logits", round(7 * 128_000 * 4 / loss_traffic(1, 8, 4).bytes), unit="×", source="closed form, per token"
    )
    show.table(
        [
            (name, f"{run.results[0][0]:.6f}", f"{sent_by(run, 0):,}", f"{run.seconds * 1e6:.0f}")
            for name, run in (("gather the logits", gathered), ("three numbers per token", parted))
        ],
        header=("", "loss", "bytes sent by rank 0", "µs"),
        caption="8 ranks, 32 tokens, a vocabulary of 512",
    )
    same = all(torch.allclose(a[1], b[1], atol=1e-6) for a, b in zip(gathered.results, parted.results, strict=True))
    print("Gradients equal on all ranks:", same)
    print(
        "Here messages are small and their number decides, so gathering is faster. With a vocabulary of 128,000 it is not."
    )

# %% [markdown]
# ## Attention over a ring
#
# Tensor parallelism cuts heads, and every rank sees all tokens. For very long sequences one cuts the tokens instead: **context
# parallelism**. Each rank keeps its queries, and keys and values travel around the ring, one block per step. The online
# softmax (lab 04) puts the blocks together, so no rank ever has all keys.
#
# With a causal mask there is a catch. If rank 0 has the first tokens, it has hardly anything to compute, while the
# last rank sees every block. Cutting the sequence into 2N chunks, and giving rank r the chunks r and 2N − 1 − r
# (**zig-zag**), gives all ranks equal work in every step.

# %% tags=["demo"]
predict(
    "zigzag",
    "8 ranks, long sequence, communication hidden: how many times as long does contiguous order take as zig-zag?",
    unit="×",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
PER_PAIR, LINK = 1e-6, Link(10e-6, 1e9)


def attention_step(order, tokens=64, heads=2, dim=8):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(6)
    whole = torch.randn(3, 1, heads, tokens, dim, generator=generator)
    positions = token_positions(tokens, rank, ranks, order)
    q, k, v = whole[..., positions, :]
    out = ring_attention(q, k, v, order=order, seconds_per_pair=PER_PAIR)
    expected = torch.nn.functional.scaled_dot_product_attention(*whole, is_causal=True)[..., positions, :]
    return bool(torch.allclose(out, expected, atol=1e-5)), now()


orders = ("contiguous", "zigzag")
rings = {order: Cluster(uniform(8)).run(attention_step, order) for order in orders}
block_bytes = ring_attention_bytes(1, 64, 2, 8, 8)[0] // 7
with reveal("zigzag"):
    show.against_prediction(
        "zigzag",
        round(rings["contiguous"].seconds / rings["zigzag"].seconds, 2),
        unit="×",
        source="virtual cluster: 64 tokens, 1 µs per pair",
    )
    show.table(
        [
            (
                order,
                "yes" if all(same for same, _ in run.results) else "no",
                f"{1e3 * run.seconds:.3f}",
                f"{1e3 * max(ring_attention_ends(64, 8, order, PER_PAIR, block_bytes, LINK)):.3f}",
                f"{max(map(sum, visible_pairs(64, 8, order))):,}",
                f"{min(map(sum, visible_pairs(64, 8, order))):,}",
            )
            for order, run in rings.items()
        ],
        header=("order", "same as one process", "ms", "closed form, ms", "pairs, busiest rank", "pairs, idlest rank"),
        caption="Attention of 64 tokens on 8 ranks; charged is 1 µs per pair of a query and a key",
    )
    ends = max(run.seconds for run in rings.values())

    def draw_frame(frame):
        order = orders[frame // 6]
        plot = gantt(rings[order], window=(0.0, ends), until=ends * (frame % 6 + 1) / 6, most_arrows=0)
        plot.axes[0].set_title(f"{order} order: {1e6 * rings[order].seconds:.0f} µs")
        return plot

    animate(
        draw_frame,
        range(12),
        seconds=0.7,
        caption="First contiguous: each step waits for the ranks that see the whole block. Then zig-zag: all ranks are busy",
    )


def draw_ring_work(ranks, order):
    pairs = visible_pairs(16 * ranks, ranks, order)
    plot, axes = figure(width=8.5, height=2.6)
    left = [0] * ranks
    for step in range(ranks):
        width = [pairs[rank][step] for rank in range(ranks)]
        axes.barh(range(ranks), width, left=left, color=palette.blue, alpha=1 - 0.7 * step / ranks, edgecolor="white")
        left = [a + b for a, b in zip(left, width, strict=True)]
    axes.set(xlabel="pairs of queries and keys, one shade per step of the ring", ylabel="rank", yticks=range(ranks))
    axes.invert_yaxis()
    axes.set_title(f"{order}: the busiest rank has {max(left) * ranks / sum(left):.2f}× the mean")
    return plot


explore(draw_ring_work, order=["contiguous", "zigzag"], ranks=[4, 8])

# %% [markdown]
# ### A million tokens
#
# Take Llama 3 8B and a sequence of 2²⁰ tokens, of which each rank has c. In each step of the ring a rank multiplies its c
# queries with c keys, and meanwhile the next c keys and values travel. With zig-zag order it sees half of the pairs, so a step computes
# 2 · c² · width FLOPs and moves 2 · c · kv_width numbers of 2 bytes. The work grows with c², the bytes with c: if every
# rank has enough tokens, the ring is hidden. Setting both times equal gives c = 2 · kv_width · R / (width · β), for a GPU
# of R FLOP/s and a port of β bytes/s.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "million",
    "width 4096, kv_width 1024, R = 989 TFLOP/s, β = 50 GB/s between nodes. How many tokens must a rank have, so that the ring is hidden?",
    unit="tokens",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
H100 = accelerator("H100 SXM")
PORTS = {"NVLink": H100.link_bandwidth, "network": 50e9}


def enough_tokens(bandwidth):
    return 2 * LLAMA_8B.kv_width * H100.rates["bf16"] / (LLAMA_8B.width * bandwidth)


show.against_prediction("million", round(enough_tokens(PORTS["network"])), unit="tokens", source="closed form")
with reveal("million"):
    rows = []
    for ranks in (8, 16, 32, 64, 128):
        tokens = 2**20 // ranks
        sent = ring_attention_bytes(1, 2**20, LLAMA_8B.kv_heads, LLAMA_8B.kv_width // LLAMA_8B.kv_heads, ranks, 2)[0]
        hidden = [name for name, port in PORTS.items() if tokens >= enough_tokens(port)]
        inputs = 2 * tokens * LLAMA_8B.width * LLAMA_8B.layers
        rows.append(
            (ranks, f"{tokens:,}", f"{sent / 2**30:.2f}", f"{inputs / 2**30:.1f}", ", ".join(hidden) or "neither")
        )
    show.table(
        rows,
        header=("ranks", "tokens per rank", "GiB sent per layer, forward", "GiB of layer inputs", "hidden behind"),
        caption="2²⁰ tokens, Llama 3 8B, 16 bits; layer inputs are what full recomputation keeps",
    )

# %% [markdown]
# The bytes per rank hardly depend on the number of ranks, since every rank receives all keys and values. More ranks divide
# the memory and the work, but not the bytes. At the GPU's peak a rank needs about 10,000 tokens to hide a network port;
# real kernels compute more slowly, so fewer are enough.
#
# ## What to remember
#
# - A balance loss trades quality of routing against time. Look at the busiest expert, not at the mean.
# - Copies divide a busy expert, and overlap hides messages. Neither replaces the other.
# - Sequence parallelism is another layout of the same communication, and saves activation memory.
# - A loss needs three numbers per token from each rank, however large the vocabulary is.
# - Ring attention needs equal work in every step, so the order of the tokens matters.

# %% tags=["demo"] jupyter={"source_hidden": true}
term("sequence parallelism")
term("redundant expert")
calibration()
