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
#     title: Will it fit? Deep dives
#     minutes: 60
# ---

# %% [markdown]
# # Will it fit? Deep dives
#
# These sections are complete and ungraded, and can be read in any order. They compare the count with the tracker, explore
# budgets, read an out-of-memory error, time recomputation and offloading, and judge twelve claims and a sample program.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_dives", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import tempfile

import numpy as np
import torch
from threeloops.hardware import accelerator, device
from threeloops.inner.memory import LiveStorage, draw_bars, draw_timeline
from threeloops.inner.memory import account as library_account
from threeloops.inner.memory.recompute import MATRIX_PRODUCTS, Segments, segment_peak
from threeloops.lab import audit, calibration, explore, figure, myth, palette, predict, reveal, show
from threeloops.models.gpt import GPT, Block, RotaryPositions
from threeloops.models.gpt_config import GPTConfig
from threeloops.units import readable_bytes
from torch.nn import functional

torch.set_num_threads(1)  # everything here is small: on a busy machine two threads would mostly wait for each other
SEVEN = GPTConfig(32_000, 32, 32, 32, 4096, 11_008, 8192, tied_embeddings=False)
MIXED = {"dtype": "bfloat16", "masters": True, "device": "cuda"}  # BF16 weights, FP32 masters and moments
h100 = accelerator("H100 SXM")

# %% [markdown]
# ## The count against the tracker
#
# The library's `account` plays through a whole step, allocation by allocation, and its tracker watches the course's GPT take
# that step. The six configurations differ in batch, length, depth, optimizer, attention heads and recomputation.


# %% tags=["demo"] jupyter={"source_hidden": true}
def watched_step(config, batch, length, optimizer="adamw", k=None):
    """The timeline of the second training step of the course's GPT, when the optimizer's states exist."""
    torch.manual_seed(0)
    model = GPT(config)
    if k:
        model.blocks = Segments(model.blocks, k)
    made = {
        "adamw": lambda p: torch.optim.AdamW(p, foreach=False),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
    }[optimizer](model.parameters())
    tokens = torch.randint(config.vocabulary_size, (batch, length))
    targets = tokens.roll(-1, 1)

    def step():
        made.zero_grad(set_to_none=True)
        model(tokens, targets).backward()
        made.step()

    step()
    made.zero_grad(set_to_none=True)
    with LiveStorage(model, optimizers=[made]) as live:
        live.mark("forward")  # storages met before this mark existed before the step
        step()
    return live.timeline


SIX = {
    "batch 5": (GPTConfig.tiny(), 5, 64, "adamw", None),
    "length 128": (GPTConfig.tiny(), 2, 128, "adamw", None),
    "6 layers, momentum": (GPTConfig.tiny(layers=6), 2, 64, "momentum", None),
    "one key head, untied, SGD": (GPTConfig.tiny(layers=3, kv_heads=1, tied_embeddings=False), 3, 65, "sgd", None),
    "2 tokens only": (GPTConfig.tiny(layers=4), 1, 2, "adamw", None),
    "recomputed, 2 layers per segment": (GPTConfig.tiny(layers=6), 4, 64, "adamw", 2),
}
rows, differences = [], []
for name, (config, batch, length, optimizer, k) in SIX.items():
    seen = watched_step(config, batch, length, optimizer, k)
    counted = library_account(config, batch, length, optimizer=optimizer, layers_per_segment=k)
    differences.append(counted.peak_bytes / seen.peak_bytes - 1)
    largest = max(seen.by("kind"), key=seen.by("kind").get)
    rows.append(
        [name, f"{counted.peak_bytes:,}", f"{seen.peak_bytes:,}", f"{seen.peak_bytes - counted.peak_bytes:+,}", largest]
    )
show.table(rows, ["configuration", "counted, bytes", "tracked, bytes", "difference, bytes", "largest at the peak"])
assert max(map(abs, differences)) < 0.05

# %% [markdown]
# Count and tracker differ by less than 200 bytes in all six: a few scalars. With 2 tokens the peak is at the update. There
# PyTorch's loop over the parameters holds three temporaries at once: two from which a parameter's denominator is made, and the
# previous parameter's denominator, which lives until the new one replaces it.
#
# ## Whose is it?
#
# For each storage, the library's tracker notes which module was running, which operator made it, and in which line of the source.
# In the backward pass no module runs. But every autograd node has a sequence number, and the tracker has noted which module was
# running when that number was assigned.

# %% tags=["demo"] jupyter={"source_hidden": true}
seen = watched_step(GPTConfig.tiny(layers=2), 3, 100)
print(seen.report(largest=6))
at_peak = seen.by("module")
weights_by_name = {storage.module for storage in seen.storages if storage.kind == "parameter"}
modules = {
    name: size
    for name, size in at_peak.items()
    if name not in weights_by_name and (name.startswith("blocks.0") or name in ("norm", "GPT"))
}
fig, axes = figure(width=9, height=3.4)
names = sorted(modules, key=modules.get)
made = axes.barh(
    ["GPT: the loss" if name == "GPT" else name for name in names],
    [modules[name] / 1024 for name in names],
    color=palette.vermillion,
)
axes.bar_label(made, [f" {modules[name] / 1024:.0f} KiB" for name in names])
axes.set(xlabel="KiB alive at the peak", title="Who holds it: block 0, the last norm, and the loss")
axes.margins(x=0.12)
axes.grid(axis="y", visible=False)
show.figure(fig)

# %% [markdown]
# ## Explore
#
# Choose a model, a batch, a length and a policy. Three things are worth finding: the model size at which the *states* alone
# fill an H100; the length at which activations outweigh everything else, with and without recomputation; and a case in which
# recomputation saves nothing, because the peak is elsewhere.

# %% tags=["demo"] jupyter={"source_hidden": true}
from ipywidgets import SelectionSlider

MODELS = {
    "124 million": GPTConfig.small(max_sequence=1 << 15),
    "1.3 billion": GPTConfig(50_304, 24, 16, 16, 2048, 5632, 1 << 15),
    "6.7 billion": GPTConfig(32_000, 32, 32, 32, 4096, 11_008, 1 << 15, tied_embeddings=False),
    "13 billion": GPTConfig(32_000, 40, 40, 40, 5120, 13_824, 1 << 15, tied_embeddings=False),
}
POLICIES = {
    "BF16, FP32 masters": MIXED,
    "BF16 alone": {"dtype": "bfloat16", "device": "cuda"},
    "FP32": {"dtype": "float32", "device": "cuda"},
}


def draw_budget(model, policy, recompute, batch, length):
    config = MODELS[model]
    k = {"nothing": None, "every layer": 1, "4 layers per segment": 4}[recompute]
    found = library_account(config, batch, length, layers_per_segment=k, **POLICIES[policy])
    fig, axes = figure(width=9.5, height=2.9)
    draw_bars(axes, {"at the peak": found.at_peak, "each kind's own peak": found.parts}, unit=1e9)
    axes.axvline(h100.memory_bytes / 1e9, color=palette.ink, lw=1.5, ls="--")
    verdict = "fits" if found.fits(h100.memory_bytes) else "does not fit"
    axes.set(
        xlabel="GB (dashed: an H100)",
        title=f"{model} parameters, {batch} × {length:,} tokens, recomputed: {recompute}\n"
        f"{found.peak_bytes / 1e9:,.0f} GB: {verdict}",
    )
    axes.set_xlim(right=max(1.1 * sum(found.parts.values()) / 1e9, 90))
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return fig


explore(
    draw_budget,
    model=["6.7 billion", "124 million", "1.3 billion", "13 billion"],
    policy=list(POLICIES),
    recompute=["nothing", "every layer", "4 layers per segment"],
    batch=SelectionSlider(options=[2**n for n in range(6)], value=2, description="batch"),
    length=SelectionSlider(options=[2**n for n in range(7, 16)], value=4096, description="length"),
)

# %% [markdown]
# ## Post-mortem
#
# The message of an out-of-memory error names the allocation that failed. That one is rarely the cause, so ask what *else* was
# alive. With `budget_bytes` the tracker raises an error when the budget is exceeded, and the error lists what was alive.

# %% tags=["demo"]
from threeloops.inner.memory import MemoryBudgetExceeded

torch.manual_seed(0)
patient = GPT(GPTConfig.tiny(layers=4))
tokens = torch.randint(256, (4, 128))
try:
    with LiveStorage(patient, budget_bytes=8 << 20):
        patient(tokens, tokens).backward()
except MemoryBudgetExceeded as failure:
    print(failure)
    at_fault = failure.timeline.by("kind", len(failure.timeline.changes))
assert max(at_fault, key=at_fault.get) == "activation"

# %% [markdown]
# You can ask a GPU's allocator the same with `torch.cuda.memory._record_memory_history()` and
# `torch.cuda.memory._dump_snapshot("snapshot.pickle")`. It sees workspaces and fragmentation too, but cannot tell an
# activation from a state. On a machine with a GPU, the next cell compares the tracker with the allocator's own maximum.
# The course has not measured that yet.

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.hardware import device

if device() == "cuda":
    on_gpu = GPT(GPTConfig.small(layers=4)).to("cuda", torch.bfloat16)
    batch_on_gpu = torch.randint(50_304, (4, 1024), device="cuda")
    on_gpu(batch_on_gpu, batch_on_gpu).backward()
    on_gpu.zero_grad(set_to_none=True)
    with LiveStorage(on_gpu) as live:
        on_gpu(batch_on_gpu, batch_on_gpu).backward()
    print(
        f"tracker {readable_bytes(live.timeline.peak_bytes)}, max_memory_allocated {readable_bytes(live.allocator_peak_bytes)}: "
        f"{live.allocator_peak_bytes / live.timeline.peak_bytes - 1:+.1%}, which is workspace and rounding"
    )
else:
    print("no CUDA device: not measured here")

# %% [markdown]
# ## What recomputation costs in time
#
# The core notebook counted what recomputation saves. Here a step is timed with and without it; the next cells take about ten
# seconds.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("budg-4")
predict(
    "recompute_time",
    "Only the input of every layer is kept, and the rest is computed again. By what factor does a training step take longer?",
    unit="×",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.timing import benchmark

timed_config = GPTConfig.tiny(layers=4, width=192, mlp_width=576, heads=4)
torch.manual_seed(0)
timed = GPT(timed_config)
timed_blocks, timed_tokens = timed.blocks, torch.randint(256, (4, 128))


def timed_step(blocks):
    timed.blocks = blocks
    timed.zero_grad(set_to_none=True)
    timed(timed_tokens, timed_tokens).backward()


VARIANTS = {
    "nothing": timed_blocks,
    "every layer": Segments(timed_blocks, 1),
    "every layer, matrix products kept": Segments(timed_blocks, 1, MATRIX_PRODUCTS),
}
rounds = {name: [] for name in VARIANTS}
for _ in range(6):  # in turns, so that other load on this machine slows all of them alike
    for name, blocks in VARIANTS.items():
        rounds[name] += benchmark(
            timed_step, lambda made=blocks: (made,), samples=1, warmup=0, flush_cache=False
        ).seconds
LONGER = {  # round by round, without the first, which warms up
    name: float(np.median([took / plain for took, plain in zip(seconds[1:], rounds["nothing"][1:], strict=True)]))
    for name, seconds in rounds.items()
}
factor = LONGER["every layer"]
show.against_prediction("recompute_time", round(factor, 2), unit="×", source="measured here")
forward_share = timed_config.flops_per_token(128) / (3 * timed_config.flops_per_token(128))
with reveal("recompute_time"):
    print(
        f"by arithmetic alone {1 + forward_share:.2f}×; measured here, median of {len(rounds['nothing']) - 1} rounds, {factor:.2f}×"
    )

# %% [markdown]
# ## Selective recomputation
#
# Not all operators are alike. A matrix product is expensive to compute, and its result is one tensor; norms, rotations, SiLU and
# elementwise products are cheap, and hold more than half of a layer's bytes. So keep the results of matrix products and of
# attention, and compute the rest again (V. Korthikanti et al., [Reducing
# Activation Recomputation in Large Transformer Models](https://arxiv.org/abs/2205.05198), 2022). PyTorch's
# `create_selective_checkpoint_contexts` asks a policy, operator by operator.

# %% tags=["demo"] jupyter={"source_hidden": true}
from torch.utils.flop_counter import FlopCounterMode

costs = {}
for name, blocks in VARIANTS.items():
    timed_step(blocks)
    timed.zero_grad(set_to_none=True)
    with LiveStorage(timed) as live:
        timed_step(blocks)
    with FlopCounterMode(display=False) as flops:
        timed_step(blocks)
    costs[name] = (live.timeline.peak_of("activation"), flops.get_total_flops())
plain_bytes, plain_flops = costs["nothing"]
with reveal("budg-4"):
    show.table(
        [
            [
                name,
                readable_bytes(size),
                f"{100 * size / plain_bytes:.0f}%",
                f"{work / plain_flops:.3f}×",
                f"{LONGER[name]:.2f}×",
            ]
            for name, (size, work) in costs.items()
        ],
        ["recomputed", "activations", "of all", "FLOPs of matrix products", "time, here"],
    )
selective_bytes, selective_flops = costs["every layer, matrix products kept"]
assert selective_bytes < 0.8 * plain_bytes and selective_flops < 1.02 * plain_flops
audit(
    "budg-4",
    round(factor, 2),
    "× the time of a step",
    "CPU",
    "holds" if 1.2 <= factor <= 1.45 else "corrected",
    how=f"median of {len(rounds['nothing']) - 1} rounds, on this machine; one more forward pass is {1 + forward_share:.2f}×; PyTorch stops as soon as it has what the backward pass needs, so in matrix products it is {costs['every layer'][1] / plain_flops:.2f}×",
)

# %% [markdown]
# The gain is in the columns of bytes and of FLOPs: four tenths of the activations are gone, and no matrix product is done
# twice. Whether it also shows in the time depends on the machine. The policy is a Python function that is called for every
# operator, so at these sizes, on a CPU, the calls can take longer than the computation that they save. Recomputing every layer
# does not quite reach 1.33× in matrix products, because PyTorch stops as soon as it has what the backward pass needs, and because
# the logits are not made twice.
#
# ## Accumulation
#
# Eight sequences go through a small model in 1, 2, 4 or 8 parts. Then two small networks get eight samples whole and in halves:
# one with layer-norm, and one with batch-norm.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("budg-12")
myth("budg-5")

# %% tags=["demo"] jupyter={"source_hidden": true}
torch.manual_seed(0)
accumulating = GPT(GPTConfig.tiny(layers=4, mlp_width=512, width=128))
many = torch.randint(256, (8, 64))


def peak_in_parts(parts):
    accumulating.zero_grad(set_to_none=True)
    with LiveStorage(accumulating) as live:
        live.mark("forward")
        for part in many.chunk(parts):
            (accumulating(part, part) / parts).backward()
    return live.timeline


IN_PARTS = {parts: peak_in_parts(parts) for parts in (1, 2, 4, 8)}
fig, (left, right) = figure(1, 2, width=12.5, height=3.4, width_ratios=[3, 2])
draw_timeline(left, IN_PARTS[4])
left.set(title="Four microbatches of two sequences", xlabel="allocations and frees, in order", ylabel="MiB alive")
handles, labels = left.get_legend_handles_labels()
draw_bars(right, {f"{parts} part{'s' * (parts > 1)}": line.by("kind") for parts, line in IN_PARTS.items()}, unit=2**20)
right.set(title="What the peak is made of", xlabel="MiB")
right.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
with reveal("budg-12"):
    show.figure(fig)
torch.manual_seed(0)
x, y = torch.randn(8, 5, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)
distance = {}
for name, norm in (("layer-norm", torch.nn.LayerNorm(16)), ("batch-norm", torch.nn.BatchNorm1d(16))):
    net = torch.nn.Sequential(torch.nn.Linear(5, 16), norm, torch.nn.Tanh(), torch.nn.Linear(16, 3)).double()

    def gradient(parts, net=net):
        net.zero_grad()
        for a, b in zip(x.chunk(parts), y.chunk(parts), strict=True):
            (functional.mse_loss(net(a), b) / parts).backward()
        return torch.cat([p.grad.reshape(-1) for p in net.parameters()])

    distance[name] = float((gradient(2) - gradient(1)).norm() / gradient(1).norm())
with reveal("budg-5"):
    show.table(
        [[name, f"{value:.1e}"] for name, value in distance.items()],
        ["network with", "distance of accumulated gradients"],
    )
assert distance["layer-norm"] < 1e-14 < 1e-3 < distance["batch-norm"]
audit(
    "budg-5",
    float(f"{distance['batch-norm']:.1e}"),
    "relative distance of the gradients with batch-norm",
    "CPU",
    "corrected",
    how=f"with layer-norm {distance['layer-norm']:.0e} off, which is rounding, if parts are weighted by their counted targets (the core notebook shows what averaging does); with batch-norm the accumulated gradient is {distance['batch-norm']:.0%} off",
)
gradients_held = {parts: IN_PARTS[parts].by("kind").get("gradient", 0) for parts in (1, 4)}
audit(
    "budg-12",
    round((gradients_held[4] - gradients_held[1]) / 2**20, 2),
    "MiB more of gradients at the peak, in four parts",
    "CPU",
    "corrected",
    how=f"from the second part on all gradients are alive at the loss: {readable_bytes(gradients_held[4])} at the peak of four parts, {readable_bytes(gradients_held[1])} at that of one. Accumulation usually saves far more in activations",
)

# %% [markdown]
# Accumulation saves activations, but the gradients must stay from the first part to the last. So from the second part on, all
# gradients are alive at the peak as well. And accumulation gives a different gradient if an operator looks at the batch
# *as a whole*. Batch-norm subtracts the mean of the batch that it sees, and a part has a different mean. No weighting
# of the parts repairs that.
#
# ## Offloading, measured
#
# The library's `OffloadedAdamW` keeps its states elsewhere, here in files. A CPU has no PCIe link to its own memory, so the copies
# run through a channel whose speed we set: a chunk takes as long each way as its update. PyTorch's optimizer, with its states in
# memory, takes the same steps, after which the parameters must be equal to the last bit.

# %% tags=["demo"] jupyter={"source_hidden": true}
import time

from threeloops.inner.memory.offload import FileStore, OffloadedAdamW, Rates, ThreadChannel
from threeloops.inner.memory.offload import step_seconds as predicted_seconds

ELEMENTS, CHUNK = 1 << 22, 1 << 19
CHUNKS = ELEMENTS // CHUNK
ONE_CHUNK = 2 * 4 * CHUNK  # two moments


def with_gradient(elements):
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(elements, generator=generator).requires_grad_()
    weight.grad = torch.randn(elements, generator=generator)
    return weight


def seconds_of(optimizer, steps):
    times = []
    for _ in range(steps):
        started = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - started)
    return float(np.median(times))


in_chunks = torch.optim.AdamW([with_gradient(CHUNK) for _ in range(CHUNKS)], foreach=False)
seconds_of(in_chunks, 1)  # makes the moments
update_rate = ONE_CHUNK * CHUNKS / seconds_of(in_chunks, 4)
LINK = update_rate  # bytes per second
rates = Rates(fetch=LINK, write=LINK, update=update_rate)
rows = []
with tempfile.TemporaryDirectory() as folder:
    for buffers in (1, 2, 3):
        weight, resident = with_gradient(ELEMENTS), with_gradient(ELEMENTS)
        reference = torch.optim.AdamW([resident], foreach=False)
        offloaded = OffloadedAdamW(
            [weight],
            store=FileStore(f"{folder}/{buffers}"),
            buffers=buffers,
            chunk_elements=CHUNK,
            channel=ThreadChannel(LINK),
        )
        took = seconds_of(offloaded, 3)
        seconds_of(reference, 3)
        assert torch.equal(weight, resident), "the same bits as the resident optimizer"
        foretold = predicted_seconds([ONE_CHUNK] * CHUNKS, rates, buffers=buffers)
        rows.append([buffers, f"{foretold * 1e3:.0f}", f"{took * 1e3:.0f}", f"{100 * (took / foretold - 1):+.0f}%"])
        offloaded.close()
show.table(rows, ["buffers", "predicted, ms", "measured, ms", "difference"])

# %% [markdown]
# With one buffer a step takes the sum of all times. The second buffer hides the updates behind the link, and a third finds
# nothing left to hide. The prediction does not take into account that copies and updates share this machine's memory. On a GPU,
# `OffloadedAdamW` copies on a stream of its own from page-locked memory. The course has not measured that yet.
#
# ## Myth or fact? Bytes per parameter

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("budg-1")
myth("budg-9")
myth("budg-10")
myth("budg-2")

# %% tags=["demo"] jupyter={"source_hidden": true}
small = GPTConfig.small()
by_format = {
    "FP32, Adam": library_account(small, 1, 128),
    "BF16 with FP32 masters, Adam": library_account(small, 1, 128, dtype="bfloat16", masters=True),
    "BF16 alone, Adam": library_account(small, 1, 128, dtype="bfloat16"),
    "FP32, SGD": library_account(small, 1, 128, optimizer="sgd"),
}
show.table(
    [[name, f"{found.per_parameter:.0f}"] for name, found in by_format.items()],
    ["format and optimizer", "bytes per parameter, gradients included"],
)
with_gradients = by_format["FP32, Adam"].per_parameter
in_mixed = by_format["BF16 with FP32 masters, Adam"].per_parameter
audit(
    "budg-1",
    with_gradients,
    "bytes per parameter",
    "model",
    "corrected",
    how="FP32 weights and two moments are 12, and the gradients are 4 more",
)
audit(
    "budg-9",
    in_mixed,
    "bytes per parameter",
    "model",
    "holds",
    how=f"in FP32 with gradients {with_gradients:.0f}, and in BF16 with FP32 masters {in_mixed:.0f} as well; in BF16 alone {by_format['BF16 alone, Adam'].per_parameter:.0f}",
)
audit(
    "budg-10",
    12 * 7,
    "GB for 7 billion parameters",
    "model",
    "corrected",
    how="a checkpoint needs no gradients: FP32 weights and two moments are 12 bytes per parameter. 56 GB is 8 bytes per parameter: the weights and one number more, where Adam has two",
)
audit(
    "budg-2",
    16 * 13,
    "GB for 13 billion parameters",
    "model",
    "corrected",
    how=f"16 bytes × 7 and × 13 billion are 112 and 208 GB, as claimed. But {-(-16 * 13 // 80)} GPUs of 80 GB hold them only if the states are sharded over the GPUs: plain data parallelism keeps all 208 GB on each",
)

# %% [markdown]
# ## Myth or fact? The square root of the layers

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("budg-3")
myth("budg-11")
myth("budg-8")

# %% tags=["demo"] jupyter={"source_hidden": true}
from torch.utils.checkpoint import checkpoint_sequential

LAYERS = 24
stack_config = GPTConfig.tiny(layers=LAYERS, width=32, mlp_width=96, vocabulary_size=16)
torch.manual_seed(0)
stack = torch.nn.ModuleList(Block(stack_config) for _ in range(LAYERS))
angles = RotaryPositions(stack_config.head_dim, 32, 1e4)(0, 32)
kept = library_account(stack_config, 4, 32).layer
b, c = kept["input"], sum(kept.values())


class WithAngles(torch.nn.Module):
    """A block that finds its rotary angles by itself, as `Sequential` needs."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return self.block(x, angles)


sequential = torch.nn.Sequential(*(WithAngles(block) for block in stack))


def held(run):
    """Activations, and all that is alive beside the parameters, at their peaks."""
    for parameter in stack.parameters():
        parameter.grad = None
    x = torch.randn(4, 32, stack_config.width, requires_grad=True)
    with LiveStorage(sequential) as live:
        run(x).sum().backward()
    weights_held = sum(parameter.nbytes for parameter in stack.parameters())
    return live.timeline.peak_of("activation"), live.timeline.peak_bytes - weights_held


without = held(sequential)
chunked = held(lambda x: checkpoint_sequential(sequential, 4, x, use_reentrant=False))
each_layer = held(lambda x: torch.nn.Sequential(*Segments(torch.nn.ModuleList(sequential), 1))(x))
assert abs(each_layer[0] / segment_peak(LAYERS, 1, b, c) - 1) < 0.05
reduction = without[0] / each_layer[0]
layer = library_account(SEVEN, 1, 2048, **MIXED).layer
bf16_ratio = sum(layer.values()) / layer["input"]
rooted = [k for k in range(1, LAYERS + 1) if LAYERS % k == 0 and k * k >= LAYERS][0]
audit(
    "budg-3",
    round(segment_peak(LAYERS, rooted, b, c) / segment_peak(LAYERS, 1, b, c), 1),
    f"times as many activations in segments of {rooted} as with every layer recomputed ({LAYERS} layers)",
    "model",
    "corrected",
    how=f"every layer recomputed holds L·b + c: linear in L, not √L. √L is segments of √L layers, and these hold more until L = (c/b)² = {(c / b) ** 2:.0f} in this stack, {bf16_ratio**2:.0f} in the 7B model of the core notebook. The tracked peaks agree with (L/k)·b + k·c within 5%",
)
audit(
    "budg-11",
    round(reduction, 1),
    f"times less memory for activations ({LAYERS} layers)",
    "CPU",
    "corrected",
    how=f"tracked; it depends on the depth, and in the 7B model of the core notebook it is {32 * bf16_ratio / (32 + bf16_ratio):.1f} times for 32 layers. What it costs in time is measured in the section on recomputation above",
)
audit(
    "budg-8",
    round(without[1] / chunked[1], 2),
    "times less, of all that is alive beside the weights",
    "CPU",
    "corrected",
    how=f"of activations alone {without[0] / chunked[0]:.2f} times less at this depth ({LAYERS} layers: {readable_bytes(without[0])} → {readable_bytes(chunked[0])}, tracked). Four segments hold 4·b + {LAYERS // 4}·c; `chunks` of {LAYERS} would hold {reduction:.1f} times less",
)

# %% [markdown]
# ## Myth or fact? Activations are the largest part
#
# The next cell compares activations with all the rest, for four models and 256 to 524,288 tokens per step.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("budg-6")

# %% tags=["demo"] jupyter={"source_hidden": true}
TOKENS = [2**n for n in range(8, 20)]
fig, axes = figure(width=11, height=3.6)
CROSSOVER = {}
for (name, config), shade in zip(
    MODELS.items(), (palette.sky, palette.green, palette.blue, palette.vermillion), strict=True
):
    for k, style in ((None, "-"), (1, "--")):
        one, two = (
            library_account(config, 1, length, layers_per_segment=k, **MIXED).timeline.peak_of("activation")
            for length in (1024, 2048)
        )
        slope = (two - one) / 1024
        fixed = library_account(config, 1, 1024, **MIXED).per_parameter * config.parameters_count()
        CROSSOVER[name, k] = (fixed - (one - slope * 1024)) / slope
        axes.plot(
            TOKENS,
            [(one + slope * (tokens - 1024)) / fixed for tokens in TOKENS],
            style,
            color=shade,
            label=name if k is None else None,
        )
axes.axhline(1, color=palette.ink, lw=1)
axes.set(
    xscale="log",
    yscale="log",
    xlabel="tokens of a step (batch × length); dashed: every layer recomputed",
    ylabel="activations / all the rest",
    title="Above 1, activations outweigh parameters, gradients, masters and states together",
)
axes.set_xticks(TOKENS, [f"{t:,}" for t in TOKENS], fontsize=9)
axes.minorticks_off()
axes.legend(loc="lower right")
with reveal("budg-6"):
    show.figure(fig)
audit(
    "budg-6",
    round(CROSSOVER["6.7 billion", None]),
    "tokens per step",
    "model",
    "corrected",
    how="from that many tokens on, in the 6.7 billion model in BF16 with FP32 masters and fused attention; "
    + "; ".join(
        f"{name}: {round(CROSSOVER[name, None]):,}, recomputed {round(CROSSOVER[name, 1]):,}" for name in MODELS
    )
    + ". Below, parameters, gradients, masters and states are more",
)

# %% [markdown]
# The answer depends on the number of tokens. Activations grow with batch × length and the rest does not, so there is a
# number of tokens at which the two are equal. Recomputation hardly changes this crossing for the smallest model: more
# than half of its activations are the logits over 50,304 tokens of vocabulary, which come after the layers and are not
# recomputed.
#
# ## Myth or fact? The list of a layer's activations
#
# The list is that of Korthikanti et al. (2022, above) for a layer of GPT-2's kind (layer-norm, GELU, dropout, scores in
# memory): 34·s·b·h + 5·a·s²·b bytes in 16 bits, with s tokens, a batch of b, width h and a heads. The next
# cell builds that layer in BF16, and counts what autograd keeps for it.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("budg-7")

# %% tags=["demo"] jupyter={"source_hidden": true}
s_, b_, h_, a_ = 128, 4, 64, 4


class GPT2Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(h_) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(h_, 3 * h_), torch.nn.Linear(h_, h_)
        self.up, self.down = torch.nn.Linear(h_, 4 * h_), torch.nn.Linear(4 * h_, h_)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (a_, -1)).transpose(1, 2).contiguous()
            for part in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        scores = torch.softmax(q @ k.transpose(-1, -2) * (h_ // a_) ** -0.5, dim=-1)
        heads = functional.dropout(scores, 0.1) @ v
        x = x + functional.dropout(self.out(heads.transpose(1, 2).flatten(2)), 0.1)
        return x + functional.dropout(self.down(functional.gelu(self.up(self.norms[1](x)))), 0.1)


def packed_bytes(module, x):
    """Storages that autograd keeps for the backward pass, each once, without the weights."""
    weights_too = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    found = {}

    def pack(tensor):
        if tensor.untyped_storage()._cdata not in weights_too:
            found[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(x)
    return sum(storage.nbytes() for storage in found.values())


layer = library_account(SEVEN, 1, 2048, **MIXED).layer
torch.manual_seed(0)
stream = torch.randn(b_, s_, h_, dtype=torch.bfloat16, requires_grad=True) * 1
packed = packed_bytes(GPT2Layer().bfloat16(), stream)
published = 34 * s_ * b_ * h_ + 5 * a_ * s_**2 * b_
wide_masks = published + 2 * s_ * b_ * h_ + a_ * s_**2 * b_
audit(
    "budg-7",
    round(packed / wide_masks, 3),
    "of the formula, masks counted as they are",
    "CPU",
    "holds" if abs(packed / wide_masks - 1) < 0.05 else "corrected",
    how=f"{packed:,} bytes packed by autograd for s = {s_}, b = {b_}, h = {h_}, a = {a_}; the formula gives {published:,}, with dropout masks of one byte per element. On a CPU they are BF16, two bytes: {wide_masks:,}. The course's own layer has no dropout, no scores in memory and a gated MLP: {sum(layer.values()) / layer['input'] * 2:.0f}·s·b·h",
)

# %% [markdown]
# ## Myth or fact? A sample program

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("code-2")

# %% tags=["demo"] jupyter={"source_hidden": true}
from torch.utils.checkpoint import checkpoint_sequential


def sample_program(model, batch):
    """The structure of a sample in the texts that this course audits. Returns its three faults, as Python reports them."""
    faults = []
    try:  # checkpoint_sequential gets a module that is not a sequence of functions
        checkpoint_sequential(model, 4, batch, use_reentrant=False)
    except (TypeError, ValueError, AttributeError, NotImplementedError) as reason:
        faults.append(f"{type(reason).__name__}: {reason}")
    try:
        scaler.scale(torch.ones(()))  # used, but never created
    except NameError as reason:
        faults.append(f"NameError: {reason}")
    model.zero_grad()
    model(batch, batch).backward()
    once = model.head.weight.grad.clone()
    model(batch, batch).backward()  # no zero_grad between two steps
    if torch.allclose(model.head.weight.grad, 2 * once):
        faults.append("the second step's gradient is the sum of both steps'")
    return faults


found = sample_program(GPT(GPTConfig.tiny()), torch.randint(256, (2, 16)))
print(*found, sep="\n")
assert len(found) == 3
audit(
    "code-2",
    len(found),
    "faults",
    "CPU",
    "corrected",
    how="the sample does not run: `checkpoint_sequential` wants a sequence of functions, each of whose outputs is the next one's input, and `scaler` is never created. With both repaired it trains on sums of all gradients so far, because nothing zeroes them",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
calibration()
