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
#     title: Why does every GPU keep the same copy? Deep dives
#     minutes: 70
# ---

# %% [markdown]
# # Why does every GPU keep the same copy? Deep dives
#
# These sections are complete and ungraded, and can be read in any order: torch's `fully_shard` beside this course's FSDP,
# sharding within a node, all-gathers in FP8, float32 masters, optimizers that need whole matrices (Muon, Shampoo), a DeepSpeed
# file that drives our ZeRO, and optimizer states on a disk.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] jupyter={"source_hidden": true} nbgrader={"grade": false, "grade_id": "setup_dives", "locked": true, "schema_version": 3, "solution": false, "task": false}
import json
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from threeloops.lab import audit, calibration, explore, figure, myth, palette, predict, reveal, show, term
from threeloops.training.cluster import Cluster, advance_to, charge, fabric, now, synchronize, uniform
from threeloops.training.cluster.pictures import gantt, link_matrix
from threeloops.training.data_parallel import DDP
from threeloops.training.mesh import Mesh
from threeloops.training.planning import LLAMA_8B
from threeloops.training.sharded import (
    FSDP,
    DeepSpeedConfigError,
    LayerwiseOptimizer,
    ZeroOptimizer,
    assign_owners,
    bytes_sent,
    from_deepspeed_config,
    layerwise_bytes,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

LAYERS, WIDTH, FORWARD, BACKWARD = 8, 256, 0.3e-3, 0.6e-3
LAYER_MIB = 4 * WIDTH**2 / 2**20


class TimedLinear(torch.nn.Linear):
    def forward(self, x):
        return charge(super().forward(x), FORWARD, BACKWARD)


def timed_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(*[TimedLinear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])


def second_step(module):
    """Seconds of the second step, when everything that is made once exists."""
    optimizer = torch.optim.AdamW(module.parameters())
    for step in (1, 2):
        advance_to(float(step))
        optimizer.zero_grad()
        module(torch.ones(1, WIDTH)).sum().backward()
        optimizer.step()
        synchronize()
    return now() - 2.0


# %% [markdown]
# ## torch's `fully_shard` on the same cluster
#
# The same model, 8 layers of 256 KiB that take 0.3 ms forward and 0.6 ms backward, is trained by four programs on 4
# ranks (α = 10 µs, β = 1 GB/s): this course's DDP and FSDP, and torch's FSDP2 twice. FSDP2 overlaps by CUDA streams.
# On ranks without a GPU its collectives block, so the second time its all-gathers are made asynchronous and
# prefetched one layer ahead, by its own methods. Its reduce-scatters block in both, which CUDA streams would hide.
# Computation takes 7.2 ms in all four.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "peer",
    "This course's FSDP prefetches and reduces in the background. How long is its step, with 7.2 ms of computation?",
    unit="ms",
)

# %% tags=["demo"]


def torchs(model, prefetched):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    layers = [fully_shard(layer, mesh=mesh) for layer in model]
    fully_shard(model, mesh=mesh)
    if prefetched:
        for layer, following in zip(layers[:-1], layers[1:], strict=True):
            layer.set_modules_to_forward_prefetch([following])
            following.set_modules_to_backward_prefetch([layer])
        model._set_unshard_async_op(True)
    return model


def step_of(how):
    model = timed_model()
    if how == "DDP":
        return second_step(DDP(model, bucket_cap_mb=LAYER_MIB, first_bucket_mb=LAYER_MIB))
    if how == "FSDP":
        return second_step(FSDP(model, model))
    return second_step(torchs(model, how == "fully_shard, prefetched"))


# %% tags=["demo"] jupyter={"source_hidden": true}
computing, rows, runs = LAYERS * (FORWARD + BACKWARD), [], {}
for how in ("DDP", "FSDP", "fully_shard", "fully_shard, prefetched"):
    run = runs[how] = Cluster(uniform(4, 10e-6, 1e9)).run(step_of, how)
    seconds = max(run.results)
    communication = sum(s.end - s.start for s in run.collectives if s.rank == 0 and s.start >= 2.0)
    sent = sum(m.size for m in run.messages if m.source == 0 and m.ready >= 2.0 - 1e-9)
    rows.append((how, f"{1e3 * seconds:.3f}", f"{(seconds - computing) / communication:.0%}", f"{sent / 2**20:.2f}"))
show.against_prediction("peer", round(1e3 * max(runs["FSDP"].results), 3), unit="ms", source="virtual cluster")
with reveal("peer"):
    show.table(
        rows,
        header=("", "step (ms)", "communication exposed", "MiB sent per rank"),
        caption="4 ranks, α = 10 µs, β = 1 GB/s",
    )
    end = 2.0 + max(runs["FSDP"].results)
    show.figure(
        gantt(runs["FSDP"], window=(2.0, end), most_arrows=0),
        "FSDP exposes the first all-gather, the last layer's before backward, and the last reduce-scatter",
    )

# %% [markdown]
# ## Shard within a node: hybrid sharding
#
# FSDP over all GPUs gathers every layer through the slowest link. With **hybrid sharding** each node holds a whole
# set of pieces: layers are gathered, and gradients reduce-scattered, within the node. Then each piece of the
# gradients is all-reduced over the nodes. Below are two nodes; the 4 GPUs of each share one network card of 1 GB/s.

# %% tags=["demo"]
predict(
    "hybrid",
    "Sharding over the 4 GPUs of a node instead of all 8: how many times fewer bytes leave it?",
    unit="×",
)


def hybrid_step(replicate, shard):
    model = timed_model()
    return second_step(
        FSDP(model, model, mesh=Mesh(replicate=replicate, shard=shard)) if replicate > 1 else FSDP(model, model)
    )


# %% tags=["demo"] jupyter={"source_hidden": true}
nodes = fabric(2, 4, nics=1, nic_bandwidth=1e9)
found = {}
for name, replicate, shard in (("all 8 ranks", 1, 8), ("4 ranks of a node", 2, 4)):
    run = Cluster(nodes).run(hybrid_step, replicate, shard)
    crossing = sum(m.size for m in run.messages if m.ready >= 2.0 - 1e-9 and m.source // 4 == 0 and m.target // 4 == 1)
    found[name] = run, crossing
with reveal("hybrid"):
    values = [crossing for _, crossing in found.values()]
    show.against_prediction("hybrid", round(values[0] / values[1], 2), unit="×", source="virtual cluster")
    show.table(
        [(name, f"{1e3 * max(run.results):.3f}", f"{crossing / 2**20:.2f}") for name, (run, crossing) in found.items()],
        header=("sharded over", "step (ms)", "MiB that leave node 0 per step"),
        caption="pieces are twice as large when they are shared by half as many ranks",
    )
    show.figure(link_matrix(found["4 ranks of a node"][0]), "who sends how much with hybrid sharding")


def draw_hybrid(gigabytes_per_second):
    """7 billion parameters on 8 nodes of 8 GPUs. A ring over all ranks leaves each node once, spread over its 8 cards."""
    parameters, ranks, per_node = 7_000_000_000, 64, 8
    whole = bytes_sent([parameters], ranks, 3)[0]
    inside = bytes_sent([parameters], per_node, 3)[0]
    over = bytes_sent([parameters], per_node, 3, replicas=ranks // per_node)[0] - inside
    plot, axes = figure(width=8, height=2.3)
    times = {
        "all 64": (0.0, whole / per_node / (1e9 * gigabytes_per_second)),
        "8 of a node": (inside / 450e9, over / (1e9 * gigabytes_per_second)),
    }
    for row, (near, far) in enumerate(times.values()):
        axes.barh([row], [near], color=palette.green, label="NVLink, 450 GB/s" if row else None)
        axes.barh([row], [far], left=near, color=palette.vermillion, label="between nodes" if row else None)
        axes.text(near + far, row, f" {near + far:.2f} s", va="center")
    axes.set(
        yticks=[0, 1],
        yticklabels=list(times),
        xlabel="seconds of communication per step, without overlap",
        ylim=(-0.6, 1.9),
    )
    axes.set(xlim=(0, 1.2 * max(map(sum, times.values()))))
    axes.legend(ncols=2, loc="upper right")
    axes.set_title(f"7 billion parameters on 8 nodes, {gigabytes_per_second} GB/s per network card", loc="left")
    return plot


with reveal("hybrid"):
    explore(draw_hybrid, gigabytes_per_second=[12, 3, 6, 25, 50])

# %% [markdown]
# The price is memory: with 4 ranks per set of pieces, each holds a quarter of the states instead of an eighth. In FSDP2 you pass a
# mesh of two dimensions, `init_device_mesh("cuda", (nodes, per_node))`, and DeepSpeed calls this sharding MiCS.
#
# ## Gather weights in FP8
#
# If the matmuls take FP8 weights anyway (lab 05), why gather 16 bits? Each rank can cast its piece first, and half the
# bytes travel. But all pieces of a weight need **one scale**, made from the largest magnitude of the whole weight,
# and no rank has it. So the ranks first agree on it: an all-reduce with the maximum, 4 bytes for each weight. torchao
# calls this `enable_fsdp_float8_all_gather`, and all-reduces the maxima of all weights together after `optimizer.step()`
# (its documentation, November 2026). Is the gathered weight the same as if one GPU had cast it?

# %% tags=["demo"]
FP8 = torch.float8_e4m3fn


def cast(weight, largest):
    return (weight * (torch.finfo(FP8).max / largest)).to(FP8).view(torch.uint8)


def gather_in_fp8(own_scales):
    """This rank's part of a weight is cast, and gathered. Returns whether all ranks now have what one GPU would have."""
    weight = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0))
    mine = weight.chunk(dist.get_world_size())[dist.get_rank()]
    largest = mine.abs().max()
    if not own_scales:
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    gathered = torch.empty(WIDTH, WIDTH, dtype=torch.uint8)
    dist.all_gather_into_tensor(gathered, cast(mine, largest))
    return bool(torch.equal(gathered, cast(weight, weight.abs().max())))


# %% tags=["demo"] jupyter={"source_hidden": true}
halves = WIDTH * WIDTH * 2 * 3 // 4
rows = [("bfloat16", "yes", halves, "")]
for name, own_scales in (("FP8, one scale", False), ("FP8, each rank's own", True)):
    run = Cluster(4).run(gather_in_fp8, own_scales)
    sent = sum(m.size for m in run.messages if m.source == 0)
    rows.append((name, "yes" if all(run.results) else "no", sent, f"{sent / halves:.3f}"))
show.table(
    rows,
    header=("gathered", "as on one GPU", "bytes that rank 0 sends", "of bfloat16"),
    caption="a weight of 256 × 256 on 4 ranks",
)

# %% [markdown]
# With one scale the bits are those of one GPU, for a few bytes more. With a scale of its own each rank would cast finer, but
# the matmul would need to know which rows have which scale. The gradients still travel in 16 or 32 bits: their sum
# needs the range.
#
# ## Why the master copy is in float32
#
# bfloat16 has 8 bits of precision, so the numbers next to 1.0 are 1.0078 and 0.9961. An update of 0.001 rounds to
# nothing. The optimizer therefore updates a float32 copy, and forward and backward use it rounded. In ZeRO all ranks
# together hold one copy. The next cell trains a bfloat16 weight of 1.0 with a gradient of 1 and a rate of 0.0005, once
# in place and once with our `ZeroOptimizer`.

# %% tags=["demo"]


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8, dtype=torch.bfloat16))

    def forward(self, x):
        return (self.weight * x).sum()


def train_scale(with_masters, steps=40):
    model = Scale()
    optimizer = (
        ZeroOptimizer(model, torch.optim.SGD, lr=5e-4) if with_masters else torch.optim.SGD(model.parameters(), lr=5e-4)
    )
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(8, dtype=torch.bfloat16)).backward()
        optimizer.step()
    return float(model.weight[0].detach())


for with_masters in (False, True):
    print(f"after 40 steps, {with_masters = }: {Cluster(2).run(train_scale, with_masters).results[0]}  (expected 0.98)")

# %% [markdown]
# ## Muon needs whole matrices
#
# AdamW updates each weight by itself, so a piece may begin anywhere. **Muon** does not: it takes the momentum of a
# matrix and makes all its singular values about 1, by five steps of matrix products (Newton–Schulz, `torch.optim.Muon`). It trains the
# hidden matrices, and AdamW the rest. A piece of a matrix has different singular values from the whole matrix, so
# `ZeroOptimizer` cannot use it.
#
# A **layer-wise distributed optimizer** gives each matrix one owner instead. A reduce-scatter brings every gradient to
# its owner, the owner updates the matrix, and an all-gather gives it to all. These are ZeRO's two collectives; only the
# cuts lie between matrices. `LayerwiseOptimizer` does this. The next cell trains on 3 ranks, and in one process on all
# batches.

# %% tags=["demo"]


def stack(width=16, layers=4):
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(layers)])


def batch_of(rank, step):
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(100 * step + rank))


def train_with_muon(steps=5):
    model = stack()
    muon = LayerwiseOptimizer(model.named_parameters(), torch.optim.Muon, lr=0.02)
    for step in range(steps):
        muon.zero_grad()
        model(batch_of(dist.get_rank(), step)).square().mean().backward()
        muon.step()
    return [p.detach() for p in model.parameters()], muon.owners


def train_alone(ranks, steps=5):
    model = stack()
    muon = torch.optim.Muon(model.parameters(), lr=0.02)
    for step in range(steps):
        muon.zero_grad()
        model(torch.cat([batch_of(rank, step) for rank in range(ranks)])).square().mean().backward()
        muon.step()
    return [p.detach() for p in model.parameters()]


run = Cluster(3).run(train_with_muon)
weights, owners = run.results[0]
start, alone = [p.detach() for p in stack().parameters()], train_alone(3)
moved = max(float((a - b).abs().max()) for a, b in zip(alone, start, strict=True))
apart = max(float((a - b).abs().max()) for a, b in zip(alone, weights, strict=True))
print("owners:", owners)
print(f"weights moved by up to {moved:.3f}; 3 ranks and one process differ by up to {apart:.0e}")

# %% [markdown]
# The two agree, at worst to the rounding of bfloat16, in which torch computes the five steps. But look at the owners: four equal
# matrices on three ranks, so one rank has two. Every chunk of the collectives is as long as that.
#
# Now the hidden matrices of Llama 3 8B: 32 layers, each with three matrices of 4,096 × 14,336, two of 4,096 × 4,096 and two of 4,096 × 1,024.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "owners",
    "How many times more bytes than ZeRO-1 does a rank send with one owner per matrix, on 256 ranks?",
    unit="×",
)


# %% tags=["demo"]
matrices = list(LLAMA_8B.shapes.values()) * LLAMA_8B.layers
sizes = [rows * columns for rows, columns in matrices]


def orthogonalizing(rows, columns):
    """FLOPs of Muon's five steps: X Xᵀ, its square, and their sum times X."""
    short, long = sorted((rows, columns))
    return 5 * (4 * short**2 * long + 2 * short**3)


def muon_on(ranks):
    """Bytes sent per rank against ZeRO-1, and TFLOP on the busiest rank."""
    owned, zero = layerwise_bytes(sizes, ranks)
    work = [0] * ranks
    for shape, owner in zip(matrices, assign_owners(sizes, ranks), strict=True):
        work[owner] += orthogonalizing(*shape)
    return owned / zero, max(work) / 1e12


# %% tags=["demo"] jupyter={"source_hidden": true}
show.against_prediction("owners", round(muon_on(256)[0], 2), unit="×", source="closed form")
with reveal("owners"):
    whole = sum(orthogonalizing(*shape) for shape in matrices) / 1e12
    show.table(
        [
            (ranks, f"{muon_on(ranks)[0]:.3f}", "1.5", f"{muon_on(ranks)[1]:.1f}", f"{whole:.0f}")
            for ranks in (8, 32, 64, 128, 256, 512)
        ],
        header=(
            "ranks",
            "bytes, one owner (ZeRO-1 = 1)",
            "bytes, all gather momentum",
            "TFLOP, busiest owner",
            "TFLOP, everyone computes all",
        ),
        caption="a step of Muon on the hidden matrices of Llama 3 8B, all in 16 bits",
    )


def draw_owners(ranks):
    plot, axes = figure(width=8, height=2.4)
    owned = [0] * ranks
    for size, owner in zip(sizes, assign_owners(sizes, ranks), strict=True):
        owned[owner] += size / 1e6
    axes.bar(range(ranks), owned, width=1.0, color=palette.blue)
    axes.axhline(sum(sizes) / ranks / 1e6, color=palette.vermillion)
    axes.text(ranks, sum(sizes) / ranks / 1e6, " ZeRO's share", color=palette.vermillion, va="center")
    axes.set(xlabel="rank", ylabel="million weights owned", xlim=(-0.5, 1.16 * ranks))
    axes.set_title(
        f"the busiest of {ranks} ranks owns {max(owned) * ranks / sum(sizes) * 1e6:.2f} × its share", loc="left"
    )
    return plot


with reveal("owners"):
    explore(draw_owners, ranks=[64, 8, 32, 96, 128, 192, 256, 512])

# %% [markdown]
# There are 96 large matrices. Up to 128 ranks they fill the chunks nearly evenly, with the smaller ones between them.
# With more ranks, a rank owns one large matrix or less, and the longest chunk no longer gets shorter. So more ranks
# stop helping: at 512 the bytes are four times ZeRO's.
#
# The other way keeps ZeRO's pieces and gathers the momentum of every matrix on all ranks. That is a third collective
# and half as many bytes again, on any number of ranks. But every rank repeats all products: 666 TFLOP, more than
# half a second on an H100 at its peak. Owners divide them. Megatron-Core and torchtitan's FlexShard assign owners too (pull requests 6683 and 3502, 2026). A group
# with fewer ranks, as in hybrid sharding, keeps the chunks even.
#
# A wrong set-up stays silent: in DeepSpeed at ZeRO stage 0, Muon ran without its five steps and was plain SGD,
# because only the ZeRO optimizers called them (pull request 8442, September 2026).
#
# ## Shampoo keeps two matrices per matrix
#
# **Shampoo** ([2018](https://arxiv.org/abs/1802.09568)) multiplies the gradient G of an m × n matrix from both sides:
#
# > L ← L + G Gᵀ,  R ← R + Gᵀ G,  W ← W − η · L^(−1/4) · G · R^(−1/4)
#
# L is m × m and R is n × n. The two roots are expensive, so they are kept and renewed every hundred steps or so. That makes
# 2 (m² + n²) numbers of state, where AdamW has 2 m n. Like Muon it needs whole matrices. The next cell
# trains with the owners of the last section, and counts states and bytes.

# %% tags=["demo"]
SHAPES = ((24, 16), (16, 24), (24, 8), (8, 24))


class Shampoo(torch.optim.Optimizer):
    """Shampoo without momentum, which renews the roots in every step."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for weight in self.param_groups[0]["params"]:
            state, gradient = self.state[weight], weight.grad
            for name, product in (("L", gradient @ gradient.T), ("R", gradient.T @ gradient)):
                state[name] = state.get(name, 1e-3 * torch.eye(len(product))) + product
                values, vectors = torch.linalg.eigh(state[name].double())
                state[f"root of {name}"] = ((vectors * values**-0.25) @ vectors.T).float()
            weight -= self.param_groups[0]["lr"] * state["root of L"] @ gradient @ state["root of R"]


def shampoo_model():
    torch.manual_seed(0)
    return torch.nn.ParameterList(torch.randn(shape) / 5 for shape in SHAPES)


def loss_of(weights, batch):
    x = batch
    for weight in weights:
        x = torch.tanh(x @ weight)
    return (x - 0.5).square().mean()


def rows_of(rank, step):
    return torch.randn(8, 24, generator=torch.Generator().manual_seed(100 * step + rank))


def train_with_shampoo(steps):
    weights = shampoo_model()
    shampoo = LayerwiseOptimizer(weights.named_parameters(), Shampoo, lr=0.05)
    for step in range(steps):
        shampoo.zero_grad()
        loss_of(weights, rows_of(dist.get_rank(), step)).backward()
        shampoo.step()
    held = {name: sum(map(torch.numel, one["state"].values())) for name, one in shampoo.state_dict().items()}
    return [weight.detach() for weight in weights], held


def shampoo_alone(ranks, steps):
    weights = shampoo_model()
    shampoo = Shampoo(weights.parameters(), lr=0.05)
    for step in range(steps):
        shampoo.zero_grad()
        loss_of(weights, torch.cat([rows_of(rank, step) for rank in range(ranks)])).backward()
        shampoo.step()
    return [weight.detach() for weight in weights]


run, longer = (Cluster(3).run(train_with_shampoo, steps) for steps in (5, 6))
apart = max(float((a - b).abs().max()) for a, b in zip(run.results[0][0], shampoo_alone(3, 5), strict=True))
held = {name: elements for _, mine in run.results for name, elements in mine.items()}
expected = {str(place): 2 * (rows**2 + columns**2) for place, (rows, columns) in enumerate(SHAPES)}
a_step = {sum(after) - sum(before) for after, before in zip(longer.bytes, run.bytes, strict=True)}
sent, _ = layerwise_bytes([rows * columns for rows, columns in SHAPES], 3, parameter_bytes=4, gradient_bytes=4)
print(f"3 ranks and one process differ by up to {apart:.0e}")
print(f"numbers of state, by matrix: {dict(sorted(held.items()))}; 2 (m² + n²): {expected}")
print(f"bytes that each rank sends in a step: {a_step}; by the closed form: {sent}")
assert held == expected and a_step == {sent} and apart < 1e-4
term("Shampoo")

# %% [markdown]
# For large matrices this is too much. R of a 4,096 × 14,336 matrix has 206 million numbers, and the FLOPs of a root grow
# with the third power of its side. So Distributed Shampoo ([2023](https://arxiv.org/abs/2309.06497)) cuts matrices into blocks of b × b, and treats
# each block as a matrix of its own. A block of b² weights has 4 b² numbers of state. Blocks, not matrices, get
# owners, and an all-gather brings their updates to all ranks.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("zero-8")
predict(
    "blocks",
    "The hidden matrices of Llama 3 8B in blocks of 1,024 × 1,024, each with one owner, on 512 ranks: how many times more bytes than ZeRO-1 does a rank send?",
    unit="×",
)
BLOCK = 1024
blocks = [BLOCK**2] * sum((rows // BLOCK) * (columns // BLOCK) for rows, columns in matrices)
assert sum(blocks) == sum(sizes)  # all sides are multiples of 1,024
ratios = {
    ranks: [owned / zero for owned, zero in (layerwise_bytes(parts, ranks) for parts in (sizes, blocks))]
    for ranks in (64, 256, 512)
}
whole = 2 * sum(rows**2 + columns**2 for rows, columns in matrices)


def state_of(rows, columns, block):
    """Numbers of state of a matrix in blocks of at most block × block."""
    cuts = [[min(block, side - start) for start in range(0, side, block)] for side in (rows, columns)]
    return sum(2 * (height**2 + width**2) for height in cuts[0] for width in cuts[1])


by_block = {
    size: sum(state_of(*shape, size) for shape in matrices) / sum(sizes) for size in (512, 1024, 2048, 4096, 8192)
}
show.against_prediction("blocks", round(ratios[512][1], 2), unit="×", source="closed form")
with reveal("blocks"):
    show.table(
        [(ranks, *(f"{ratio:.3f}" for ratio in both)) for ranks, both in ratios.items()],
        header=("ranks", "bytes, an owner per matrix (ZeRO-1 = 1)", "bytes, an owner per block"),
    )
    show.table(
        [
            ("AdamW", "2 m n", f"{8 * sum(sizes) / 1e9:.0f} GB", "8"),
            ("Shampoo, whole matrices", "2 (m² + n²)", f"{4 * whole / 1e9:.0f} GB", f"{4 * whole / sum(sizes):.1f}"),
            ("Shampoo, in blocks", "4 m n", f"{16 * sum(sizes) / 1e9:.0f} GB", "16"),
        ],
        header=("states in float32", "numbers", "in all", "bytes per weight"),
        caption="the hidden matrices of Llama 3 8B, without float32 masters; momentum for Shampoo would add 4 bytes per weight",
    )

audit(
    "zero-8",
    by_block[4096],
    "numbers of state per weight in blocks of up to 4,096 × 4,096; in blocks of 1,024 it is 4",
    "model",
    "corrected",
    how=f"closed form, 2 (r² + c²) per block of r × c, for the hidden matrices of Llama 3 8B: {', '.join(f'{number:.2f} with {size:,}' for size, number in by_block.items())}. It is fixed, at 4, while the size divides both sides. A rest makes blocks that are not square, and these have more; so do whole matrices",
)

# %% [markdown]
# 6,656 blocks on 512 ranks are 13 each, so the cut is even, and the bytes are ZeRO's. Small blocks cut evenly and have cheap
# roots; large ones see more of the matrix. Megatron-Core 0.19 has
# `--optimizer soap`, which runs Adam in the axes of L and R, and `muon`.
#
# ## A DeepSpeed file drives our ZeRO
#
# DeepSpeed reads a JSON file. `from_deepspeed_config` reads the same file, follows what it can, notes what it maps to
# something else, and refuses what it does not know, because an ignored typo can waste a day of training.

# %% tags=["demo"]
myth("code-4")
CONFIG = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 2,
        "offload_optimizer": {"device": "cpu"},
        "allgather_bucket_size": 2e8,
        "reduce_bucket_size": 2e8,
        "overlap_comm": True,
        "contiguous_gradients": True,
    },
}


def train_by(settings, steps=20):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(settings.dtype)
    zero = ZeroOptimizer(
        model,
        settings.optimizer_class,
        stage=settings.stage,
        bucket_cap_mb=settings.bucket_cap_mb,
        **settings.optimizer_options,
    )
    data = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(steps):
        x = torch.randn(settings.micro_batch, 16, generator=data)
        loss = (model(x.to(settings.dtype)).float() - x.sum(1, keepdim=True) / 4).square().mean()
        loss.backward()
        zero.step()
        zero.zero_grad()
        losses.append(float(loss))
    return sum(losses[:5]) / 5, sum(losses[-5:]) / 5


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "ds_config.json"
    path.write_text(json.dumps(CONFIG))
    settings = from_deepspeed_config(path, world_size=4)
print(
    f"stage {settings.stage}, {settings.dtype}, {settings.micro_batch} samples × {settings.accumulation_steps} × 4 ranks"
)
print(*settings.notes, sep="\n")
before, after = Cluster(4).run(train_by, settings).results[0]
print(f"loss on rank 0: {before:.3f} in the first five steps, {after:.3f} in the last five")
refused = 0
for section, key, value in (
    (None, "train_batch_sise", 16),
    ("zero_optimization", "stage", 4),
    (None, "train_batch_size", 18),
):
    wrong = json.loads(json.dumps(CONFIG))
    (wrong if section is None else wrong[section])[key] = value
    try:
        from_deepspeed_config(wrong, world_size=4)
    except DeepSpeedConfigError as error:
        refused += 1
        print("refused:", error)

# %% tags=["demo"] jupyter={"source_hidden": true}
audit(
    "code-4",
    settings.stage,
    f"is the stage; {len(settings.notes)} of its other entries have no effect on our ranks",
    "CPU",
    "holds",
    how="such a configuration is read and trains on 4 ranks of the virtual cluster by our ZeRO-2, with DeepSpeed's own names and defaults. DeepSpeed itself was not run. Three changed entries, a misspelled key, stage 4 and batch sizes that do not multiply, are refused by name",
)

# %% [markdown]
# ## Optimizer states on disk
#
# Optimizer states are used once per step, in order. So they may live in the memory of the host (lab 06) or even in a file, and pass
# through a small buffer. ZeRO makes that practical: with N ranks, each reads and writes only 1/N of them. The next
# cell keeps Adam's two states in a file, updates in windows of 65,536 elements, and compares with torch's Adam.

# %% tags=["demo"]


def adam_from_file(weights, gradient, path, step, window=65536, rate=1e-3, betas=(0.9, 0.999)):
    """One step, with the two states of each element in a file; returns the bytes that were read and written."""
    states, moved = torch.from_file(str(path), shared=True, size=2 * len(weights)).view(2, -1), 0
    for start in range(0, len(weights), window):
        g = gradient[start : start + window]
        m, v = states[:, start : start + window].clone()
        m.lerp_(g, 1 - betas[0])
        v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
        states[:, start : start + window] = torch.stack([m, v])
        moved += 2 * 2 * 4 * len(g)
        scale = (v / (1 - betas[1] ** step)).sqrt_().add_(1e-8)
        weights[start : start + window].addcdiv_(m, scale, value=-rate / (1 - betas[0] ** step))
    return moved


count = 300_000
generator = torch.Generator().manual_seed(0)
mine = torch.randn(count, generator=generator)
theirs = torch.nn.Parameter(mine.clone())
adam = torch.optim.Adam([theirs], lr=1e-3)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "states"
    path.write_bytes(bytes(8 * count))
    for step in range(1, 4):
        gradient = torch.randn(count, generator=generator)
        moved = adam_from_file(mine, gradient, path, step)
        theirs.grad = gradient
        adam.step()
print(
    f"largest difference after 3 steps: {float((mine - theirs.detach()).abs().max()):.1e}; {moved / count:g} bytes per element and step"
)
for ranks in (1, 8, 64):
    print(f"7 billion parameters on {ranks} ranks, a disk of 5 GB/s for each: {16 * 7e9 / ranks / 5e9:.2f} s per step")

# %% tags=["demo"] jupyter={"source_hidden": true}
term("hybrid sharding")
term("layer-wise optimizer")
calibration()
