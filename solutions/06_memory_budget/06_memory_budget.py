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
#     title: Will it fit?
#     minutes: 180
#     withholds: [threeloops.inner.memory]
# ---

# %% [markdown]
# # Will it fit?
#
# Training a model of seven billion parameters begins with a sum that everybody does in their head: 2 bytes a
# parameter, 14 GB, a GPU has 80. The run lasts a minute, says `CUDA out of memory`, and the search begins: a smaller batch,
# another smaller batch, some flag from a forum.

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from threeloops.lab import audit, by_value, check, explore, hint, inout, predict, show
from threeloops.models.gpt_config import GPTConfig
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

torch.set_num_threads(1)  # everything here is small: on a busy machine two threads would mostly wait for each other


# %% [markdown]
# None of this needs a GPU to find out. What a training step holds can be **counted** before it runs. Here is such a model,
# 8 sequences of 2,048 tokens and the usual mixed precision, counted by the accountant that you will write:

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.hardware import accelerator
from threeloops.inner.memory import account as library_account
from threeloops.inner.memory import draw_bars, draw_timeline
from threeloops.lab import figure, palette, progress
from threeloops.units import readable_bytes

SEVEN = GPTConfig(
    vocabulary_size=32_000,
    layers=32,
    heads=32,
    kv_heads=32,
    width=4096,
    mlp_width=11_008,
    max_sequence=8192,
    tied_embeddings=False,
)
MIXED = {"dtype": "bfloat16", "masters": True, "device": "cuda"}  # BF16 weights, FP32 masters and moments
h100 = accelerator("H100 SXM")
CASES = {
    "1 × 2,048 tokens": library_account(SEVEN, 1, 2048, **MIXED),
    "8 × 2,048": library_account(SEVEN, 8, 2048, **MIXED),
    "8 × 2,048, every layer recomputed": library_account(SEVEN, 8, 2048, layers_per_segment=1, **MIXED),
}
bars = {name: case.at_peak for name, case in CASES.items()}
ELSEWHERE = ("state", "master")  # exercise 5 moves the states out; masters can go the same way
bars["… and states and masters in host memory"] = {
    kind: size for kind, size in CASES["8 × 2,048, every layer recomputed"].at_peak.items() if kind not in ELSEWHERE
}
fig, axes = figure(width=11.5, height=3.4)
draw_bars(axes, bars, unit=1e9)
axes.axvline(h100.memory_bytes / 1e9, color=palette.ink, lw=1.5, ls="--")
axes.text(h100.memory_bytes / 1e9 + 1.5, 3.0, "an H100: 80 GiB = 86 GB", fontsize=10, va="center")
for row, (_name, parts) in enumerate(bars.items()):
    axes.text(sum(parts.values()) / 1e9 + 1.5, row, f"{sum(parts.values()) / 1e9:.0f} GB", va="center", weight="bold")
axes.set(
    xlabel="GB alive at the worst moment of a step",
    title=f"{SEVEN.parameters_count() / 1e9:.1f} billion parameters, BF16 with FP32 masters, AdamW",
    ylim=(3.5, -0.5),
)
axes.set_xlim(right=1.13 * max(sum(parts.values()) for parts in bars.values()) / 1e9)
axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
show.figure(fig)

# %% [markdown]
# Parameters, the only part of that sum, are less than half of every bar. What to do about the rest is the subject of
# this lab:
#
# 1. **count** what a step will hold, and find the largest batch that fits;
# 2. **watch** what it really holds: a tracker of live storage, which must agree with the count;
# 3. **forget** activations and compute them again, in segments, and find the best segment;
# 4. **split** a batch into parts whose gradients add up to those of the whole;
# 5. **move** the optimiser's states elsewhere, and predict what that costs in time.
#
# Everything here runs on a CPU with a small model. Bytes are bytes: the count is checked against what PyTorch holds.

# %% tags=["demo"]
predict(
    "kept_by_a_layer",
    "A layer of the 7B model (fused norm, BF16) keeps tensors for its backward pass. How many times the size of its input are they, all together?",
    unit="×",
    guess=None,
)
predict(
    "recompute_time",
    "Keep only the input of every layer and compute the rest again: by what factor does a training step get longer?",
    unit="×",
    guess=None,
)

# %% [markdown]
# ## 1 · The accountant
#
# A training step holds six kinds of bytes. Four are easy to count, because they depend on the model alone: **parameters**, **gradients** (as many as parameters), the **states** of the optimiser (two
# numbers a parameter for Adam), and a few tables. The fifth is what decides: **activations**, everything that the
# forward pass has to leave lying around because the backward pass will ask for it. The sixth are **temporaries**, which
# live for a moment, and count if that moment is the worst one.
#
# Autograd's rule for activations is simple. Each operator keeps what its own derivative needs:
#
# | operator | keeps |
# |---|---|
# | `x @ W` | `x` (and `W`, which lives anyway) |
# | `a * b` | `a` and `b` |
# | `silu(g)` | `g` |
# | `a + b`, a rotation by fixed angles | nothing |
# | RMSNorm, as the single operators that it is on a CPU | `x`; the normalised `x · r`; and `r = 1/rms(x)`, one number a token |
# | fused attention | rotated q, rotated k, v, its output, and the logarithm of each sum: one number for each head and token |
# | joining the heads, `(batch, heads, tokens, head_dim)` → `(batch, tokens, width)` | nothing, but its result is a copy |
# | cross-entropy | the log-softmax of the logits |
#
# The sum is not that of the table, for two reasons. A tensor that two operators keep is there **once**: that makes it
# smaller. And what is kept is not a tensor but its **storage**: v is a slice of the product `x @ W_qkv`, so all of that
# product stays, for the sake of a part: that makes it larger.
#
# ### Exercise 1 (20 points)
#
# Everything is float32: 4 bytes. `T = batch · sequence` tokens; `width`, `heads`, … are fields of `config`, the
# configuration of the course's GPT, which also has `config.parameters_count()`, `config.head_dim` and
# `config.qkv_widths`, the columns of q, k and v (with grouped heads k and v are narrower).
#
# `account(config: GPTConfig, batch: int, sequence: int, states: int) -> Account`, all in **bytes**:
#
# | field | what |
# |---|---|
# | `parameters`, `gradients` | 4 bytes a parameter each |
# | `states` | `states` numbers of 4 bytes a parameter: 2 for AdamW, 0 for plain SGD |
# | `layer` | what **one block** keeps: its input, and all that its operators keep |
# | `head` | what comes after the blocks: what the last norm and the projection behind it keep, and the log-softmax |
# | `peak` | the larger of the two moments below |
#
# A block is `x = x + attention(norm(x))`, then `x = x + mlp(norm(x))`:
#
# 1. `h = norm(x)`, `qkv = h @ W_qkv`, rotate q and k, attend, join the heads, `@ W_output`, add `x`;
# 2. `h = norm(x)`, `g = h @ W_gate`, `u = h @ W_up`, `(silu(g) * u) @ W_down`, add `x`.
#
# After the blocks: a norm, the projection to `vocabulary_size` logits a token, and the loss.
#
# Both moments hold parameters and states; tokens and targets, 8 bytes each a token; and the rotary tables,
# `max_sequence · head_dim` numbers.
#
# - **At the loss** there are also the activations of all layers, `head`, and *two* more tensors of the size of the
#   logits: the backward pass of the log-softmax reads one gradient of that size and writes another.
# - **At the update** there are also the gradients.
#
# `largest_batch(config: GPTConfig, sequence: int, states: int, budget: float) -> int`: the largest batch whose `peak` is
# at most `budget` bytes. Where not even one sequence fits, `ValueError` that contains `budget` and the peak of a batch
# of 1 in bytes: digits alone, as `3428608`.
#
# `kv_cache(config: GPTConfig, batch: int, tokens: int, element: int) -> int`: bytes of keys and values of all layers,
# `element` bytes a number. What decoding holds instead of activations.
#
# **Errors**: `batch` or `sequence` below 1, or `sequence` above `config.max_sequence`, raise `ValueError` that contains
# the name and the value, as `batch = 0`.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_account", "locked": true, "schema_version": 3, "solution": false, "task": false}
@dataclass(frozen=True)
class Account:
    """Bytes of one training step."""

    parameters: int
    gradients: int
    states: int
    layer: int
    head: int
    peak: int


# %% nbgrader={"grade": false, "grade_id": "account", "locked": false, "schema_version": 3, "solution": true, "task": false}
def account(config: GPTConfig, batch: int, sequence: int, states: int) -> Account:
    """What a training step in float32 holds; `states` numbers a parameter belong to the optimiser."""
    ### BEGIN SOLUTION
    if batch < 1:
        raise ValueError(f"batch = {batch}: expected at least 1")
    if not 1 <= sequence <= config.max_sequence:
        raise ValueError(f"sequence = {sequence}: expected 1 to max_sequence = {config.max_sequence}")
    tokens, width, keys = batch * sequence, config.width, config.qkv_widths[1]
    stream = 2 * width  # the block's input, and what lies between its halves
    norms = 2 * (2 * width + 1)  # normalised, and the output that the products behind it keep
    attention = (width + 2 * keys) + width + keys + width + config.heads + width  # qkv, q, k, output, sums, joined
    layer = 4 * tokens * (stream + norms + attention + 4 * config.mlp_width)
    logits = 4 * tokens * config.vocabulary_size
    head = 4 * tokens * (3 * width + 1) + logits
    parameters = 4 * config.parameters_count()
    always = parameters * (1 + states) + 16 * tokens + 4 * config.max_sequence * config.head_dim
    peak = always + max(config.layers * layer + head + 2 * logits, parameters)
    return Account(parameters, parameters, states * parameters, layer, head, peak)
    ### END SOLUTION


def largest_batch(config: GPTConfig, sequence: int, states: int, budget: float) -> int:
    """The largest batch whose peak is at most `budget` bytes."""
    ### BEGIN SOLUTION
    smallest = account(config, 1, sequence, states).peak
    if smallest > budget:
        raise ValueError(f"budget = {budget}: one sequence alone needs {smallest} bytes")
    low, high = 1, 2
    while account(config, high, sequence, states).peak <= budget:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if account(config, middle, sequence, states).peak <= budget:
            low = middle
        else:
            high = middle
    return low
    ### END SOLUTION


def kv_cache(config: GPTConfig, batch: int, tokens: int, element: int) -> int:
    """Bytes of the keys and values of all layers."""
    ### BEGIN SOLUTION
    return batch * tokens * config.layers * (config.qkv_widths[1] + config.qkv_widths[2]) * element
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "account",
    "Write down the block line by line and, beside each line, the storages that it makes. Then cross out those that nobody keeps, and those that you have already.",
    "The output of an addition is kept by the norm that reads it, so the residual stream counts twice a block: its input, and between its halves. A norm's output is kept by the product behind it; gate and up read the same one.",
    "Attention: the whole product qkv (v is a slice of it), rotated q, rotated k, the output, `heads` logarithms a token, and the copy in which the heads stand side by side. The MLP: gate, silu(gate), up, and their product.",
)

# %% nbgrader={"grade": true, "grade_id": "account_test", "locked": true, "points": 20, "schema_version": 3, "solution": false, "task": false}
with check("account", "the bytes of a training step, counted before it runs"):
    tiny = GPTConfig.tiny()
    WHY = {
        "parameters": "4 bytes each; config.parameters_count() knows how many",
        "gradients": "one for each parameter, in the same format",
        "states": "`states` numbers of 4 bytes a parameter",
        "layer": "compare with the table row by row: each storage once, all of it",
        "head": "the norm's input, its normalised values, 1/rms, its output, and the log-softmax; the logits themselves are not kept",
        "peak": "the larger of two moments: all activations with the loss's temporaries but no gradients, or gradients without activations; tokens, targets and rotary tables too",
    }
    check.equal(
        account(tiny, 3, 100, 2),
        Account(460_032, 460_032, 920_064, 1_812_000, 538_800, 6_170_288),
        what="account(tiny, 3, 100, states=2)",
        hint=WHY,
    )
    check.equal(
        account(GPTConfig.tiny(layers=8), 1, 2, 2).peak,
        4 * 1_642_752 + 32 + 8192,
        what="peak of 8 layers and two tokens",
        hint="with so few tokens the gradients outweigh the activations: the update is the worst moment",
    )
    check.equal(
        kv_cache(tiny, 2, 50, 2),
        2 * 50 * 2 * (32 + 32) * 2,
        what="kv_cache(tiny, 2, 50, 2)",
        hint="keys and values of every layer; grouped heads share them",
    )
    check.equal(
        largest_batch(tiny, 100, 2, 6_170_288),
        3,
        what="largest batch in exactly the peak of 3",
        hint="a peak equal to the budget fits",
    )
    check.equal(largest_batch(tiny, 100, 2, 6_170_287), 2, what="largest batch in one byte less")
    check.raises(ValueError, largest_batch, tiny, 100, 2, 1e6, names=("budget", "2982288"))
    check.raises(ValueError, account, tiny, 0, 100, 2, names="batch = 0")
    check.raises(ValueError, account, tiny, 1, 129, 2, names="sequence = 129")
    ### BEGIN HIDDEN TESTS
    from threeloops.models.gpt import GPT

    def kept_by_autograd(config, batch, sequence):
        """What autograd itself packs away in one block, and behind the blocks: storages, each once."""
        torch.manual_seed(0)
        model = GPT(config)
        fixed = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
        packed = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage._cdata not in fixed and tensor.is_floating_point():
                packed[storage._cdata] = storage
            return tensor

        sizes = []
        stream = torch.randn(batch, sequence, config.width, requires_grad=True) * 1
        tokens = torch.zeros(batch, sequence, dtype=torch.long)
        for part in (
            lambda: model.blocks[0](stream, model.rotation(0, sequence)),
            lambda: functional.cross_entropy(model.head(model.norm(stream)).flatten(0, 1), tokens.flatten()),
        ):
            packed.clear()
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                result = part()
            sizes.append(sum(s.nbytes() for s in packed.values() if s.nbytes() > 4))
            del result
        return sizes

    for seed in range(6):
        rng = check.rng(seed)
        heads = int(rng.choice([2, 4, 6]))
        sizes = {
            "vocabulary_size": int(rng.integers(11, 300)),
            "layers": int(rng.integers(1, 9)),
            "heads": heads,
            "kv_heads": int(rng.choice([n for n in range(1, heads + 1) if heads % n == 0])),
            "width": heads * 2 * int(rng.integers(2, 9)),
            "mlp_width": int(rng.integers(7, 200)),
            "max_sequence": 97,
            "tied_embeddings": bool(seed % 2),
        }
        config = GPTConfig(**sizes)
        batch, sequence, states = int(rng.integers(1, 6)), int(rng.integers(3, 97)), seed % 3
        layer, head = kept_by_autograd(config, batch, sequence)
        weights = 4 * config.parameters_count()
        always = weights * (1 + states) + 2 * 8 * batch * sequence + 4 * 97 * config.width // heads
        loss = config.layers * layer + head + 2 * 4 * batch * sequence * config.vocabulary_size
        expected = Account(weights, weights, states * weights, layer, head, always + max(loss, weights))
        label = f"account of {batch} × {sequence} tokens, {heads} heads that share {config.kv_heads} keys"
        check.equal(account(config, batch, sequence, states), expected, what=label, hint=WHY)
        check.equal(
            kv_cache(config, batch, 7, 4),
            8 * batch * 7 * config.layers * config.kv_heads * config.head_dim,
            what="kv_cache",
            hint="keys and values, of kv_heads heads each",
        )
        most = int(rng.integers(1, 400))
        largest = account(config, most, sequence, states).peak
        check.equal(
            largest_batch(config, sequence, states, largest + 3),
            most,
            what=f"largest batch in {largest + 3:,} bytes",
            hint="try, do not divide: the peak is the larger of two lines",
        )
    small = account(tiny, 1, 128, 2).peak
    check.raises(ValueError, largest_batch, tiny, 128, 2, small - 1, names=("budget", str(small)))
    check.raises(ValueError, account, tiny, 1, 0, 0, names="sequence = 0")
    ### END HIDDEN TESTS


# %% [markdown]
# ### Measure it
#
# The prediction first: a layer of the 7B model on a GPU, in BF16. PyTorch's fused norm keeps only x and 1/rms there, and
# its fused attention writes the heads side by side without a copy: beside the MLP's four tensors
# 10·width instead of your 13·width.

# %% tags=["demo"]
layer = library_account(SEVEN, 1, 2048, **MIXED).layer
show.against_prediction(
    "kept_by_a_layer", round(sum(layer.values()) / layer["input"], 1), unit="×", source="model: counted"
)
show.table(
    [[name, f"{size / layer['input']:.2f}", readable_bytes(size / 2048)] for name, size in layer.items()],
    ["one layer keeps", "× its input", "a token"],
)

# %% [markdown]
# The MLP's four tensors, of nearly three widths each, are half of it, and attention's famous score matrix is not in the list at
# all: fused attention never holds it (lab 04).
#
# Now the count against reality. The library's accountant plays a whole step through, allocation by allocation; the
# library's tracker watches the course's GPT take that step. Six configurations, in each of which something else matters:

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.memory import LiveStorage
from threeloops.inner.memory.recompute import Segments
from threeloops.models.gpt import GPT


def watched_step(config, batch, length, optimizer="adamw", k=None):
    """The timeline of a training step of the course's GPT, its second: the optimiser's states exist."""
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
        live.mark("forward")  # what is met before it was there before
        step()
    return live.timeline


SIX = {
    "batch 5": (GPTConfig.tiny(), 5, 64, "adamw", None),
    "length 128": (GPTConfig.tiny(), 2, 128, "adamw", None),
    "6 layers, momentum": (GPTConfig.tiny(layers=6), 2, 64, "momentum", None),
    "one key head, untied, SGD": (GPTConfig.tiny(layers=3, kv_heads=1, tied_embeddings=False), 3, 65, "sgd", None),
    "2 tokens only": (GPTConfig.tiny(layers=4), 1, 2, "adamw", None),
    "recomputed, 2 layers a segment": (GPTConfig.tiny(layers=6), 4, 64, "adamw", 2),
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
# All six differ by less than 200 bytes: a few scalars. With 2 tokens the peak is the update, where PyTorch's loop holds
# three temporaries at once, and the count knows them: beside the two that make a parameter's denominator, the one before
# lives on until the new one is made. A step as a picture, counted on the left and
# tracked on the right; time runs in allocations:

# %% tags=["demo"] jupyter={"source_hidden": true}
config, batch, length = GPTConfig.tiny(layers=4), 2, 128
fig, (left, right) = figure(1, 2, width=12.5, height=3.7, sharey=True)
draw_timeline(left, library_account(config, batch, length).timeline)
draw_timeline(right, watched_step(config, batch, length))
left.set(title="Counted before it runs", xlabel="allocations and frees, in order", ylabel="MiB alive")
right.set(title="Tracked while it ran", xlabel="allocations and frees, in order")
handles, labels = right.get_legend_handles_labels()
right.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0))
show.figure(fig)

# %% [markdown]
# The forward pass climbs, the loss is the summit (dotted), the backward pass descends while gradients grow from below,
# and the update is the plain at the end. The heights are alike; the right picture is wider, because the count leaves out
# temporaries of the forward pass, which come and go far from the peak.
#
# ### Explore
#
# Choose a model, a batch, a length and a policy. Three things worth finding: the model size at which the *states* alone
# fill an H100; the length at which activations outweigh everything else, with and without recomputation; and a case in
# which recomputation saves nothing, because the peak is elsewhere.

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
    k = {"nothing": None, "every layer": 1, "4 layers a segment": 4}[recompute]
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
    recompute=["nothing", "every layer", "4 layers a segment"],
    batch=SelectionSlider(options=[2**n for n in range(6)], value=2, description="batch"),
    length=SelectionSlider(options=[2**n for n in range(7, 16)], value=4096, description="length"),
)

# %% [markdown]
# ## 2 · The tracker
#
# A count is a claim. What would confirm it? `nvidia-smi` shows what the allocator has taken from the driver, not what is
# used. `torch.cuda.max_memory_allocated` is closer, but there is no such counter on a CPU, and it says how much, never
# *whose*. The honest quantity is **live storage**: the bytes behind all tensors that somebody can still reach.
#
# PyTorch has one door through which every operator passes, forward or backward: the **dispatcher**. A
# `TorchDispatchMode` stands in it. This one only prints:


# %% tags=["demo"]
class Printing(TorchDispatchMode):
    """Says which operators pass, and what they return."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        shapes = [tuple(leaf.shape) for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        print(f"{str(function):<34}{shapes}")
        return result


with Printing():
    weight = torch.ones(3, 2, requires_grad=True)
    (torch.ones(4, 3) @ weight).relu().sum().backward()

# %% [markdown]
# `tensor.untyped_storage()` is the memory behind a tensor; `.nbytes()` is its size. Two tensors share a storage exactly
# if its `._cdata` is the same. And `weakref.ref(storage, callback)` calls `callback` when the storage dies, without
# keeping it alive.
#
# ### Exercise 2 (20 points)
#
# `live_bytes(run) -> Live`: calls `run()`, a function without arguments, and watches.
#
# - `peak`: the most bytes of storage alive at once, among storages that operators **made** during the call.
# - `left`: bytes of them still alive after `run()` has returned and its result has been dropped.
# - `storages`: how many different storages were made.
#
# A storage counts once, in its full size, from the operator that returns it to its end, however many tensors share it.
# Operators may return one tensor, or tuples and lists of them (`tree_leaves` finds them all). A storage that existed
# before the call does not count, also where an operator writes into it or returns a view of it. Addresses are used
# again: a storage that is made where a dead one lay is a new one.
#
# Whatever `run` raises goes on to the caller.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_tracker", "locked": true, "schema_version": 3, "solution": false, "task": false}
@dataclass(frozen=True)
class Live:
    """Bytes of live storage while a function ran, and how many storages it made."""

    peak: int
    left: int
    storages: int


# %% nbgrader={"grade": false, "grade_id": "tracker", "locked": false, "schema_version": 3, "solution": true, "task": false}
def live_bytes(run) -> Live:
    """Peak and rest of the storages that operators make while `run()` runs."""
    ### BEGIN SOLUTION
    watching = Watching()
    with watching:
        run()
    return Live(watching.peak, watching.live, watching.storages)


class Watching(TorchDispatchMode):
    """Counts every storage that an operator makes, until it dies."""

    def __init__(self):
        super().__init__()
        self.known, self.live, self.peak, self.storages = {}, 0, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for leaf in tree_leaves((args, kwargs or {})):
            if isinstance(leaf, Tensor):
                self.see(leaf.untyped_storage(), counts=False)
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.see(leaf.untyped_storage(), counts=True)
        return result

    def see(self, storage, counts):
        key = storage._cdata
        if key in self.known:
            return
        size = storage.nbytes() if counts else 0
        self.known[key] = weakref.ref(storage, lambda _: self.end(key, size))
        self.live += size
        self.storages += counts
        self.peak = max(self.peak, self.live)

    def end(self, key, size):
        self.live -= size
        del self.known[key]

    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "tracker",
    "Keep a dictionary from `storage._cdata` to a weak reference, a running sum of live bytes, and the largest value that the sum ever had.",
    "Look at the arguments of an operator before you call it: a storage that you have not met then existed before, and counts nothing. Look at the results afterwards: a storage that you have not met then is new.",
    "The callback of the weak reference subtracts the storage's bytes and removes its entry, so that the same address can be met again. Hold neither the tensor nor the storage in any variable that outlives the operator.",
)

# %% nbgrader={"grade": true, "grade_id": "tracker_test", "locked": true, "points": 20, "schema_version": 3, "solution": false, "task": false}
with check("tracker", "live bytes of storage, from operator to operator"):

    def chain():
        first = torch.zeros(1000)
        second = first + 1
        del first
        return second * 2

    check.equal(
        live_bytes(by_value(chain)),
        Live(8000, 0, 3),
        what="three vectors of 4,000 bytes, two alive at a time",
        hint={
            "peak": "the first vector dies before the third is made: a storage must not be kept alive by whoever counts it; or the weak reference itself was not kept",
            "left": "the result of run() is dropped; if something is left, something still holds a reference, or the weak reference itself was not kept",
            "storages": "one for each operator here",
        },
    )

    def views():
        table = torch.zeros(100, 50)
        return [table.t(), table[3:7], table.view(-1), table.expand(7, 100, 50)]

    check.equal(
        live_bytes(by_value(views)),
        Live(20_000, 0, 1),
        what="a matrix and four views of it",
        hint="views share a storage, which counts once, in its own size; an expanded view has more elements than its storage",
    )

    def again_and_again():
        for _ in range(50):
            torch.zeros(500)

    check.equal(
        live_bytes(by_value(again_and_again)),
        Live(2000, 0, 50),
        what="fifty vectors, one after another",
        hint="each dies before the next is made, and most will lie at the same address",
    )

    def kept_by_a_view():
        corner = torch.zeros(1000).detach()[:1]
        return corner, torch.zeros(500)

    check.equal(
        live_bytes(by_value(kept_by_a_view)),
        Live(6000, 0, 2),
        what="a view that outlives the tensor that it was taken from",
        hint="the storage lives as long as any tensor that shares it: watch the storage, not the tensor",
    )

    def with_gaps():
        return torch.empty_strided((10,), (4,))

    check.equal(
        live_bytes(by_value(with_gaps)),
        Live(37 * 4, 0, 1),
        what="ten numbers with gaps between them",
        hint="the storage holds the gaps too: its own nbytes(), not the tensor's",
    )
    earlier = torch.ones(300)

    def reads_from_outside():
        return earlier[100:200] * 2

    check.equal(
        live_bytes(by_value(reads_from_outside)),
        Live(400, 0, 1),
        what="twice a view of a tensor that existed before",
        hint="a storage first met as an argument existed before: it does not count, and neither do its views",
    )
    ### BEGIN HIDDEN TESTS
    outside = torch.ones(300, 10)

    def from_outside():
        outside.add_(1)
        rows = outside.t()[2:5]
        return rows * 2

    check.equal(
        live_bytes(by_value(from_outside)),
        Live(3 * 300 * 4, 0, 1),
        what="an operation in place and a view of a tensor that existed before, and one new tensor",
        hint="a storage first met as an argument existed before: it does not count, and neither do its views",
    )

    def several_results():
        values, order = torch.zeros(64, 32).sort(dim=1)
        sums = torch._foreach_add([values, values], 1.0)
        return order, sums

    check.equal(
        live_bytes(by_value(several_results)),
        Live(64 * 32 * (4 + 8 + 4 + 4), 0, 5),
        what="operators that return tuples and lists",
        hint="tree_leaves(result) finds every tensor that an operator returns; the sort's input dies with the call",
    )

    kept = []

    def remembers():
        kept.append(torch.zeros(250))
        return torch.zeros(1000)

    check.equal(
        live_bytes(by_value(remembers)),
        Live(5000, 1000, 2),
        what="a tensor that outlives the call",
        hint="left is what is alive after the result has been dropped",
    )

    def fails():
        torch.zeros(10).view(3)

    check.raises(RuntimeError, live_bytes, by_value(fails), names="shape")

    class Polling(TorchDispatchMode):
        """An oracle that asks every storage after every operator whether it is still there."""

        def __init__(self):
            super().__init__()
            self.before, self.made, self.peak = [], [], 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            known = {s._cdata for r, _ in self.before + self.made if (s := r()) is not None}
            for leaf in tree_leaves((args, kwargs)):
                if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in known:
                    self.before.append((weakref.ref(leaf.untyped_storage()), 0))
                    known.add(leaf.untyped_storage()._cdata)
            result = function(*args, **(kwargs or {}))
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in known:
                    self.made.append((weakref.ref(leaf.untyped_storage()), leaf.untyped_storage().nbytes()))
                    known.add(leaf.untyped_storage()._cdata)
            self.peak = max(self.peak, self.live())
            return result

        def live(self):
            return sum(size for reference, size in self.made if reference() is not None)

    def network(depth, width, rows):
        def train():
            torch.manual_seed(0)
            layers = [torch.nn.Linear(width, width) for _ in range(depth)]
            x = torch.randn(rows, width)
            for layer in layers:
                x = torch.tanh(layer(x)) * x
            x.square().mean().backward()
            return [layer.weight.grad for layer in layers]

        return train

    for depth, width, rows in ((1, 8, 3), (3, 16, 65), (6, 32, 17)):
        train = network(depth, width, rows)
        with Polling() as polling:
            train()
        check.equal(
            live_bytes(by_value(train)),
            Live(polling.peak, polling.live(), len(polling.made)),
            what=f"forward and backward pass of {depth} layers",
            hint="backward operators pass the same door; what autograd frees must leave the sum at once",
        )
    ### END HIDDEN TESTS


# %% [markdown]
# ### Whose is it?
#
# The library's tracker is yours with a memory for names: which module was running, which operator, which line of the
# source. In the backward pass no module runs; but every autograd node knows its sequence number, and the tracker noted
# which module was running when that number was given out. So a gradient can be laid at the right door.

# %% tags=["demo"]
seen = watched_step(GPTConfig.tiny(layers=2), 3, 100)
print(seen.report(largest=6))

# %% tags=["demo"] jupyter={"source_hidden": true}
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
# ## Deep dive: post-mortem
#
# The message of an out-of-memory error names the last straw: the allocation that failed. It is rarely the culprit. What
# one wants to know is what *else* was there. With `budget_bytes` the tracker raises when the budget is exceeded, and
# says so:

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
# On a GPU the same question can be put to the allocator: `torch.cuda.memory._record_memory_history()` before, and
# `torch.cuda.memory._dump_snapshot("snapshot.pickle")` after; the page https://docs.pytorch.org/memory_viz draws it. It
# sees workspaces too, and fragmentation. It does not know what is an activation and what is a state. Not measured by the
# course on a GPU yet; on a machine with one the next cell confronts the tracker with the allocator's own maximum.

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
# ## 3 · Forget, and compute again
#
# Activations are the one part of the budget that can be had twice. What the forward pass computed once it can compute
# again: keep the **input** of a layer, forget the rest, and when the backward pass arrives, run the layer once more from
# its input. With b bytes for a layer's input and c for all that it keeps (c includes the input), L layers cost L·c
# without and about L·b with the trick.
#
# It need not be every layer. Keep the input of every **k-th** layer only, and recompute k layers at a time. Then there are
# L/k inputs, and while one segment is in its backward pass everything of its k layers: (L/k)·b + k·c. Larger segments
# mean fewer inputs and a bigger lump.
#
# **Predict.** A model of 24 layers, where a layer keeps 24 times its input: which k is best?

# %% tags=["demo"]
predict("best_segment", "24 layers, c = 24·b: segments of how many layers hold the least?", unit="layers", guess=None)

# %% [markdown]
# The order of the work is a schedule, and a schedule is data: it can be printed, checked, and carried out.
#
# ### Exercise 3 (20 points)
#
# A schedule is **data**: a list of actions, which `execute` below carries out, and refuses with a reason where one is
# impossible. Layers are 0 … L−1. At every moment there is one current value, at first the input of layer 0.
#
# | action | meaning | needs | holds |
# |---|---|---|---|
# | `("keep", i)` | keep the current value | it is the input of layer i | b bytes, until `("backward", i)` |
# | `("forward", i)` | compute layer i and forget what it made on the way | the current value is its input | |
# | `("restore", i)` | make a kept input the current value again | it is kept | |
# | `("record", i)` | compute layer i and hold all that its backward pass needs | the current value is its input | c bytes, until `("backward", i)` |
# | `("backward", i)` | the backward pass of layer i | layer i is recorded; the layers behind it are done, and the last layer's output has been computed | |
#
# `schedule(layers: int, k: int) -> list[tuple[str, int]]`: segments of k layers, each recomputed from its kept input.
# Every layer goes through its backward pass, no layer is computed more than twice, and no more than (L/k)·b + k·c bytes
# are held at any moment.
#
# `peak(layers: int, k: int, b: float, c: float) -> float`: that number.
#
# `best_k(layers: int, b: float, c: float) -> int`: the divisor of `layers` with the least peak; of two alike the
# smaller.
#
# **Errors**: `layers` below 1 raises `ValueError` that contains `layers = ` and the value, from all three functions; a `k`
# that is no divisor of `layers` (0 is none) one that contains `k = ` and the value, from `schedule` and `peak`.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_recompute", "locked": true, "schema_version": 3, "solution": false, "task": false}
class Impossible(ValueError):
    """An action of a schedule that cannot be carried out."""


@dataclass
class Execution:
    """What carrying out a schedule came to: bytes held after every action, and how often each layer was computed."""

    held: list[float]
    computed: list[int]

    @property
    def peak(self) -> float:
        return max(self.held, default=0.0)


def execute(actions, layers: int, b: float, c: float) -> Execution:
    """Carry out a schedule for `layers` layers. Raises Impossible, naming the action, where it makes no sense."""
    at, kept, recorded, done, output = 0, set(), set(), layers, False
    execution = Execution([], [0] * layers)
    for number, (action, layer) in enumerate(actions):
        name = f"action {number}, ({action!r}, {layer})"
        if not 0 <= layer < layers:
            raise Impossible(f"{name}: there are layers 0 … {layers - 1}")
        if action in ("keep", "forward", "record") and at != layer:
            raise Impossible(f"{name}: the current value is the input of layer {at}")
        if action == "keep":
            kept.add(layer)
        elif action == "restore":
            if layer not in kept:
                raise Impossible(f"{name}: the input of layer {layer} is not kept")
            at = layer
        elif action in ("forward", "record"):
            if action == "record":
                recorded.add(layer)
            at += 1
            execution.computed[layer] += 1
            output = output or at == layers
        elif action == "backward":
            if layer != done - 1:
                raise Impossible(f"{name}: the next backward pass is that of layer {done - 1}")
            if layer not in recorded:
                raise Impossible(f"{name}: layer {layer} is not recorded")
            if not output:
                raise Impossible(f"{name}: the last layer's output has not been computed, so there is no loss yet")
            done = layer
            kept.discard(layer)
            recorded.remove(layer)
        else:
            raise Impossible(f"{name}: the actions are keep, forward, restore, record, backward")
        execution.held.append(len(kept) * b + len(recorded) * c)
    if done:
        raise Impossible(f"after the last action layers 0 … {done - 1} have had no backward pass")
    return execution


# %% nbgrader={"grade": false, "grade_id": "recompute", "locked": false, "schema_version": 3, "solution": true, "task": false}
def schedule(layers: int, k: int) -> list[tuple[str, int]]:
    """Actions of a training step that keeps the inputs of segments of k layers and computes the rest again."""
    ### BEGIN SOLUTION
    require(layers, k)
    actions = []
    for layer in range(layers):
        actions += [("keep", layer)] if layer % k == 0 else []
        actions.append(("forward", layer))
    for first in reversed(range(0, layers, k)):
        actions.append(("restore", first))
        actions += [("record", layer) for layer in range(first, first + k)]
        actions += [("backward", layer) for layer in reversed(range(first, first + k))]
    return actions


def require(layers, k):
    if layers < 1:
        raise ValueError(f"layers = {layers}: expected at least 1")
    if k < 1 or layers % k:
        raise ValueError(f"k = {k}: expected a divisor of layers = {layers}")
    ### END SOLUTION


def peak(layers: int, k: int, b: float, c: float) -> float:
    """The most bytes held: the inputs of all segments, and everything of one."""
    ### BEGIN SOLUTION
    require(layers, k)
    return layers // k * b + k * c
    ### END SOLUTION


def best_k(layers: int, b: float, c: float) -> int:
    """The divisor of `layers` with the least peak."""
    ### BEGIN SOLUTION
    require(layers, 1)
    return min((k for k in range(1, layers + 1) if layers % k == 0), key=lambda k: peak(layers, k, b, c))
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "recompute",
    "Two loops. The first goes through all layers once and keeps an input wherever a segment begins. The second goes through the segments from the last to the first.",
    "For each segment, last first: restore its input, record its k layers in order, then their backward passes in reverse order.",
    "best_k: try every divisor. √(L·b/c) tells about where to look, but it is rarely a divisor.",
)

# %% nbgrader={"grade": true, "grade_id": "recompute_test", "locked": true, "points": 20, "schema_version": 3, "solution": false, "task": false}
with check("recompute", "segments of k layers: a schedule, its peak, and the best k"):
    for layers, k in ((4, 2), (6, 1), (6, 6), (12, 3)):
        run = execute(schedule(layers, k), layers, b=1.0, c=17.0)
        check.true(
            run.peak <= layers / k + 17 * k,
            f"schedule({layers}, {k}) holds {run.peak:g} bytes with b = 1, c = 17: expected at most {layers / k + 17 * k:g}; "
            "usually: an input is kept for every layer, or layers are recorded before the segments behind them are done",
        )
        check.true(
            max(run.computed) <= 2,
            f"in schedule({layers}, {k}) a layer is computed {max(run.computed)} times: expected at most twice; usually: "
            "the segment is begun anew for each of its layers",
        )
        check.close(
            peak(layers, k, 1.0, 17.0), layers / k + 17 * k, what=f"peak({layers}, {k}, 1, 17)", hint="(L/k)·b + k·c"
        )
    check.equal(best_k(16, 1.0, 1.0), 4, what="best_k(16, b = 1, c = 1)", hint="16/k + k is least at 4")
    check.equal(
        best_k(14, 1.0, 2.0),
        2,
        what="best_k(14, b = 1, c = 2)",
        hint="a divisor of 14: try them all, √(L·b/c) need not be one",
    )
    check.raises(ValueError, schedule, 12, 5, names="k = 5")
    check.raises(ValueError, peak, 0, 1, 1.0, 1.0, names="layers = 0")
    ### BEGIN HIDDEN TESTS
    for layers in (1, 2, 9, 24, 36, 48):
        for k in [n for n in range(1, layers + 1) if layers % n == 0]:
            b, c = 3.0, float(check.rng(layers * k).integers(3, 70))
            run = execute(schedule(layers, k), layers, b=b, c=c)
            check.true(
                run.peak <= layers // k * b + k * c,
                f"schedule({layers}, {k}) holds {run.peak:g} bytes with b = {b:g}, c = {c:g}: expected at most "
                f"{layers // k * b + k * c:g}",
            )
            check.true(
                max(run.computed) <= 2,
                f"schedule({layers}, {k}) computes a layer {max(run.computed)} times: expected at most twice",
            )
            check.close(
                peak(layers, k, b, c),
                layers // k * b + k * c,
                what=f"peak({layers}, {k}, {b:g}, {c:g})",
                hint="(L/k)·b + k·c",
            )
    for layers in (1, 7, 12, 24, 36, 48, 96, 300, 576):
        for ratio in (0.1, 1.0, 2.0, 17.0, 27.7):
            table = {k: layers / k * 2.0 + k * 2.0 * ratio for k in range(1, layers + 1) if layers % k == 0}
            least = min(table.values())
            check.equal(
                best_k(layers, 2.0, 2.0 * ratio),
                next(k for k in sorted(table) if table[k] == least),
                what=f"best_k({layers}, b = 2, c = {2 * ratio:g})",
                hint="near √(L·b/c), and a divisor: try them all, the smaller of two alike",
            )
    check.raises(ValueError, schedule, 0, 1, names="layers = 0")
    check.raises(ValueError, schedule, 8, 0, names="k = 0")
    check.raises(ValueError, peak, 8, 3, 1.0, 1.0, names="k = 3")
    check.raises(ValueError, best_k, -2, 1.0, 1.0, names="layers = -2")
    ### END HIDDEN TESTS


# %% [markdown]
# ### Measure it
#
# The library's `Segments` does this to real layers, by PyTorch's own checkpointing inside each segment. Twenty-four
# layers of the course's GPT, every divisor of 24, and the tracker's count of activations (some ten seconds, for the tracker
# looks at every operator of nine steps):

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.memory.recompute import MATRIX_PRODUCTS, best_segment, divisors, segment_peak
from threeloops.models.gpt import Block, RotaryPositions

LAYERS = 24
stack_config = GPTConfig.tiny(layers=LAYERS, width=32, mlp_width=96, vocabulary_size=16)
torch.manual_seed(0)
stack = torch.nn.ModuleList(Block(stack_config) for _ in range(LAYERS))
angles = RotaryPositions(stack_config.head_dim, 64, 1e4)(0, 64)


def through(layers, x):
    """Forward and backward through a stack of layers."""
    for layer in layers:
        x = layer(x, angles)
    x.sum().backward()


def activations(layers):
    """The most bytes of activations alive at once."""
    for parameter in stack.parameters():
        parameter.grad = None
    x = torch.randn(4, 64, stack_config.width, requires_grad=True)
    with LiveStorage(stack) as live:
        through(layers, x)
    return live.timeline.peak_of("activation")


kept = library_account(stack_config, 4, 64).layer
b, c = kept["input"], sum(kept.values())
everything = activations(stack)
measured = {k: activations(Segments(stack, k)) for k in progress(divisors(LAYERS), "segment sizes")}
formula = {k: segment_peak(LAYERS, k, b, c) for k in divisors(LAYERS)}
assert all(abs(measured[k] / formula[k] - 1) < 0.05 for k in measured)
assert min(measured, key=measured.get) == best_segment(LAYERS, b, c)

show.against_prediction("best_segment", min(measured, key=measured.get), unit="layers")
fig, (left, right) = figure(1, 2, width=12.5, height=3.8)
at = range(len(measured))
inputs = [LAYERS // k * b / 2**20 for k in measured]
left.bar(at, inputs, color=palette.blue, label="(L/k)·b: inputs of all segments", width=0.62)
left.bar(
    at, [k * c / 2**20 for k in measured], bottom=inputs, color=palette.orange, label="k·c: one segment", width=0.62
)
left.plot(at, [m / 2**20 for m in measured.values()], "D", color=palette.ink, ms=5, label="tracked")
left.axhline(everything / 2**20, color=palette.vermillion, lw=1.5, ls="--")
left.text(0, everything / 2**20 * 1.015, "nothing recomputed", color=palette.vermillion, va="bottom", fontsize=10)
left.set(
    xticks=at,
    xticklabels=list(measured),
    xlabel="layers a segment, k",
    ylabel="MiB of activations",
    title=f"{LAYERS} layers, c = {c / b:.1f}·b",
    ylim=(0, everything / 2**20 * 1.15),
)
left.legend(loc="upper left", bbox_to_anchor=(0.0, 0.9))
depths = [12 * 2**i for i in range(8)]
for ratio, shade in ((1, palette.sky), (c / b, palette.blue)):
    best = [min(segment_peak(n, k, 1, ratio) for k in divisors(n)) for n in depths]
    right.plot(depths, best, "o-", color=shade, label=f"best k, c = {ratio:.3g}·b")
right.plot(depths, [n + c / b for n in depths], "--", color=palette.vermillion, label="every layer (k = 1)")
right.plot(depths, [n * c / b for n in depths], ":", color=palette.ink, label="nothing recomputed")
right.set(
    xscale="log",
    yscale="log",
    xlabel="layers",
    ylabel="activations, in inputs of a layer",
    title="How it grows with depth",
)
right.set_xticks(depths, [f"{n:,}" for n in depths])
right.minorticks_off()
right.legend(loc="upper left")
show.figure(fig)
show.table(
    [
        [
            k,
            f"{formula[k]:,.0f}",
            f"{measured[k]:,}",
            f"{100 * (measured[k] / formula[k] - 1):+.1f}%",
            f"{everything / measured[k]:.1f}×",
        ]
        for k in measured
    ],
    ["k", "(L/k)·b + k·c", "tracked", "difference", "less than without"],
)

# %% [markdown]
# The best k is 1: a second layer in the segment costs another c, and saves only half of the inputs, 12·b. It pays from
# L = 2·c/b layers on. Up to there every layer for itself is best; the √L of the textbooks, 2·√(L·b·c), sets in only past it. With c = b
# (pale line) that is at once. What it costs is almost one more forward pass, a third of a step's arithmetic:

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
for _ in range(8):  # in turns: whatever else this machine does meets all of them
    for name, blocks in VARIANTS.items():
        rounds[name] += benchmark(
            timed_step, lambda made=blocks: (made,), samples=1, warmup=0, flush_cache=False
        ).seconds
LONGER = {  # round by round, without the first, which warms up
    name: float(np.median([took / plain for took, plain in zip(seconds[1:], rounds["nothing"][1:], strict=True)]))
    for name, seconds in rounds.items()
}
factor = LONGER["every layer"]
show.against_prediction("recompute_time", round(factor, 2), unit="×")
forward_share = timed_config.flops_per_token(128) / (3 * timed_config.flops_per_token(128))
print(
    f"by arithmetic alone: {1 + forward_share:.2f}×; measured here, median of {len(rounds['nothing']) - 1} rounds: {factor:.2f}×"
)

# %% [markdown]
# ## Deep dive: selective recomputation
#
# Not all operators are alike. A matrix product is dear to compute, and its result is one tensor; norms, rotations, SiLU
# and products of elements are cheap, and hold more than half of a layer's bytes. So keep the results of the matrix products (and of
# attention) and compute the cheap rest again. PyTorch's `create_selective_checkpoint_contexts` asks a policy, operator by
# operator; `Segments(blocks, 1, MATRIX_PRODUCTS)` has one that is three lines long.

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

# %% [markdown]
# Recomputing every layer does not quite reach 1.33× in matrix products: PyTorch stops as soon as it has what the backward
# pass needs, and so never repeats the last product of a layer; nor are the logits made twice. Selective recomputation
# keeps six tenths of the bytes (it also holds what the output and the down projection return, which nobody needed before)
# and does no matrix product twice. On a GPU, where the cheap operators are
# bound by memory, they are not free either. And the policy is Python and is asked at every operator: at small sizes the
# asking can take longer than the computing that it saves.

# %% [markdown]
# ## 4 · A batch in pieces
#
# Half of a batch needs half of the activations. Gradients are sums over the batch, so take the batch in parts, add up the
# parts' gradients, and update once: **accumulation**. The texts call it mathematically the same. It is, with one trap.
#
# The loss is a *mean* over the tokens that count; padding, prompts and the like carry the target −100 and do not. The mean
# of the parts' means is not the mean of the whole, unless every part counts the same number of tokens.
#
# **Predict.** Three quarters of the tokens of one micro-batch are padding, none of the other. Both means are averaged, as
# `loss / steps` does. How much too heavy is a token of the padded one, compared with a token of the other?

# %% tags=["demo"]
predict("padded_weight", "The weight of a padded part's token, relative to the other's?", unit="×", guess=None)

# %% [markdown]
#
# ### Exercise 4 (20 points)
#
# `accumulated(weights: list[Tensor], tokens: Tensor, targets: Tensor, micro: int) -> tuple[Tensor, list[Tensor]]`
#
# - `tokens` and `targets`: int64 of shape (batch, length). A target of −100 does not count. `weights`: what the model
#   consists of, leaf tensors that require gradients.
# - Returns what the whole batch at once would give: the mean loss over **all targets that count** (a scalar), and its
#   gradient for each weight, in the shapes and the dtype of the weights.
# - `mean_loss(weights, tokens, targets)` from the setup cell is the model and its loss in one: the mean cross-entropy over
#   the targets that count among those it is given. Where no target counts, the mean is 0/0: it returns NaN, and so are its
#   gradients.
# - It takes at most `CAPACITY` sequences at once, and this machine holds the activations of at most twice as many: who keeps
#   every part's graph to the end meets `OutOfMemory` too.
# - Give it `micro` sequences at a time, in order; the last time what is left.
#
# **Errors**, `ValueError`: `micro` below 1, containing `micro = ` and the value; no target that counts in the whole batch,
# containing `targets`; shapes that differ, containing `targets`.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_accumulate", "locked": true, "schema_version": 3, "solution": false, "task": false}
from torch.multiprocessing.reductions import StorageWeakRef

CAPACITY = 4

ALIVE = []  # activations of earlier calls, as references that keep nothing alive, and of how many sequences


class OutOfMemory(RuntimeError):
    """More sequences than fit."""


def mean_loss(weights: list[Tensor], tokens: Tensor, targets: Tensor) -> Tensor:
    """A small model that guesses the next token from the last three, and its mean cross-entropy."""
    if len(tokens) > CAPACITY:
        raise OutOfMemory(f"{len(tokens)} sequences at once: at most {CAPACITY} fit")
    ALIVE[:] = [(reference, count) for reference, count in ALIVE if not reference.expired()]
    if (held := sum(count for _, count in ALIVE) + len(tokens)) > 2 * CAPACITY:
        raise OutOfMemory(f"the activations of {held} sequences are alive: at most {2 * CAPACITY} fit")
    table, mix, head = weights
    x = functional.embedding(tokens, table)
    before = functional.pad(x, (0, 0, 2, 0))
    hidden = torch.tanh(torch.cat([before[:, :-2], before[:, 1:-1], x], dim=-1) @ mix)
    ALIVE.append((StorageWeakRef(hidden.untyped_storage()), len(tokens)))
    return functional.cross_entropy((hidden @ head).flatten(0, 1), targets.flatten(), ignore_index=-100)


def a_batch(seed: int, batch: int, length: int, ignored: float = 0.3):
    """Weights in float64, tokens, and targets of which a share does not count."""
    generator = torch.Generator().manual_seed(seed)
    weights = [
        torch.randn(shape, generator=generator, dtype=torch.float64) / 3 for shape in ((29, 8), (24, 16), (16, 29))
    ]
    tokens, targets = (torch.randint(29, (batch, length), generator=generator) for _ in range(2))
    targets[torch.rand(batch, length, generator=generator) < ignored] = -100
    return [weight.requires_grad_() for weight in weights], tokens, targets


# %% nbgrader={"grade": false, "grade_id": "accumulate", "locked": false, "schema_version": 3, "solution": true, "task": false}
def accumulated(weights: list[Tensor], tokens: Tensor, targets: Tensor, micro: int) -> tuple[Tensor, list[Tensor]]:
    """Mean loss of a batch and its gradients, `micro` sequences at a time."""
    ### BEGIN SOLUTION
    if micro < 1:
        raise ValueError(f"micro = {micro}: expected at least 1 sequence at a time")
    if tokens.shape != targets.shape:
        raise ValueError(f"targets has shape {tuple(targets.shape)}: expected {tuple(tokens.shape)}, that of tokens")
    total = int((targets != -100).sum())
    if not total:
        raise ValueError("targets: all are -100, so there is no mean to take")
    loss = torch.zeros((), dtype=weights[0].dtype)
    gradients = [torch.zeros_like(weight) for weight in weights]
    for first in range(0, len(tokens), micro):
        part = targets[first : first + micro]
        counted = int((part != -100).sum())
        if not counted:
            continue
        share = mean_loss(weights, tokens[first : first + micro], part) * (counted / total)
        for gradient, more in zip(gradients, torch.autograd.grad(share, weights), strict=True):
            gradient += more
        loss += share.detach()
    return loss, gradients
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "accumulate",
    "The mean over all is not the mean of the means, unless all parts count the same number of targets. What weight must a part's mean have?",
    "A part's mean times its number of counted targets is its sum; the sums, added up, divided by the number of all counted targets, are the mean.",
    "`torch.autograd.grad(share, weights)` gives gradients and touches no `.grad`. A part in which nothing counts must be left out: NaN · 0 is NaN.",
)

# %% nbgrader={"grade": true, "grade_id": "accumulate_test", "locked": true, "points": 20, "schema_version": 3, "solution": false, "task": false}
with check("accumulate", "gradients of parts, added up to those of the whole"):

    def at_once(weights, tokens, targets):
        """The whole batch, one sequence at a time, by sums: no mean is ever taken before the end."""
        copies = [weight.detach().clone().requires_grad_() for weight in weights]
        counted, total, sums = (targets != -100).sum(), 0.0, [torch.zeros_like(weight) for weight in weights]
        for row, goal in zip(tokens, targets, strict=True):
            if (goal != -100).any():
                here = mean_loss(copies, row[None], goal[None]) * (goal != -100).sum()
                sums = [a + b for a, b in zip(sums, torch.autograd.grad(here, copies), strict=True)]
                total += here.detach()
        return total / counted, [each.detach() / counted for each in sums]

    for batch, micro, ignored, empty in (
        (8, 4, 0.0, 0),
        (6, 2, 0.3, 0),
        (7, 3, 0.3, 0),
        (6, 2, 0.3, 2),
        (16, 4, 0.3, 0),
    ):
        weights, tokens, targets = a_batch(batch, batch, 11, ignored)
        targets[:empty] = -100
        loss, gradients = accumulated(weights, tokens, targets, micro)
        expected_loss, expected = at_once(weights, tokens, targets)
        what = f"{batch} sequences, {micro} at a time, {ignored:.0%} of the targets ignored"
        if empty:
            what += f", and all of the first {empty} sequences"
        check.dtype(gradients[0], weights[0].dtype, what=f"gradients of {what}")
        check.close(
            loss,
            expected_loss,
            rtol=1e-12,
            what=f"loss of {what}",
            hint="weigh each part's mean by the targets that count in it, and leave out a part in which none does (its mean is NaN); or the last, shorter part is missing",
        )
        check.close(
            list(gradients),
            expected,
            rtol=1e-10,
            atol=1e-14,
            what=f"gradients of {what}",
            hint="each part's mean must be weighed by its share of the counted targets, not by one over the number of parts; or the last, shorter part is missing",
        )
    check.raises(ValueError, accumulated, weights, tokens, targets, 0, names="micro = 0")
    ### BEGIN HIDDEN TESTS
    for seed in range(12):
        rng = check.rng(seed)
        batch, micro = int(rng.integers(1, 14)), int(rng.integers(1, CAPACITY + 1))
        weights, tokens, targets = a_batch(100 + seed, batch, int(rng.integers(1, 20)), float(rng.uniform(0, 0.9)))
        targets[int(rng.integers(batch))] = -100
        if seed % 3 == 0:
            targets[:micro] = -100
        if not (targets != -100).any():
            targets[-1, 0] = 5
        loss, gradients = accumulated(weights, tokens, targets, micro)
        expected_loss, expected = at_once(weights, tokens, targets)
        what = f"batch {seed}: {batch} sequences, {micro} at a time, some without a target that counts"
        check.close(
            loss,
            expected_loss,
            rtol=1e-12,
            what=f"loss of {what}",
            hint="a part in which nothing counts has the mean NaN: leave it out",
        )
        check.close(
            list(gradients),
            expected,
            rtol=1e-10,
            atol=1e-14,
            what=f"gradients of {what}",
            hint="a part in which nothing counts has NaN gradients: leave it out; a shorter last part has a smaller share",
        )
    weights, tokens, targets = a_batch(7, 5, 9)
    single = [weight.detach().float().requires_grad_() for weight in weights]
    _, gradients = accumulated(single, tokens, targets, 2)
    check.dtype(gradients[0], torch.float32, what="gradient of a float32 weight")
    check.raises(ValueError, accumulated, weights, tokens, torch.full_like(targets, -100), 2, names="targets")
    check.raises(ValueError, accumulated, weights, tokens, targets[:, 1:], 2, names="targets")
    check.raises(OutOfMemory, accumulated, weights, tokens, targets, CAPACITY + 1, names="at most")
    ### END HIDDEN TESTS


# %% [markdown]
# ### Measure it
#
# Two micro-batches of four sequences; in the first, three quarters of the targets do not count. The gradient of
# `loss / steps`, beside that of the whole batch:

# %% tags=["demo"]
weights, tokens, targets = a_batch(0, 8, 64, ignored=0.0)
targets[:4, 16:] = -100
counts = [(targets[:4] != -100).sum().item(), (targets[4:] != -100).sum().item()]
show.against_prediction("padded_weight", counts[1] / counts[0], unit="×", source="model: counted")


def gradient_of(parts):
    """Gradients of a weighted sum of the losses of parts, [(rows, weight)]."""
    shares = [torch.autograd.grad(mean_loss(weights, tokens[r], targets[r]) * weight, weights) for r, weight in parts]
    return torch.cat([sum(each).reshape(-1) for each in zip(*shares, strict=True)])


first, second = slice(0, 4), slice(4, 8)
whole = gradient_of([(first, counts[0] / sum(counts)), (second, counts[1] / sum(counts))])
sequences = [(slice(i, i + 1), (targets[i] != -100).sum().item() / sum(counts)) for i in range(8)]
averaged = gradient_of([(first, 0.5), (second, 0.5)])
rounding = float((gradient_of(sequences) - whole).norm() / whole.norm())
error = float((averaged - whole).norm() / whole.norm())
show.table(
    [
        ["weighed by counted targets, 8 parts", f"{rounding:.1e}"],
        ["weighed equally, `loss / steps`", f"{error:.1e}"],
    ],
    ["two ways to add up", "distance from the whole batch's gradient, relative"],
)
assert rounding < 1e-14 and error > 1e-2

# %% [markdown]
# The first is rounding in float64, the second is another loss function. Now memory, and the exception. Accumulation saves
# activations, but the gradients must stay from the first part to the last, and so the peak of every later part has them
# on top:

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
left.set(title="Four micro-batches of two sequences", xlabel="allocations and frees, in order", ylabel="MiB alive")
handles, labels = left.get_legend_handles_labels()
draw_bars(right, {f"{parts} part{'s' * (parts > 1)}": line.by("kind") for parts, line in IN_PARTS.items()}, unit=2**20)
right.set(title="What the peak is made of", xlabel="MiB")
right.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
show.figure(fig)

# %% [markdown]
# The exception is everything that looks at the batch *as a whole*. Batch-norm subtracts the mean of the batch it sees; of
# a part it sees another mean. No weighing of parts repairs that:

# %% tags=["demo"]
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
show.table(
    [[name, f"{value:.1e}"] for name, value in distance.items()], ["network with", "distance of accumulated gradients"]
)
assert distance["layer-norm"] < 1e-14 < 1e-3 < distance["batch-norm"]

# %% [markdown]
# ## 5 · States that live elsewhere
#
# Once activations are recomputed, the largest part of the first picture is moments and masters. They are used once a
# step, for a moment, and in any order: they need not live beside the parameters. Host memory is large and cheap, a disk larger and cheaper; the price is that every byte
# makes the journey twice a step, there and back.
#
# The journey can overlap with the work. With two **buffers** the next chunk of states is on its way while this one is
# updated, and the last one is on its way back. Then a step takes about the longer of the two, not their sum, if the link
# and the arithmetic do not draw on the same resource.
#
# **Predict.** AdamW's two moments of 6.7 billion parameters, in FP32, on the other side of PCIe 5.0 (63 GB/s each way, but
# one direction at a time): how many seconds does the journey take, every step?

# %% tags=["demo"]
predict(
    "journey", "Moments of 6.7 billion parameters, there and back at 63 GB/s: seconds a step?", unit="s", guess=None
)

# %% [markdown]
#
# ### Exercise 5 (20 points)
#
# `adamw_from_files(folder: str, parameter: Tensor, gradient: Tensor, step: int, chunk: int, options: AdamW) -> Tensor`
#
# One AdamW step whose moments live in two memory-mapped files, `exp_avg.bin` and `exp_avg_sq.bin` in `folder`: raw
# float32, an element for each of the parameter's, in its flat order.
#
# - `step` counts from 1. At step 1 the folder (if it is missing) and the files are made, full of zeros; what is left
#   there from an earlier run is overwritten. Later steps find the moments of the step before and leave their own.
# - Returns the updated parameter, a new tensor; `parameter` and `gradient` (float32, any shape, contiguous) stay as they
#   are. Work on `chunk` elements at a time; the last chunk may be shorter. (The check cannot see that: the bits are the same
#   for any chunk. What it saves is memory.)
# - The result, and the moments, are those of `torch.optim.AdamW(foreach=False)` **to the last bit**. For that the same
#   operations must happen in the same order, on float32 tensors `p`, `g`, `m`, `v`, with Python numbers for the rest
#   (`t` is the step):
#
# ```python
# p.mul_(1 - lr * weight_decay)
# m.lerp_(g, 1 - beta1)
# v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
# denominator = (v.sqrt() / (1 - beta2**t) ** 0.5).add_(eps)
# p.addcdiv_(m, denominator, value=-lr / (1 - beta1**t))
# ```
#
# **Errors**: a parameter or gradient that is not float32, `TypeError` that contains its dtype; at step 2 or later a missing file,
# `FileNotFoundError` with its name in the message; a file of the wrong size, `ValueError` with the name of the file
# and the number of bytes that it has; `step` or `chunk` below 1, `ValueError` with the name and the value, as `chunk = 0`.
#
# `step_seconds(fetch: list[float], update: list[float], write: list[float], buffers: int) -> float`
#
# How long a step takes in which chunk i needs `fetch[i]`, `update[i]` and `write[i]` seconds. One **channel** carries all
# fetches and writes, one after another, in the order in which they are queued; updates run beside it.
#
# - At first the channel is given the fetches of the first `buffers` chunks.
# - Update i begins when chunk i has arrived and update i − 1 is done.
# - When update i is done, its write is queued, and behind it the fetch of chunk i + `buffers`, into the same buffer.
# - The step is over when the last write is.
#
# Lists of different lengths, or `buffers` below 1, raise `ValueError` (the latter with `buffers = ` and the value). No
# chunks take no time.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_offload", "locked": true, "schema_version": 3, "solution": false, "task": false}
@dataclass(frozen=True)
class AdamW:
    """The numbers that AdamW wants."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 1e-2


# %% nbgrader={"grade": false, "grade_id": "offload", "locked": false, "schema_version": 3, "solution": true, "task": false}
def adamw_from_files(folder: str, parameter: Tensor, gradient: Tensor, step: int, chunk: int, options: AdamW) -> Tensor:
    """The parameter after one AdamW step whose moments lie in `folder`."""
    ### BEGIN SOLUTION
    for name, value in (("step", step), ("chunk", chunk)):
        if value < 1:
            raise ValueError(f"{name} = {value}: expected at least 1")
    for name, tensor in (("parameter", parameter), ("gradient", gradient)):
        if tensor.dtype != torch.float32:
            raise TypeError(f"{name} has dtype {tensor.dtype}: expected torch.float32")
    elements = parameter.numel()
    moments = [mapped(Path(folder) / f"{name}.bin", elements, new=step == 1) for name in ("exp_avg", "exp_avg_sq")]
    result = parameter.detach().clone()
    for first in range(0, elements, chunk):
        here = slice(first, first + chunk)
        p, g = result.view(-1)[here], gradient.detach().reshape(-1)[here]
        m, v = (torch.from_numpy(np.array(moment[here])) for moment in moments)
        p.mul_(1 - options.lr * options.weight_decay)
        m.lerp_(g, 1 - options.beta1)
        v.mul_(options.beta2).addcmul_(g, g, value=1 - options.beta2)
        denominator = (v.sqrt() / (1 - options.beta2**step) ** 0.5).add_(options.eps)
        p.addcdiv_(m, denominator, value=-options.lr / (1 - options.beta1**step))
        for moment, changed in zip(moments, (m, v), strict=True):
            moment[here] = changed.numpy()
    for moment in moments:
        moment.flush()
    return result


def mapped(path, elements, new):
    if new:
        path.parent.mkdir(parents=True, exist_ok=True)
        return np.memmap(path, np.float32, "w+", shape=(elements,))
    if not path.exists():
        raise FileNotFoundError(f"{path.name} is missing: expected the moments of the step before")
    if path.stat().st_size != 4 * elements:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes: expected {4 * elements}")
    return np.memmap(path, np.float32, "r+", shape=(elements,))
    ### END SOLUTION


def step_seconds(fetch: list[float], update: list[float], write: list[float], buffers: int) -> float:
    """Seconds of a step that fetches, updates and writes chunk after chunk through `buffers` buffers."""
    ### BEGIN SOLUTION
    if not len(fetch) == len(update) == len(write):
        raise ValueError(
            f"{len(fetch)} fetches, {len(update)} updates and {len(write)} writes: expected as many of each"
        )
    if buffers < 1:
        raise ValueError(f"buffers = {buffers}: expected at least 1")
    channel, done, arrived = 0.0, 0.0, []
    for seconds in fetch[:buffers]:
        channel += seconds
        arrived.append(channel)
    for i in range(len(fetch)):
        done = max(done, arrived[i]) + update[i]
        channel = max(channel, done) + write[i]
        if i + buffers < len(fetch):
            channel += fetch[i + buffers]
            arrived.append(channel)
    return max(channel, done)
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "offload",
    "np.memmap(path, np.float32, 'w+', shape=(n,)) makes a file of zeros, 'r+' opens one that is there. torch.from_numpy shares memory with an array; a slice of a memmap can be copied out, updated, and assigned back.",
    "The flat view of a contiguous tensor is `tensor.view(-1)`; a slice of it is a view, so an operation in place changes the tensor. Clone the parameter once, at the beginning.",
    "step_seconds: keep two clocks, when the channel is free and when the last update is done, and a list of when each chunk has arrived. The write of chunk i begins at the later of the two clocks.",
)

# %% nbgrader={"grade": true, "grade_id": "offload_test", "locked": true, "points": 20, "schema_version": 3, "solution": false, "task": false}
with check("offload", "AdamW with its moments in files, and how long a step takes"):

    def confront(shape, chunk, options, steps, seed):
        """Both optimisers side by side: ours from files, PyTorch's with everything in memory."""
        generator = torch.Generator().manual_seed(seed)
        ours = torch.randn(shape, generator=generator)
        theirs = ours.clone().requires_grad_()
        resident = torch.optim.AdamW(
            [theirs],
            lr=options.lr,
            betas=(options.beta1, options.beta2),
            eps=options.eps,
            weight_decay=options.weight_decay,
            foreach=False,
        )
        with tempfile.TemporaryDirectory() as folder:
            for step in range(1, steps + 1):
                gradient = torch.randn(shape, generator=generator) * 10.0 ** (step % 4 - 2)
                theirs.grad = gradient.clone()
                resident.step()
                ours = adamw_from_files(f"{folder}/states", ours, gradient, step, chunk, options)
                check.shape(ours, tuple(shape), what=f"parameter after step {step}")
                check.equal(
                    ours,
                    theirs.detach(),
                    what=f"parameter of shape {tuple(shape)} after step {step}, {chunk} elements at a time",
                    hint="at step 1: the order of the operations, or the corrections 1 − beta**step; later: the moments of the step before must be in the files; only the last elements: the last chunk may be shorter",
                )

    confront((6, 5), 8, AdamW(), 3, seed=0)
    check.close(
        step_seconds([1, 1, 1], [2, 2, 2], [1, 1, 1], 1),
        12.0,
        unit="s",
        what="three chunks, one buffer",
        hint="with one buffer nothing overlaps: the sum of everything",
    )
    check.close(
        step_seconds([1, 1, 1], [2, 2, 2], [1, 1, 1], 2),
        8.0,
        unit="s",
        what="three chunks, two buffers",
        hint="the first fetch and the last write are exposed, the updates run one after another",
    )
    with tempfile.TemporaryDirectory() as folder:
        check.raises(
            FileNotFoundError,
            adamw_from_files,
            f"{folder}/new",
            torch.ones(3),
            torch.ones(3),
            2,
            3,
            AdamW(),
            names="exp_avg",
        )
        double = torch.ones(3).double()
        check.raises(TypeError, adamw_from_files, folder, double, torch.ones(3), 1, 3, AdamW(), names="float64")
        weight = torch.linspace(-1, 1, 10)
        adamw_from_files(folder, inout(weight), torch.ones(10), 1, 4, AdamW())
        check.equal(weight, torch.linspace(-1, 1, 10), what="the parameter that was passed", hint="update a copy")
    ### BEGIN HIDDEN TESTS
    confront((7, 11, 3), 100, AdamW(lr=0.02, beta1=0.8, beta2=0.95, eps=1e-5, weight_decay=0.2), 5, seed=1)
    confront((129,), 1000, AdamW(weight_decay=0.0), 4, seed=2)
    confront((33, 4), 1, AdamW(lr=0.1), 2, seed=3)
    with tempfile.TemporaryDirectory() as folder:
        weight, gradient = torch.linspace(-1, 1, 10), torch.linspace(1, -2, 10)
        first = adamw_from_files(folder, weight, gradient, 1, 4, AdamW())
        adamw_from_files(folder, first, gradient, 2, 4, AdamW())
        again = adamw_from_files(folder, inout(weight), gradient, 1, 4, AdamW())
        check.equal(
            again,
            first,
            what="step 1 in a folder that holds an older run",
            hint="step 1 begins with zeros, whatever is there",
        )
        check.equal(weight, torch.linspace(-1, 1, 10), what="the parameter that was passed", hint="update a copy")
        check.raises(
            ValueError, adamw_from_files, folder, torch.ones(12), torch.ones(12), 2, 4, AdamW(), names=("exp_avg", "40")
        )
        check.raises(ValueError, adamw_from_files, folder, weight, gradient, 1, 0, AdamW(), names="chunk = 0")
        check.raises(ValueError, adamw_from_files, folder, weight, gradient, 0, 4, AdamW(), names="step = 0")
        half = torch.ones(3).half()
        check.raises(TypeError, adamw_from_files, folder, torch.ones(3), half, 1, 3, AdamW(), names="float16")

    def simulate(fetch, update, write, buffers):
        """An oracle that carries a queue and advances from event to event."""
        count, now, queue, transfers_end, updates_end = len(fetch), 0.0, [], 0.0, 0.0
        queue += [("fetch", i) for i in range(min(buffers, count))]
        here, busy_with, computing, next_update, written = set(), None, None, 0, 0
        while written < count:
            if busy_with is None and queue:
                busy_with = queue.pop(0)
                transfers_end = now + (fetch if busy_with[0] == "fetch" else write)[busy_with[1]]
            if computing is None and next_update in here:
                computing = next_update
                updates_end = now + update[computing]
            now = min(
                end
                for end, active in ((transfers_end, busy_with is not None), (updates_end, computing is not None))
                if active
            )
            if computing is not None and updates_end == now:
                queue.append(("write", computing))
                if computing + buffers < count:
                    queue.append(("fetch", computing + buffers))
                next_update, computing = computing + 1, None
            if busy_with is not None and transfers_end == now:
                if busy_with[0] == "fetch":
                    here.add(busy_with[1])
                else:
                    written += 1
                busy_with = None
        return now

    for seed in range(40):
        rng = check.rng(seed)
        count, buffers = int(rng.integers(1, 10)), int(rng.integers(1, 5))
        times = [[float(v) for v in rng.uniform(0.1, 5.0, count)] for _ in range(3)]
        check.close(
            step_seconds(*times, buffers),
            simulate(*times, buffers),
            unit="s",
            what=f"{count} irregular chunks through {buffers} buffers",
            hint="neither the sum nor the larger of the two: follow both clocks, and let no fetch begin before its buffer has been written back",
        )
    check.close(step_seconds([], [], [], 2), 0.0, unit="s", what="no chunks")
    check.raises(ValueError, step_seconds, [1.0], [1.0, 2.0], [1.0], 2)
    check.raises(ValueError, step_seconds, [1.0], [1.0], [1.0], 0, names="buffers = 0")
    ### END HIDDEN TESTS


# %% [markdown]
# ### Measure it

# %% tags=["demo"]
journey = 2 * 2 * 4 * SEVEN.parameters_count() / h100.host_link_bandwidth
step_flops = 3 * SEVEN.flops_per_token(2048) * 8 * 2048
work = step_flops / (0.4 * h100.rate("bf16"))
show.against_prediction("journey", round(journey, 2), unit="s", source="model: bytes over bandwidth")
print(f"with the FP32 masters, as in the first picture's last bar: {1.5 * journey:.2f} s")
print(f"forward and backward pass of 8 × 2,048 tokens at 40% of the peak: {work:.2f} s")

# %% [markdown]
# The moments' journey is as long as a step of sixteen thousand tokens. Whoever accumulates four micro-batches of that size pays a
# quarter more a step; with one sequence a step, nine tenths of the time would be the link's.
#
# Now for real, with the library's `OffloadedAdamW`. A CPU has no PCIe between its memory and itself, so the copies run
# through a channel that is as slow as we say: a chunk takes as long each way as its update. First measure what the
# prediction needs, then predict, then run. The resident optimiser takes the same four steps, after which the parameters
# must be equal to the last bit.

# %% tags=["demo"] jupyter={"source_hidden": true}
import time

from threeloops.inner.memory.offload import FileStore, OffloadedAdamW, Rates, ThreadChannel
from threeloops.inner.memory.offload import step_seconds as predicted_seconds

ELEMENTS, CHUNK = 1 << 23, 1 << 20
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
update_rate = ONE_CHUNK * CHUNKS / seconds_of(in_chunks, 5)
LINK = update_rate  # bytes a second
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
        took = seconds_of(offloaded, 4)
        seconds_of(reference, 4)
        assert torch.equal(weight, resident), "the same bits as the resident optimiser"
        foretold = predicted_seconds([ONE_CHUNK] * CHUNKS, rates, buffers=buffers)
        rows.append([buffers, f"{foretold * 1e3:.0f}", f"{took * 1e3:.0f}", f"{100 * (took / foretold - 1):+.0f}%"])
        offloaded.close()
show.table(rows, ["buffers", "predicted, ms", "measured, ms", "difference"])

# %% [markdown]
# With one buffer a step is the sum of everything. The second buffer hides the updates behind the link, and a third finds
# nothing left to hide. The recurrence does not know that copies and updates share this machine's memory; the difference
# tells how much that matters.
#
# A second buffer pays most where update and journey take equally long. The picture is drawn from the same
# recurrence as your `step_seconds`, for eight chunks whose update takes as long as both ways together:


# %% tags=["demo"] jupyter={"source_hidden": true}
def lanes(fetch, update, write, buffers):
    """(lane, chunk, begin, duration) of every transfer and update."""
    channel, done, arrived, drawn = 0.0, 0.0, [], []
    for i, seconds in enumerate(fetch[:buffers]):
        drawn.append(("fetch", i, channel, seconds))
        channel += seconds
        arrived.append(channel)
    for i in range(len(fetch)):
        begin = max(done, arrived[i])
        drawn.append(("update", i, begin, update[i]))
        done = begin + update[i]
        channel = max(channel, done)
        drawn.append(("write", i, channel, write[i]))
        channel += write[i]
        if i + buffers < len(fetch):
            drawn.append(("fetch", i + buffers, channel, fetch[i + buffers]))
            channel += fetch[i + buffers]
            arrived.append(channel)
    return drawn


fig, panels = figure(3, 1, width=11, height=4.6, sharex=True)
shades = {"fetch": palette.sky, "update": palette.orange, "write": palette.blue}
for axes, buffers in zip(panels, (1, 2, 3), strict=True):
    drawn = lanes([1.0] * 8, [2.0] * 8, [1.0] * 8, buffers)
    for what, chunk, begin, duration in drawn:
        axes.barh(what == "update", duration, left=begin, color=shades[what], edgecolor="white", height=0.8)
        ink = "white" if what == "write" else palette.ink
        axes.text(begin + duration / 2, what == "update", chunk, ha="center", va="center", fontsize=8, color=ink)
    end = max(begin + duration for _, _, begin, duration in drawn)
    axes.set(yticks=[0, 1], yticklabels=["link", "update"], xlim=(0, 33))
    axes.set_title(f"{buffers} buffer{'s' * (buffers > 1)}: {end:.0f} units of time", fontsize=11)
    axes.grid(axis="y", visible=False)
panels[-1].set_xlabel("time")
lane = [panels[0].barh(0, 0, color=shade, label=what) for what, shade in shades.items()]
panels[0].legend(handles=lane, loc="upper left", bbox_to_anchor=(1.0, 1.0))
show.figure(fig)

# %% [markdown]
# On a GPU, `OffloadedAdamW` copies on a stream of its own from page-locked memory, beside the update on the default
# stream. Not measured by the course on a GPU yet.
#
# ## What the texts say, and what is so
#
# Eight claims and a sample program, each settled by a number.

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
    ["format and optimiser", "bytes a parameter, gradients included"],
)
with_gradients = by_format["FP32, Adam"].per_parameter
audit(
    "budg-1",
    with_gradients,
    "bytes per parameter",
    "model",
    "corrected",
    how=f"FP32 weights and two moments are 12 (D: without gradients), with gradients 16, and BF16 with FP32 masters comes to {by_format['BF16 with FP32 masters, Adam'].per_parameter:.0f} as well (E). A checkpoint needs no gradients: 12 × 7 billion = 84 GB; 56 GB is 8 bytes per parameter: FP32 weights and one number more, where Adam has two",
)
audit(
    "budg-2",
    16 * 13,
    "GB for 13 billion parameters",
    "model",
    "corrected",
    how=f"16 bytes × 7 and × 13 billion are 112 and 208 GB, as claimed. But {-(-16 * 13 // 80)} GPUs of 80 GB hold them only if the states are sharded over the GPUs: plain data parallelism keeps all 208 GB on each",
)
reduction = everything / measured[1]
bf16_ratio = sum(layer.values()) / layer["input"]
audit(
    "budg-3",
    round(reduction, 1),
    f"times less activations ({LAYERS} layers)",
    "CPU",
    "corrected",
    how=f"every layer recomputed holds L·b + c: linear in L, not √L. √L is segments of √L layers, and these hold more until L = (c/b)² = {(c / b) ** 2:.0f} in this stack, {bf16_ratio**2:.0f} in the 7B model of the first picture. The tracked peaks agree with (L/k)·b + k·c within 5% for every k. What is kept are the inputs at the boundaries; what is discarded lies between them",
)
audit(
    "budg-4",
    round(factor, 2),
    "× the time of a step",
    "CPU",
    "holds" if 1.2 <= factor <= 1.45 else "corrected",
    how=f"median of {len(rounds['nothing']) - 1} rounds, on this machine; one more forward pass is {1 + forward_share:.2f}×; PyTorch stops early, so in matrix products it is {costs['every layer'][1] / plain_flops:.2f}×: budg-3's 20–30% of compute holds, the time here is {factor:.2f}×",
)
audit(
    "budg-5",
    float(f"{rounding:.1e}"),
    "relative distance of the gradients",
    "CPU",
    "corrected",
    how=f"equal to float64 rounding if parts are weighed by their counted targets ({error:.0%} off if they are averaged); gradients must be held all the time ({readable_bytes(IN_PARTS[4].by('kind').get('gradient', 0))} at the peak of four parts, {readable_bytes(IN_PARTS[1].by('kind').get('gradient', 0))} at that of one); with batch-norm the accumulated gradient is {distance['batch-norm']:.0%} off",
)

# %% [markdown]
# ### Are activations the largest part? (budg-6)
#
# It depends on how many tokens there are. Activations grow with batch × length, the rest does not; so there is a number of
# tokens at which they meet.

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
# Recomputation hardly moves the smallest model: more than half of its activations are the logits of 50,304 words, and
# those lie behind the layers.
#
# ### The list of a layer's activations (budg-7)
#
# The list in the texts is that of Korthikanti et al. 2022 for a layer of GPT-2's kind (layer-norm, GELU, dropout, scores in
# memory): 34·s·b·h + 5·a·s²·b bytes in 16 bits, with s tokens, a batch of b (not the bytes b of exercise 3), width h and a
# heads. Here is that layer, in BF16, and what autograd packs away for it:

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
# ### `checkpoint_sequential(…, chunks=4)` (budg-8), and a sample program (code-2)

# %% tags=["demo"] jupyter={"source_hidden": true}
from torch.utils.checkpoint import checkpoint_sequential


class WithAngles(torch.nn.Module):
    """A block that finds its rotary angles by itself, as `Sequential` wants it."""

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
    x = torch.randn(4, 64, stack_config.width, requires_grad=True)
    with LiveStorage(sequential) as live:
        run(x).sum().backward()
    weights_held = sum(parameter.nbytes for parameter in stack.parameters())
    return live.timeline.peak_of("activation"), live.timeline.peak_bytes - weights_held


without = held(sequential)
chunked = held(lambda x: checkpoint_sequential(sequential, 4, x, use_reentrant=False))
audit(
    "budg-8",
    round(without[1] / chunked[1], 2),
    "times less, of all that is alive beside the weights",
    "CPU",
    "corrected",
    how=f"of activations alone {without[0] / chunked[0]:.2f} times less at this depth ({LAYERS} layers: {readable_bytes(without[0])} → {readable_bytes(chunked[0])}, tracked). Four segments hold 4·b + {LAYERS // 4}·c; `chunks` of {LAYERS} would hold {reduction:.1f} times less",
)


def sample_program(model, batch):
    """The structure of the texts' sample: its three faults, one after another, as what Python says about them."""
    faults = []
    try:  # a module that is no sequence of functions is handed to checkpoint_sequential
        checkpoint_sequential(model, 4, batch, use_reentrant=False)
    except (TypeError, ValueError, AttributeError, NotImplementedError) as reason:
        faults.append(f"{type(reason).__name__}: {reason}")
    try:
        scaler.scale(torch.ones(()))  # used, and never made
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
    how="it does not run: `checkpoint_sequential` wants a sequence of functions, each of whose outputs is the next one's input, and `scaler` is never made. With both repaired it trains on sums of all gradients so far, because nothing zeroes them",
)

# %% [markdown]
# ## In your own words
#
# A colleague wants to fine-tune a model of 8 billion parameters on one GPU of 80 GB, with sequences of 8,192 tokens, in
# BF16 with AdamW. It runs out of memory in the first step. Give the order in which you would try recomputation, smaller
# micro-batches with accumulation, and states in host memory. For each: which number of the account would have to be how
# large for it to be the right first move, what does it cost in time, and what would you measure to know that it worked?

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# *Your answer. A paragraph for each of the three.*

# %% [markdown]
# ## What to remember
#
# - **Count storages, not tensors.** A view keeps all of what it looks at; two views keep it once.
# - Parameters, gradients and states depend on the model: for Adam 16 bytes a parameter in FP32, 16 in BF16 with FP32
#   masters, 8 in BF16 alone. **Activations** depend on batch × length, and win as soon as there are enough tokens.
# - The peak is a *moment*. Gradients grow while activations are freed, so their maxima must not be added up.
# - Segments of k layers hold (L/k)·b + k·c. A layer keeps c, some twenty times its input b, so **every layer for itself** is
#   the best segment until L = 2·c/b, some forty layers. It costs almost one more forward pass.
# - Accumulation is the big batch if every part is weighed by what **counts** in it. Statistics of a batch do not add up.
# - States are touched once a step. They can live anywhere, if their bytes over the link's bandwidth fit beside the work.
#
# Next: `07_feeding_the_gpu`. The model fits; now the data must arrive in time.
