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
#     edition: 2
# ---

# %% [markdown]
# # Will it fit?
#
# ![A GPU's memory, and beside it the kinds of bytes of a training step, of sizes unknown](attachment:opening.png)
#
# Before training seven billion parameters, everybody does this sum: 2 bytes per parameter are 14 GB, and an H100 has
# 80. Then the first step ends with `CUDA out of memory`. What else takes memory, and how can you know beforehand?
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import math
import numbers
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from threeloops.lab import (
    animate,
    by_value,
    calibration,
    check,
    debrief,
    explore,
    hint,
    inout,
    predict,
    reveal,
    show,
    term,
    together,
)
from threeloops.lab.checking.on_cluster import on_cluster
from threeloops.lab.checking.wall import there
from threeloops.lab.disks.allocated import allocated
from threeloops.lab.disks.on_disk import in_folder
from threeloops.models.gpt_config import GPTConfig
from threeloops.training.cluster import Cluster
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

torch.set_num_threads(1)  # everything here is small: on a busy machine two threads would mostly wait for each other


@dataclass(frozen=True)
class Account:
    """Bytes of one training step."""

    parameters: int
    gradients: int
    states: int
    layer: int
    head: int
    peak: int


@dataclass(frozen=True)
class Live:
    """Bytes of live storage while a function ran, and how many storages it made."""

    peak: int
    left: int
    storages: int


def storages_in(tree):
    """The storages of all tensors in a tensor, or in tuples, lists and dicts of them, one per tensor."""
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def interrupted(live_bytes):
    """The exception that leaves `live_bytes` when `run` is interrupted, and the number of modes that still watch."""

    def run():
        torch.zeros(3)
        raise KeyboardInterrupt("stop")

    before, outcome = len(_get_current_dispatch_mode_stack()), "a result"
    try:
        live_bytes(run)
    except BaseException as error:
        outcome = type(error).__name__
    left = _get_current_dispatch_mode_stack()[before:]
    for mode in reversed(left):
        mode.__exit__(None, None, None)
    return outcome, len(left)


class Impossible(ValueError):
    """An action of a schedule that cannot be carried out."""


@dataclass
class Execution:
    """The inputs kept and the layers recorded after each action of a schedule, and how often each layer was computed."""

    kept: list[list[int]]
    recorded: list[list[int]]
    computed: list[int]

    def peak(self, b: float, c: float) -> float:
        pairs = zip(self.kept, self.recorded, strict=True)
        return max((len(kept) * b + len(recorded) * c for kept, recorded in pairs), default=0.0)


def execute(actions, layers: int) -> Execution:
    """Carry out a schedule for `layers` layers. Raises Impossible, naming the action, if it makes no sense."""
    at, kept, recorded, done, output = 0, set(), set(), layers, False
    execution = Execution([], [], [0] * layers)
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
        execution.kept.append(sorted(kept))
        execution.recorded.append(sorted(recorded))
    if done:
        raise Impossible(f"after the last action layers 0 … {done - 1} have had no backward pass")
    return execution


class OutOfMemory(RuntimeError):
    """More sequences than fit."""


ALIVE = []  # activations of earlier calls, as references that keep nothing alive, and of how many sequences


def mean_loss(weights: list[Tensor], tokens: Tensor, targets: Tensor) -> Tensor:
    """A small model that guesses the next token from the last three, and its mean cross-entropy."""
    capacity = 4
    if len(tokens) > capacity:
        raise OutOfMemory(f"{len(tokens)} sequences at once: at most {capacity} fit")
    ALIVE[:] = [(reference, count) for reference, count in ALIVE if not reference.expired()]
    if (held := sum(count for _, count in ALIVE) + len(tokens)) > 2 * capacity:
        raise OutOfMemory(f"the activations of {held} sequences are alive: at most {2 * capacity} fit")
    table, mix, head = weights
    x = functional.embedding(tokens, table)
    before = functional.pad(x, (0, 0, 2, 0))
    hidden = torch.tanh(torch.cat([before[:, :-2], before[:, 1:-1], x], dim=-1) @ mix)
    ALIVE.append((StorageWeakRef(hidden.untyped_storage()), len(tokens)))
    return functional.cross_entropy((hidden @ head).flatten(0, 1), targets.flatten(), ignore_index=-100)


def a_batch(seed: int, batch: int, length: int, ignored: float = 0.3):
    """Weights in float64, tokens, and targets of which a share does not count."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((29, 8), (24, 16), (16, 29))
    weights = [torch.randn(shape, generator=generator, dtype=torch.float64) / 3 for shape in shapes]
    tokens, targets = (torch.randint(29, (batch, length), generator=generator) for _ in range(2))
    targets[torch.rand(batch, length, generator=generator) < ignored] = -100
    return [weight.requires_grad_() for weight in weights], tokens, targets


def apart(accumulated, weights, tokens, targets, micro):
    """Call again and again with the same weights, as a training loop does, which has gradients of its own in `.grad`."""
    weights = [weight.detach().clone().requires_grad_() for weight in weights]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    loss, gradients = accumulated(weights, tokens, targets, micro)
    has_graph = loss.requires_grad or any(gradient.requires_grad for gradient in gradients)
    once = [gradient.detach().clone() for gradient in gradients]
    own = [None if weight.grad is None else weight.grad.detach().clone() for weight in weights]
    for weight in weights:
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad.detach().zero_()
    accumulated(weights, targets.clamp(min=0), tokens, micro)
    later = [gradient.detach().clone() for gradient in gradients]
    _, again = accumulated(weights, tokens, targets, micro)
    return has_graph, own, once, later, [gradient.detach().clone() for gradient in again]


def forget_calls():
    ALIVE.clear()


def large_batch(accumulated, batch, length, micro):
    """Return the loss and the gradients of a batch whose activations take far more memory than the batch."""
    loss, gradients = accumulated(*a_batch(3, batch, length), micro)
    return loss.detach(), [gradient.detach() for gradient in gradients]


@dataclass(frozen=True)
class AdamW:
    """The hyperparameters of AdamW."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 1e-2


def steps_from_files(adamw_from_files, parameter, gradients, chunk, options, first=1, files=None):
    """Make steps from `first` on, in a folder with `files`. Return for each step the new parameter, the bytes of both
    files, and the parameter and gradient that were passed in."""
    names, found = ("states/exp_avg.bin", "states/exp_avg_sq.bin"), []
    with in_folder({"states": None, **dict(zip(names, files, strict=True))} if files else {}) as folder:
        for step, gradient in enumerate(gradients, first):
            given = parameter.clone(), gradient.clone()
            place = str(folder.path / "states")
            parameter = adamw_from_files(place, *map(inout, given), step, chunk, options)
            found.append((parameter, [folder.read(name) or b"" for name in names], *given))
    return found


def large_step(adamw_from_files, elements, chunk):
    """The first and the last number of a parameter of ones after a step whose gradient is 0.5 everywhere."""
    with in_folder({}) as folder:
        given = torch.ones(elements), torch.full((elements,), 0.5)
        parameter = adamw_from_files(str(folder.path), *given, 1, chunk, AdamW())
    return float(parameter[0]), float(parameter[-1])


def second_step(adamw_from_files, elements, chunk):
    """Make step 2 from files of zeros. Return the names in the folder, and the bytes that the step allocates in tensors
    of more than two chunks, and in Python's objects and NumPy's arrays."""
    zeros = bytes(4 * elements)
    with in_folder({"exp_avg.bin": zeros, "exp_avg_sq.bin": zeros}) as folder:
        given = torch.ones(2, elements // 2), torch.full((2, elements // 2), 0.5)
        taken = allocated(adamw_from_files, str(folder.path), *given, 2, chunk, AdamW())
        names = sorted(path.name for path in folder.path.iterdir())
    return names, sum(size for size in taken.tensors if size > 8 * chunk), taken.objects


@dataclass(frozen=True)
class Job:
    """A step to be planned. Bytes and seconds per sequence unless it says otherwise."""

    name: str
    layers: int
    b: float  # bytes of a layer's input
    c: float  # bytes of all that a layer keeps
    head: float  # bytes at the loss
    weights: float  # bytes of parameters and gradients
    states: float  # bytes of masters and moments
    batch: int  # sequences per step
    seconds: float  # forward and backward pass
    overhead: float  # seconds per microbatch
    link: float  # bytes/s to host memory
    capacity: float  # bytes of the GPU


@dataclass(frozen=True)
class Plan:
    """`micro` sequences at a time, segments of `k` layers (0: nothing recomputed), states in host memory or not."""

    micro: int
    k: int
    offload: bool


def needs(job: Job, plan: Plan) -> float:
    """Bytes at the worst moment."""
    layers = job.layers / plan.k * job.b + plan.k * job.c if plan.k else job.layers * job.c
    return job.weights + (0 if plan.offload else job.states) + plan.micro * (layers + job.head)


def duration(job: Job, plan: Plan) -> float:
    """Seconds of a step: recomputation adds a third, each microbatch its overhead, offloading the journey there and back."""
    work = job.batch * job.seconds * (4 / 3 if plan.k else 1) + math.ceil(job.batch / plan.micro) * job.overhead
    return work + (2 * job.states / job.link if plan.offload else 0)


def cause_of(got, slips, rtol):
    """The slips that give this number: all of them, because a test that cannot tell them apart must not choose."""
    if isinstance(got, Tensor) and got.numel() == 1:
        got = got.item()
    if not isinstance(got, numbers.Real):
        return ""
    return "; or ".join(cause for value, cause in slips.items() if math.isclose(got, value, rel_tol=rtol))


def numbers_off(got, expected, tokens, sizes, only=None):
    """How many numbers per token a count of bytes is off. `sizes` says what has how many, and `only` what no other
    tensors make up."""
    if not isinstance(got, numbers.Integral) or (got - expected) % (4 * tokens):
        return ""
    off = (got - expected) // (4 * tokens)
    return f"{abs(off):,} numbers per token too {'many' if off > 0 else 'few'}: " + (only or {}).get(off, sizes)


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
from threeloops.lab.drawings.inner import budget

show.figure(budget.draw_kinds(), "the kinds of bytes of a training step, in front of a GPU's memory")

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "kept_by_a_layer",
    "A layer of a 7B model keeps tensors for its backward pass. How many times as large as its input are they, all together?",
    unit="×",
)

# %% [markdown]
# ## 1 · Count it
#
# A step holds eight kinds of bytes. Five depend on the model alone: **parameters**, **gradients** (as many), **masters**
# (float32 copies in mixed precision), **states** of the optimizer (two numbers per parameter for Adam), and **buffers**
# (tables of rotary positions). **Inputs** are tokens and targets. **Activations** are what the forward pass keeps for the
# backward pass, and **temporaries** live for a moment.
#
# Each operator keeps what its own derivative needs:
#
# | operator | keeps |
# |---|---|
# | `x @ W` | `x` (`W` lives anyway) |
# | `a * b` | `a` and `b` |
# | `silu(g)` | `g` |
# | `a + b`, a rotation by fixed angles | nothing |
# | `norm(x)`, that is `gain * (x * r)`, on a CPU | `x`; the normalised `x * r`; and `r`, one number per token |
# | fused attention | rotated q, rotated k, v, its output, and one number per head and token |
# | joining the heads | nothing, but its result is a copy |
# | cross-entropy | the log-softmax of the logits |
#
# Two rules: a tensor that two operators keep counts **once**, and what stays is not the tensor but its **storage**, the block of
# memory behind it.
#
# *Worked example.* `silu(x @ A) @ B` with 10 tokens, x of 4 numbers per token and a hidden layer of 8, in float32. The first
# product keeps x, 160 bytes. `silu` keeps its input, 320, and the second product keeps the result of `silu`, 320: 800 bytes.
#
# ### Exercise 1 (6 points)
#
# `mlp_bytes(tokens, width, hidden) -> int`: the bytes that `(silu(h @ W_gate) * (h @ W_up)) @ W_down` keeps in float32. Per
# token, h has `width` numbers, and the results of `W_gate` and `W_up` have `hidden` each. The int is exact for any size.


# %% nbgrader={"grade": false, "grade_id": "mlp", "locked": false, "schema_version": 3, "solution": true, "task": false}
def mlp_bytes(tokens: int, width: int, hidden: int) -> int:
    """Bytes that a gated MLP keeps for its backward pass."""
    ### BEGIN SOLUTION
    gate, activated, up, product = (hidden,) * 4  # silu keeps the first, `*` the next two, W_down the last
    return 4 * tokens * (width + gate + activated + up + product)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "mlp_test", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("mlp", "what five operators keep", hidden="other sizes, counted by autograd"):
    SIZES = "h has 3, and each tensor of the hidden layer 8"
    ONLY = {
        3: "as many as h has. h counts once, however many products read it. The last product's result is as wide, and nothing keeps it",
        -8: "as many as one tensor of the hidden layer",
        -3: "as many as h has, which both of the first products keep",
    }
    SMALL = ((10, 3, 8, 1400), (1, 5, 7, 132), (300, 64, 192, 998_400))
    LARGE = ((65_536, 4096, 11_008, 12_616_466_432), ((1 << 53) + 1, 3, 1, 252_201_579_132_747_804))
    for tokens, width, hidden, expected in (*SMALL, *LARGE):
        found = mlp_bytes(tokens, width, hidden)
        cause = numbers_off(found, expected, tokens, SIZES, ONLY) if (width, hidden) == (3, 8) else ""
        check.equal(found, expected, what=f"mlp_bytes({tokens}, {width}, {hidden})", hint=cause)
    ### BEGIN HIDDEN TESTS

    def packed_by_autograd(tokens, width, hidden):
        gate, up, down = (
            torch.ones(shape, requires_grad=True) for shape in ((width, hidden), (width, hidden), (hidden, width))
        )
        weights = {weight.untyped_storage()._cdata for weight in (gate, up, down)}
        h, packed = torch.ones(tokens, width), {}

        def pack(tensor):
            if tensor.untyped_storage()._cdata not in weights:
                packed[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = (functional.silu(h @ gate) * (h @ up)) @ down
        size = sum(storage.nbytes() for storage in packed.values())
        del result
        return size

    for seed in range(4):
        sizes = [int(n) for n in check.rng(seed).integers(1, 60, 3)]
        check.equal(mlp_bytes(*sizes), packed_by_autograd(*sizes), what=f"mlp_bytes{tuple(sizes)}")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
term("activation")
hint(
    "mlp",
    "Name every intermediate result: a = h @ W_gate, b = silu(a), and so on. Which operators of the table read it, and do they keep it?",
    "A multiplication keeps both of its factors, and the last product keeps what it reads. h is read twice and counts once.",
)
debrief(
    "mlp",
    """h is read by two products and kept once. The result of `silu` is kept by the multiplication that reads it, not by `silu`
    itself. Nothing here keeps the last result: whether it stays depends on the operator that reads it next.""",
)

# %% [markdown]
# Here is a whole block of the model, with input x:
#
# ```python
# h = norm(x)
# q, k, v = split(h @ W_qkv)
# x = x + join(attend(rotate(q), rotate(k), v)) @ W_output
# h = norm(x)
# x = x + (silu(h @ W_gate) * (h @ W_up)) @ W_down
# ```
#
# v is a slice of `h @ W_qkv`, so that product's whole storage stays.
#
# ### Exercise 2 (16 points)
#
# `account(config, batch, sequence, states) -> Account`: the bytes of a step on batch · sequence tokens, in float32. `config` has
# `layers`, `heads`, `width` (of x), `mlp_width`, `vocabulary_size`, `max_sequence`, `head_dim`, `parameters_count()` and
# `qkv_widths`, the numbers of columns of q, k and v.
#
# - `parameters`, `gradients`: 4 bytes per parameter. `states`: `states` numbers per parameter.
# - `layer`: what a block keeps. `head`: what the last norm, the projection to `vocabulary_size` logits and the loss keep.
# - `peak`: parameters, states, inputs (tokens and targets, 8 bytes each) and buffers (`max_sequence · head_dim` numbers), plus
#   the larger of two moments: **at the loss** all layers, `head` and two gradients of the size of the logits; **at the update**
#   the gradients of the parameters.
# - All are ints, exact for any size.


# %% nbgrader={"grade": false, "grade_id": "account", "locked": false, "schema_version": 3, "solution": true, "task": false}
def account(config: GPTConfig, batch: int, sequence: int, states: int) -> Account:
    """Count the bytes of a training step in float32, with `states` numbers per parameter for the optimizer."""
    ### BEGIN SOLUTION
    tokens, width = batch * sequence, config.width
    queries, keys, values = config.qkv_widths
    stream = 2 * width  # the block's input, and what lies between its halves
    norms = 2 * (2 * width + 1)  # normalised, and the output that the products behind it keep
    qkv = queries + keys + values
    attention = qkv + queries + keys + queries + config.heads + queries  # qkv, q, k, output, sums, joined
    layer = 4 * tokens * (stream + norms + attention + 4 * config.mlp_width)
    logits = 4 * tokens * config.vocabulary_size
    head = 4 * tokens * (3 * width + 1) + logits
    parameters = 4 * config.parameters_count()
    always = parameters * (1 + states) + 16 * tokens + 4 * config.max_sequence * config.head_dim
    peak = always + max(config.layers * layer + head + 2 * logits, parameters)
    return Account(parameters, parameters, states * parameters, layer, head, peak)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "account_test_kept", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check(
    "account", "what stays for the backward pass", part="kept", hidden="other configurations, counted by autograd"
):
    KEPT = ("parameters", "gradients", "states", "layer", "head")
    WHY = {
        "parameters": "4 bytes each; config.parameters_count() says how many",
        "gradients": "one for each parameter, in the same format",
        "states": "`states` numbers of 4 bytes per parameter",
    }
    SIZES = "x and q have 64, k and v {} each, a tensor of the MLP's hidden layer {}, and there are 4 heads and 2 norms"
    ONLY = {
        -4: "attention keeps one number per head",
        -2: "each of the two norms keeps one number",
        -1: "each of the two norms keeps one number",
        -200: "as many as one tensor of the MLP's hidden layer",
        200: "as many as one tensor of the MLP's hidden layer",
    }

    def kept_check(config, batch, sequence, states, expected, sizes, only):
        found = account(config, batch, sequence, states)
        label = (
            f"{batch} × {sequence} tokens, {config.heads} heads that share {config.kv_heads} key heads, {states} states"
        )
        tokens = batch * sequence
        causes = WHY | {
            "layer": numbers_off(found.layer, expected[3], tokens, sizes, only),
            "head": numbers_off(found.head, expected[4], tokens, "x has 64, the logits have 256", HEAD),
        }
        for name, size in zip(KEPT, expected, strict=True):
            check.equal(getattr(found, name), size, what=f"account(…).{name} of {label}", hint=causes[name])

    HEAD = {256: "as many as the logits, which are not kept: the loss keeps their log-softmax"}
    wide = GPTConfig.tiny(kv_heads=4, mlp_width=200)
    kept_check(wide, 3, 100, 2, (505_088, 505_088, 1_010_176, 1_965_600, 538_800), SIZES.format(64, 200), ONLY)
    NARROW = "with as many key heads as heads the layer is right, so look at k and v: " + SIZES.format(32, 192)
    kept_check(GPTConfig.tiny(), 3, 100, 2, (460_032, 460_032, 920_064, 1_812_000, 538_800), NARROW, {})
    BROAD = "with heads of width / heads numbers the layer is right, so look at `qkv_widths`: x has 64, q 96, k and v 48 each"
    broad = (509_184, 509_184, 1_018_368, 2_023_200, 538_800)
    kept_check(GPTConfig.tiny(head_dim=24), 3, 100, 2, broad, BROAD, {})
    kept_check(GPTConfig.tiny(layers=8, heads=2, kv_heads=1), 1, 2, 0, (1_642_752, 1_642_752, 0, 12_064, 3592), "", {})
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

    def random_config(rng, seed):
        heads = int(rng.choice([2, 4, 6]))
        return GPTConfig(
            vocabulary_size=int(rng.integers(11, 300)),
            layers=int(rng.integers(1, 9)),
            heads=heads,
            kv_heads=int(rng.choice([n for n in range(1, heads + 1) if heads % n == 0])),
            width=heads * 2 * int(rng.integers(2, 9)),
            mlp_width=int(rng.integers(7, 200)),
            max_sequence=97,
            head_dim=2 * int(rng.integers(1, 9)) * (seed % 2),
            tied_embeddings=bool(seed % 2),
        )

    for seed in range(5):
        rng = check.rng(seed)
        config = random_config(rng, seed)
        batch, sequence, weights = int(rng.integers(1, 6)), int(rng.integers(3, 97)), 4 * config.parameters_count()
        expected = (weights, weights, seed % 3 * weights, *kept_by_autograd(config, batch, sequence))
        kept_check(config, batch, sequence, seed % 3, expected, "", {})
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "account_test_peak", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("account", "the worst moment of a step", part="peak", hidden="other sizes, and either moment as the worst"):

    def found_peak(config, batch, sequence, states):
        """`peak`, and that minus the answer's own `layer` and `head`, which the other part judges."""
        found = account(config, batch, sequence, states)
        for name in ("layer", "head", "peak"):
            size = getattr(found, name)
            whole = isinstance(size, int | np.integer) and size >= 0
            check.true(whole, f"account(…).{name} is {size!r}: expected an int, a number of bytes")
        return int(found.peak), int(found.peak) - config.layers * int(found.layer) - int(found.head)

    def at_loss(config, batch, sequence, states, expected, slips):
        _, rest = found_peak(config, batch, sequence, states)
        what = f"account(…).peak of {batch:,} × {sequence:,} tokens, {states} states, without what layers and head keep"
        check.equal(rest, expected, what=what, hint=slips.get(rest, ""))

    AT_LOSS = {
        2_467_520: "the two moments are added up, but they never coincide",
        1_393_088: "the loss has two more tensors of the size of the logits",
        1_700_288: "one of the two gradients at the loss is missing",
        2_002_688: "tokens and targets are missing",
        1_999_296: "the rotary tables are missing",
        195_488: "only one layer is counted",
    }
    AT_UPDATE = {
        6_683_560: "the two moments are added up, but they never coincide",
        5_040_808: "at the update the gradients are more than all activations",
        6_579_200: "tokens and targets are missing",
        6_571_040: "the rotary tables are missing",
    }
    at_loss(GPTConfig.tiny(), 3, 100, 2, 2_007_488, AT_LOSS)
    at_loss(GPTConfig.tiny(), 2, 20, 0, 550_784, {})
    narrower = {599_936: "the rotary tables have head_dim = 24 columns, and not width / heads = 16"}
    at_loss(GPTConfig.tiny(head_dim=24), 2, 20, 0, 604_032, narrower)
    large = GPTConfig(32_000, 32, 32, 32, 4096, 11_008, 8192, tied_embeddings=False)
    at_loss(large, (1 << 24) + 1, 8191, 2, 35_182_358_838_564_848, {})
    peak, _ = found_peak(GPTConfig.tiny(layers=8), 1, 2, 2)
    what = "account(…).peak of 1 × 2 tokens, 8 layers, 2 states"
    check.equal(peak, 6_579_232, what=what, hint=AT_UPDATE.get(peak, ""))
    ### BEGIN HIDDEN TESTS

    def peak_of(config, batch, sequence, states, kept):
        tokens, weights = batch * sequence, 4 * config.parameters_count()
        always = weights * (1 + states) + 16 * tokens + 4 * config.max_sequence * config.head_dim
        return always + max(kept + 8 * tokens * config.vocabulary_size, weights)

    for seed in range(6):
        rng = check.rng(seed)
        config = GPTConfig.tiny(layers=int(rng.integers(1, 9)), kv_heads=int(rng.choice([1, 2, 4])))
        sizes = config, int(rng.integers(1, 6)), int(rng.integers(1, 129)) if seed % 2 else 1, seed % 3
        peak, rest = found_peak(*sizes)
        check.equal(peak, peak_of(*sizes, peak - rest), what=f"account(…).peak of {sizes[1]} × {sizes[2]} tokens")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.hardware import accelerator
from threeloops.inner.memory import LiveStorage
from threeloops.inner.memory import account as library_account
from threeloops.lab.drawings.inner import budget
from threeloops.models.gpt import GPT
from threeloops.units import readable_bytes

hint(
    "account",
    "Write down the block line by line and, beside each line, the storages that it makes. Then cross out those that nobody keeps, and those that you have counted already.",
    "An addition keeps nothing. Which operator keeps its result, and how many such results does one block have? Does the product behind a norm keep something that the norm does not keep?",
    "By hand, for one token with x of 8 numbers, 2 heads, keys and values of 4 and an MLP of 16: attention, from `h @ W_qkv` to the joined heads, keeps 46 numbers. The two norms and the products that read them keep 50 with their inputs, and the MLP behind its norm 64. Which of these do you miss?",
)
debrief(
    "account",
    """The forward pass is modelled by the tensors it saves. Attention's score matrix is not among them, because fused
    attention never stores all of it. The peak is a moment: gradients grow while activations are freed, so the maxima of the
    two must not be added up.""",
    parts=("kept", "peak"),
)
SEVEN = GPTConfig(32_000, 32, 32, 32, 4096, 11_008, 8192, tied_embeddings=False)
MIXED = {"dtype": "bfloat16", "masters": True, "device": "cuda"}  # BF16 weights, FP32 masters and moments
h100 = accelerator("H100 SXM")
layer = library_account(SEVEN, 1, 2048, **MIXED).layer
show.against_prediction(
    "kept_by_a_layer",
    round(sum(layer.values()) / layer["input"], 1),
    unit="×",
    source="model: counted, in BF16 on a GPU",
)
with reveal("kept_by_a_layer"):
    recomputed = library_account(SEVEN, 8, 2048, layers_per_segment=1, **MIXED).at_peak
    bars = {
        "1 × 2,048 tokens": library_account(SEVEN, 1, 2048, **MIXED).at_peak,
        "8 × 2,048": library_account(SEVEN, 8, 2048, **MIXED).at_peak,
        "… every layer recomputed": recomputed,
        "… states and masters elsewhere": {k: v for k, v in recomputed.items() if k not in ("state", "master")},
    }
    title = f"{SEVEN.parameters_count() / 1e9:.1f} billion parameters, BF16 with FP32 masters, AdamW"
    show.figure(
        budget.draw_budgets(bars, h100.memory_bytes, title),
        "parameters are a small part of the bytes that a step of a 7B model holds",
    )
    print(
        "Only tensors are counted. A CUDA context, the workspaces of libraries and fragmentation come on top, so plan with a\n"
        "margin: the dotted line leaves a tenth of the GPU free, which is an assumption and not a measurement."
    )

# %% [markdown]
# ## 2 · Watch it
#
# A count can be wrong, so measure **live storage**: the bytes behind all tensors that can still be reached.
#
# Each operator, forward or backward, goes through PyTorch's **dispatcher**, which calls an active `TorchDispatchMode` in place
# of the operator. The next cell has one that prints. A tensor's memory is `tensor.untyped_storage()`, of `.nbytes()` bytes.
# Two tensors share it exactly when its `._cdata` is the same. `weakref.ref(storage, callback)` calls back when the storage
# dies, and does not keep it alive.
#
# *Worked example.* `a = torch.zeros(1000)`, `b = a + 1`, `del a`, `c = b * 2`: three storages of 4,000 bytes, of which at most
# two are alive at once. So the peak is 8,000.
#
# ### Exercise 3 (18 points)
#
# `live_bytes(run) -> Live` calls `run()` and watches the storages that operators **make** while it runs.
#
# - `peak`: the most bytes of these storages that were alive at once. `left`: the bytes still alive after `run()` has returned
#   and its result has been dropped. `storages`: how many were made.
# - A storage counts once, in full size, from the operator that returns it until it dies, however many tensors share it. One
#   made at the address of a dead one is new.
# - A storage that existed before does not count, whether an operator gets it as a positional or a keyword argument, writes
#   into it, or returns a view of it.
# - Pass an operator its keyword arguments. It may return tuples and lists of tensors: `storages_in(tree)` finds the storages
#   of all tensors in them.
# - A tensor on the device "meta" has a storage with a size and no address: it counts. An empty tensor has one of 0 bytes.
# - Whatever `run` raises, even an interrupt, reaches the caller, and afterwards nothing is watched.


# %% tags=["demo"]
class Printing(TorchDispatchMode):
    """Prints each operator that passes, and the shapes that it returns."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        shapes = [tuple(leaf.shape) for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        print(f"{str(function):<34}{shapes}")
        return result


with Printing():
    weight = torch.ones(3, 2, requires_grad=True)
    (torch.ones(4, 3) @ weight).relu().sum().backward()


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
        self.see_all((args, kwargs or {}), counts=False)
        result = function(*args, **(kwargs or {}))
        self.see_all(result, counts=True)
        return result

    def see_all(self, tree, counts):
        for storage in storages_in(tree):
            self.see(storage, counts)

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


# %% nbgrader={"grade": true, "grade_id": "tracker_test_lifetimes", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("tracker", "storages, from birth to death", part="lifetimes", hidden="forward and backward passes"):

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
            "peak": "the first vector dies before the third is made. Either your code keeps a storage alive, or it did not keep the weak reference itself",
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

    def several_results():
        values, order = torch.zeros(64, 32).sort(dim=1)
        return order, torch._foreach_add([values, values], 1.0)

    check.equal(
        live_bytes(by_value(several_results)),
        Live(64 * 32 * (4 + 8 + 4 + 4), 0, 5),
        what="operators that return tuples and lists",
        hint="storages_in(result) finds the storage of every tensor that an operator returns; the sort's input dies with the call",
    )

    def without_addresses():
        first = torch.zeros(1000, device="meta")
        return first + 1, torch.zeros(0), torch.zeros(0)

    check.equal(
        live_bytes(by_value(without_addresses)),
        Live(8000, 0, 4),
        what='two vectors on the device "meta", and two empty ones',
        hint="none of the four has an address, so data_ptr() is 0 for all of them: tell storages apart by _cdata",
    )

    def wide():
        return torch.zeros(10, dtype=torch.float64)

    check.equal(
        live_bytes(by_value(wide)),
        Live(80, 0, 1),
        what="ten numbers in float64",
        hint="dtype is a keyword argument of the operator: function(*args, **(kwargs or {}))",
    )
    ### BEGIN HIDDEN TESTS

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

    for depth, width, rows in ((1, 8, 3), (3, 16, 65)):
        train = network(depth, width, rows)
        with Polling() as polling:
            train()
        check.equal(
            live_bytes(by_value(train)),
            Live(polling.peak, polling.live(), len(polling.made)),
            what=f"forward and backward pass of {depth} layers",
            hint="backward operators go through the dispatcher too; what autograd frees must leave the sum at once",
        )
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "tracker_test_outside", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("tracker", "what came before and what stays", part="outside", hidden="other operators"):
    earlier, target = torch.ones(300), torch.ones(300)
    OUTSIDE = "a storage first met as an argument existed before: it does not count, and neither do its views"

    def reads_from_outside():
        earlier.add_(1)
        return earlier[100:200] * 2

    check.equal(
        live_bytes(by_value(reads_from_outside)),
        Live(400, 0, 1),
        what="twice a view of a tensor that existed before",
        hint=OUTSIDE,
    )

    def writes_outside():
        return torch.add(earlier, earlier, out=target)

    check.equal(
        live_bytes(by_value(writes_outside)),
        Live(0, 0, 0),
        what="a sum that goes into a tensor that existed before, with out=",
        hint="`out` is a keyword argument: look at kwargs as well as args, before you call",
    )

    order = torch.zeros(300, dtype=torch.long)

    def sorts_outside():
        return torch.sort(earlier, out=(target, order))

    check.equal(
        live_bytes(by_value(sorts_outside)),
        Live(0, 0, 0),
        what="a sort into two tensors that existed before",
        hint="the operator gets them as the keyword arguments `values` and `indices`: look at all of kwargs",
    )

    def outlives_arrays():
        for _ in range(20):
            torch.from_numpy(np.ones(500, np.float32)).neg_()
            torch.zeros(500)

    check.equal(
        live_bytes(by_value(outlives_arrays)),
        Live(2000, 0, 20),
        what="twenty vectors, each made after an array of NumPy's has died",
        hint="NumPy's array first appears as an argument. When it has died, a new storage may lie at its address, so forget it then",
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
    outcome, left = there(interrupted, live_bytes)
    check.equal(outcome, "KeyboardInterrupt", what="what comes out of live_bytes when run() is interrupted")
    check.equal(
        left,
        0,
        what="modes that still watch operators after an interrupt",
        hint="`with` ends a mode however its block ends",
    )
    ### BEGIN HIDDEN TESTS
    outside, given = torch.ones(300, 10), [torch.ones(40), torch.ones(60)]

    def from_outside():
        return outside.t()[2:5] * 2

    check.equal(
        live_bytes(by_value(from_outside)), Live(3600, 0, 1), what="a view of a transposed tensor", hint=OUTSIDE
    )

    def lists():
        torch._foreach_mul_(given, 2.0)
        return torch.cat(given)

    check.equal(live_bytes(by_value(lists)), Live(400, 0, 1), what="a list of earlier tensors", hint=OUTSIDE)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
term("dispatcher")
hint(
    "tracker",
    "Keep a dictionary from `storage._cdata` to a weak reference, a running sum of live bytes, and the largest value that the sum ever had.",
    "Before you call an operator, look at its arguments: a storage that you meet there for the first time existed before, so it does not count. After the call, look at the results: a storage that you meet there for the first time is new.",
    "The callback of the weak reference subtracts the storage's bytes and removes its entry, so that a new storage at the same address counts again. Hold neither the tensor nor the storage in any variable that outlives the operator.",
)
debrief(
    "tracker",
    """Python's reference counts do the work: a storage dies with the last tensor that shares it, and the weak reference calls
    back at that moment. Addresses are reused, so a dead storage must leave the dictionary at once.""",
    parts=("lifetimes", "outside"),
)


def watched_step(config, batch, length):
    """The timeline of the second training step of the course's GPT, when the optimizer's states exist."""
    torch.manual_seed(0)
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tokens = torch.randint(config.vocabulary_size, (batch, length))

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(tokens, tokens.roll(-1, 1)).backward()
        optimizer.step()

    step()
    optimizer.zero_grad(set_to_none=True)
    with LiveStorage(model, optimizers=[optimizer]) as live:
        live.mark("forward")  # storages met before this mark existed before the step
        step()
    return live.timeline


small, batch, length = GPTConfig.tiny(layers=4), 2, 128
counted, tracked = library_account(small, batch, length).timeline, watched_step(small, batch, length)
show.figure(
    budget.draw_timelines(counted, tracked),
    "activations rise to the loss and fall while gradients grow, counted and tracked alike",
)
print(f"peaks: {counted.peak_bytes:,} bytes counted, {tracked.peak_bytes:,} tracked\n{tracked.report(largest=4)}")
assert abs(counted.peak_bytes / tracked.peak_bytes - 1) < 0.05
predict(
    "best_segment",
    "A model has 24 layers, each of which keeps 24 times the bytes of its input. To save memory, only the input of every k-th layer is kept, and k layers are computed again at a time. Which k needs the least memory?",
    unit="layers",
)

# %% [markdown]
# The live bytes rise up to the loss (dotted), and fall during the backward pass while gradients grow; the flat end is the
# update. The right picture is wider because the count leaves out temporaries far from the peak.
#
# ## 3 · Forget, and compute again
#
# Keep the **input** of a layer (b bytes), forget the rest, and run the layer again when the backward pass arrives:
# **recomputation**. Or keep every **k-th** input, and recompute segments of k layers at a time. With L layers that keep
# c bytes each, this holds (L/k)·b bytes of inputs, and k·c of the segment in its backward pass.
#
# A schedule is a list of actions, which `execute` carries out. Layers are 0 … L−1. There is always one current value, at the
# beginning the input of layer 0.
#
# | action | meaning | needs | holds |
# |---|---|---|---|
# | `("keep", i)` | keep the current value | it is layer i's input | b, until `("backward", i)` |
# | `("forward", i)` | compute layer i, forget the rest | current value is its input | |
# | `("restore", i)` | make a kept input current | it is kept | |
# | `("record", i)` | compute layer i, hold all it keeps | current value is its input | c, until `("backward", i)` |
# | `("backward", i)` | layer i's backward pass | it is recorded; later layers are done; the last output was computed | |
#
# *Worked example.* Two layers, each recomputed alone (k = 1): keep 0, forward 0, keep 1, forward 1; restore 1, record 1,
# backward 1; restore 0, record 0, backward 0. At most 2·b + c bytes are held.
#
# ### Exercise 4 (12 points)
#
# `schedule(layers, k) -> list[tuple[str, int]]`: the actions of a step in segments of k layers.
#
# - Every layer goes through its backward pass, and none is computed more than twice.
# - At no moment are more than (L/k)·b + k·c bytes held, whatever b and c are.


# %% nbgrader={"grade": false, "grade_id": "recompute", "locked": false, "schema_version": 3, "solution": true, "task": false}
def schedule(layers: int, k: int) -> list[tuple[str, int]]:
    """Actions of a training step that keeps the inputs of segments of k layers and computes the rest again."""
    if layers < 1:
        raise ValueError(f"layers = {layers}: expected at least 1")
    if k < 1 or layers % k:
        raise ValueError(f"k = {k}: expected a divisor of layers = {layers}")
    ### BEGIN SOLUTION
    actions = []
    for layer in range(layers):
        actions += [("keep", layer)] if layer % k == 0 else []
        actions.append(("forward", layer))
    for first in reversed(range(0, layers, k)):
        actions.append(("restore", first))
        actions += [("record", layer) for layer in range(first, first + k)]
        actions += [("backward", layer) for layer in reversed(range(first, first + k))]
    return actions
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "recompute_test", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("recompute", "segments of k layers", hidden="other depths and segments"):

    def schedule_check(layers, k):
        run = execute([tuple(action) for action in schedule(layers, k)], layers)
        for b, c in ((1.0, 17.0), (1.0, 0.0), (0.0, 1.0)):
            most, allowed = run.peak(b, c), layers // k * b + k * c
            check.true(
                most <= allowed,
                f"schedule({layers}, {k}) holds {most:g} bytes with b = {b:g}, c = {c:g}: expected at most {allowed:g}. "
                f"It keeps up to {max(map(len, run.kept))} inputs and records up to {max(map(len, run.recorded))} layers at a time",
            )
        check.true(
            max(run.computed) <= 2,
            f"in schedule({layers}, {k}) layer {run.computed.index(max(run.computed))} is computed {max(run.computed)} times: expected at most twice",
        )

    for layers, k in ((1, 1), (4, 2), (6, 1), (6, 6), (12, 3)):
        schedule_check(layers, k)
    ### BEGIN HIDDEN TESTS
    for layers in (2, 9, 24, 36):
        for k in [n for n in range(1, layers + 1) if layers % n == 0]:
            schedule_check(layers, k)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.memory.recompute import Segments, best_segment, segment_peak
from threeloops.models.gpt import Block, RotaryPositions

term("recomputation")
hint(
    "recompute",
    "Write down the actions for four layers with k = 2, as in the worked example: there are 16. Which of them can come before the first record?",
    'For those four layers: which inputs must be kept to record layer 3, and which layers have to be recorded while `("backward", 3)` is carried out? What may be dropped when layers 3 and 2 are done?',
)
debrief(
    "recompute",
    """Each layer is computed once without a record and once with one. The recorded layers always belong to one segment, and
    each segment that is done frees one kept input. The last segment could already be recorded in the first pass: that saves
    its recomputation and does not change the bound.""",
)
try:
    ACTIONS, K = schedule(6, 2), 2
    HELD = execute(ACTIONS, 6)
    CAPTION = (
        "Your schedule of six layers in segments of two: kept inputs (blue, b each), recorded layers (orange, c each)."
    )
except (NotImplementedError, Impossible):  # until exercise 4 passes, the worked example
    FORWARD = [("keep", 0), ("forward", 0), ("keep", 1), ("forward", 1)]
    BACKWARD = [(kind, layer) for layer in (1, 0) for kind in ("restore", "record", "backward")]
    ACTIONS, K = FORWARD + BACKWARD, 1
    HELD = execute(ACTIONS, 2)
    CAPTION = "The worked example: kept inputs (blue, b each), recorded layers (orange, c each). Your schedule takes its place."
FULLEST = [len(inputs) + 6 * len(layers) for inputs, layers in zip(HELD.kept, HELD.recorded, strict=True)]
animate(
    lambda frame: budget.draw_held(ACTIONS, HELD.kept, HELD.recorded, K, frame),
    range(len(ACTIONS)),
    seconds=0.7,
    still=FULLEST.index(max(FULLEST)),
    caption=CAPTION,
)
LAYERS = 24
stack_config = GPTConfig.tiny(layers=LAYERS, width=32, mlp_width=96, vocabulary_size=16)
torch.manual_seed(0)
stack = torch.nn.ModuleList(Block(stack_config) for _ in range(LAYERS))
angles = RotaryPositions(stack_config.head_dim, 32, 1e4)(0, 32)


def activations(layers):
    """The most bytes of activations alive at once, forward and backward."""
    for parameter in stack.parameters():
        parameter.grad = None
    x = torch.randn(4, 32, stack_config.width, requires_grad=True)
    with LiveStorage(stack) as live:
        for layer in layers:
            x = layer(x, angles)
        x.sum().backward()
    return live.timeline.peak_of("activation")


kept = library_account(stack_config, 4, 32).layer
b, c = kept["input"], sum(kept.values())
everything = activations(stack)
measured = {k: activations(Segments(stack, k)) for k in (1, 2, 4, 6, 12)}
assert all(abs(measured[k] / segment_peak(LAYERS, k, b, c) - 1) < 0.05 for k in measured)
show.against_prediction("best_segment", best_segment(LAYERS, b, c), unit="layers", source="CPU: tracked")
with reveal("best_segment"):
    show.figure(
        budget.draw_segments(LAYERS, b, c, measured, everything),
        "segments of one layer hold the least, and the tracker agrees with the formula within 5%",
    )
    print(
        f"Recomputing every layer alone is best: a second layer per segment costs another c = {c / b:.1f}·b and saves half of the 24\n"
        f"inputs, 12·b. It pays from L = 2·c/b = {2 * c / b:.0f} layers on. The textbooks' √L is the case c = b. The price is almost one\n"
        "more forward pass, a third of a step's arithmetic; the dives time it."
    )

predict(
    "padded_weight",
    "A batch is taken in two equal parts. In one, three quarters of the tokens are padding, which does not count; the other has no padding. The mean losses of the parts are averaged. A counted token in the padded part gets how many times the weight of a token in the full part?",
    unit="×",
)

# %% [markdown]
# ## 4 · A batch in parts
#
# Half of a batch needs half of the activations. Gradients are sums over the batch, so take the batch in parts
# (**microbatches**), add up the parts' gradients, and update once: **gradient accumulation**. One trap: the loss is a *mean*
# over the targets that count; those of padding and prompts, set to −100, do not. The mean of the parts' means is not the mean
# of the whole.
#
# Hugging Face's `transformers` fell into that trap and divided by the number of parts. [Unsloth's
# report](https://unsloth.ai/blog/gradient) of October 2024 led to a [first
# repair](https://github.com/huggingface/transformers/pull/34191); in April 2025 some models [were still
# wrong](https://github.com/huggingface/transformers/issues/37766).
#
# *Worked example.* Two parts: one target counts in the first, with loss 4; three in the second, with losses 2, 2, 2. The mean
# of the means is (4 + 2) / 2 = 3. The mean of all four is (1 · 4 + 3 · 2) / 4 = 2.5: the first part has the weight 1/4.
#
# ### Exercise 5 (18 points)
#
# `accumulated(weights, tokens, targets, micro) -> (loss, gradients)`: the mean loss of the whole batch over **all targets that
# count** (a 0-dimensional tensor), and its gradient for each weight, in the weight's shape and dtype.
#
# - `tokens` and `targets` are int64, (batch, length). `weights` are leaf tensors that require gradients.
# - `mean_loss(weights, tokens, targets)` is the mean over the given targets that count. If none counts, the mean is 0/0 = NaN,
#   and so are its gradients.
# - Call it for `micro` sequences at a time; the last part may be shorter. It raises `OutOfMemory` for more than 4 sequences,
#   and if you hold graphs of more than 8 at once. Memory is measured too.
# - The results are tensors of their own: the loss has no graph, a later call changes neither of them, and `.grad` of the
#   weights stays as it is. So a second, equal call returns the same results.


# %% nbgrader={"grade": false, "grade_id": "accumulate", "locked": false, "schema_version": 3, "solution": true, "task": false}
def accumulated(weights: list[Tensor], tokens: Tensor, targets: Tensor, micro: int) -> tuple[Tensor, list[Tensor]]:
    """Mean loss of a batch and its gradients, `micro` sequences at a time."""
    if micro < 1:
        raise ValueError(f"micro = {micro}: expected at least 1 sequence at a time")
    if tokens.shape != targets.shape:
        raise ValueError(f"targets has shape {tuple(targets.shape)}: expected {tuple(tokens.shape)}, that of tokens")
    if not (targets != -100).any():
        raise ValueError("targets: all are -100, so there is no mean to take")
    ### BEGIN SOLUTION
    total = int((targets != -100).sum())
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


# %% nbgrader={"grade": true, "grade_id": "accumulate_test_values", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("accumulate", "gradients of parts, added up, and their memory", part="values", hidden="other batches"):
    LOSSES = {  # of 4 sequences, 3 at a time: 26 targets count in the first part, 9 in the second
        3.6984638156134206: "this is the mean of the parts' means: each must be weighted by its share of the counted targets",
        7.396927631226841: "the parts' means are added up, without weights",
        3.6131856872016574: "the parts are weighted by their sequences, not by their counted targets",
        5.54769572342013: "the parts are weighted by `micro`, not by their counted targets",
        2.620731329386779: "the last, shorter part is missing",
        3.5279075587898947: "the last, shorter part is missing",
        3.6156223152338622: "the shares are float32: dividing two integer tensors gives float32, so divide Python numbers (.item())",
    }

    def compared(batch, length, micro, ignored, empty=(), scale=1.0):
        """Up to four sequences fit at once, so `mean_loss` of all of them says what the parts must come to."""
        weights, tokens, targets = a_batch(batch, batch, length, ignored)
        weights = [(scale * weight.detach()).requires_grad_() for weight in weights]
        for row in empty:
            targets[row] = -100
        whole = mean_loss(weights, tokens, targets)
        expected = [gradient.detach() for gradient in torch.autograd.grad(whole, weights)]
        what = f"{batch} sequences, {micro} at a time, {ignored:.0%} of the targets ignored"
        what += f", and all of the sequences {list(empty)}" if empty else ""
        what += f", weights {scale:g} times as large" if scale != 1 else ""
        return judged(weights, tokens, targets, micro, what, whole.item(), expected)

    def judged(weights, tokens, targets, micro, what, loss, expected):
        got, gradients = accumulated(weights, tokens, targets, micro)
        check.equal(len(gradients), len(weights), what="number of gradients")
        for gradient in gradients:
            check.dtype(gradient, weights[0].dtype, what=f"a gradient of {what}")
        cause = cause_of(got, LOSSES, 1e-11)
        if isinstance(got, Tensor) and got.isnan().any():
            cause = "a part in which no target counts has the mean NaN, and NaN · 0 is NaN: leave it out"
        check.shape(got, (), what=f"loss of {what}")
        check.close(got, loss, rtol=1e-11, what=f"loss of {what}", hint=cause)
        scales = [scale for scale in (1 / 2, 2, len(tokens)) if alike(gradients, expected, scale)]
        cause = f"these are {scales[0]:g} times the gradients" if scales else ""
        check.close(list(gradients), expected, rtol=1e-9, atol=1e-13, what=f"gradients of {what}", hint=cause)

    def alike(gradients, expected, scale):
        return all(torch.allclose(g, scale * e, 1e-9, 1e-13) for g, e in zip(gradients, expected, strict=True))

    compared(4, 11, 3, 0.3)
    compared(4, 11, 2, 0.0)
    compared(4, 9, 2, 0.3, empty=(0, 1))
    compared(3, 5, 1, 0.3, empty=(2,))
    compared(2, 5, 4, 0.3)
    compared(4, 7, 3, 0.3, scale=300.0)
    many = a_batch(13, 13, 5)  # too many for one call: the numbers are literal
    loss, gradients = accumulated(*many, 4)
    what = "13 sequences of 5 tokens, 4 at a time"
    check.close(loss, 3.527753752468846, rtol=1e-9, what=f"loss of {what}")
    sizes = [float(gradient.norm()) for gradient in gradients]
    check.close(sizes, [0.21688452718, 0.249278472556, 0.242705098022], rtol=1e-9, what=f"norms of gradients of {what}")
    weights, tokens, targets = a_batch(7, 4, 9)
    _, gradients = accumulated([weight.detach().float().requires_grad_() for weight in weights], tokens, targets, 2)
    check.dtype(gradients[0], torch.float32, what="gradient of a float32 weight")
    there(forget_calls)  # their references mean nothing in the process of a rank
    whole = 3 * 8 * 29 * 64 * 512  # a token has 29 logits, in float64; some tensors of this size live at once
    run = on_cluster(Cluster(1), large_batch, accumulated, 64, 512, 2, memory=whole / 4)
    large = run.results[0]
    what = "64 sequences of 512 tokens, 2 at a time"
    check.close(large[0], 3.5271784901538057, rtol=1e-9, what=f"loss of {what}")
    sizes = [float(gradient.norm()) for gradient in large[1]]
    check.close(
        sizes, [0.055572701005, 0.055162632513, 0.062502049775], rtol=1e-9, what=f"norms of gradients of {what}"
    )
    check.true(
        run.memory[0] < whole / 4,
        f"{what}, took {run.memory[0] / 2**20:.0f} MiB: the activations of the whole batch take {whole / 2**20:.0f} MiB or "
        f"more, and those of a part about {whole / 16 / 2**20:.0f} MiB",
    )
    ### BEGIN HIDDEN TESTS

    def by_sequence(weights, tokens, targets):
        """Loss and gradients of the whole, added up sequence by sequence: no mean is taken of several."""
        total, loss, gradients = int((targets != -100).sum()), 0.0, [torch.zeros_like(weight) for weight in weights]
        for row, goal in zip(tokens[:, None], targets[:, None], strict=True):
            if counted := int((goal != -100).sum()):
                share = mean_loss(weights, row, goal) * (counted / total)
                loss += share.item()
                for gradient, more in zip(gradients, torch.autograd.grad(share, weights), strict=True):
                    gradient += more
        return loss, gradients

    check.close(
        list(large[1]), by_sequence(*a_batch(3, 64, 512))[1], rtol=1e-7, atol=1e-12, what=f"gradients of {what}"
    )
    for seed in range(6):
        rng = check.rng(seed)
        batch, micro = int(rng.integers(1, 12)), int(rng.integers(1, 5))
        made = a_batch(100 + seed, batch, int(rng.integers(1, 20)), float(rng.uniform(0, 0.9)))
        for row in (int(rng.integers(batch)), *(range(min(micro, batch)) if seed % 3 == 0 else ())):
            made[2][row] = -100
        made[2][-1, 0] = 5
        judged(*made, micro, f"{batch} sequences, {micro} at a time", *by_sequence(*made))
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "accumulate_test_apart", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("accumulate", "results that stay as they are", part="apart", hidden="another batch"):

    def results_stay(weights, tokens, targets, micro):
        has_graph, own, once, later, again = there(apart, accumulated, weights, tokens, targets, micro)
        wrong = "the loss or a gradient still requires gradients: return it without its graph, detached"
        check.true(not has_graph, wrong)
        ones = [torch.ones_like(weight) for weight in weights]
        check.equal(own, ones, what="`.grad` of the weights after a call, which was 1 before it")
        check.close(later, once, what="gradients of a first call, after `.grad` was zeroed and a second batch computed")
        check.close(again, once, what="gradients of a third call, with the batch and the weights of the first")
        return float(torch.cat([gradient.flatten() for gradient in once]).norm())

    size = results_stay(*a_batch(7, 4, 9), 2)
    wrong = (
        f"gradients of 4 sequences have norm {size:.3g}, expected about 0.676: only gradients of the batch count here"
    )
    check.true(0.676 / 4 < size < 0.676 * 4, wrong)
    ### BEGIN HIDDEN TESTS
    results_stay(*a_batch(8, 7, 5), 3)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
term("gradient accumulation")
hint(
    "accumulate",
    "What weight must a part's mean have, so that the weighted means add up to the mean over all?",
    "A part's mean times its number of counted targets is its sum. Add up the sums, and divide by the number of counted targets of the whole batch: that is the mean.",
    "`torch.autograd.grad(share, weights)` gives gradients and touches no `.grad`. A part in which nothing counts must be left out: NaN · 0 is NaN.",
)
debrief(
    "accumulate",
    """A part's mean times its counted targets is a sum, and sums add up. The count of the whole batch must be known before
    the first backward pass, which is why trainers now look at all parts before they begin. Gradients in tensors of your own
    make the function repeatable; with `.grad` the caller has to set it to None between two steps.""",
    parts=("values", "apart"),
)
weights, tokens, targets = a_batch(0, 8, 64, ignored=0.0)
targets[:4, 16:] = -100
counts = [int((targets[:4] != -100).sum()), int((targets[4:] != -100).sum())]
show.against_prediction("padded_weight", counts[1] / counts[0], unit="×", source="model: counted")


def gradient_of(parts):
    """Gradients of a weighted sum of the losses of parts, [(rows, weight)]."""
    shares = [torch.autograd.grad(mean_loss(weights, tokens[r], targets[r]) * weight, weights) for r, weight in parts]
    return torch.cat([sum(each).reshape(-1) for each in zip(*shares, strict=True)])


with reveal("padded_weight"):
    first, second = slice(0, 4), slice(4, 8)
    whole = gradient_of([(first, counts[0] / sum(counts)), (second, counts[1] / sum(counts))])
    each = gradient_of([(slice(i, i + 1), int((targets[i] != -100).sum()) / sum(counts)) for i in range(8)])
    averaged = gradient_of([(first, 0.5), (second, 0.5)])
    rounding, error = (float((g - whole).norm() / whole.norm()) for g in (each, averaged))
    show.table(
        [
            ["weighted by counted targets, 8 parts", f"{rounding:.1e}"],
            ["weighted equally, `loss / steps`", f"{error:.1e}"],
        ],
        ["two ways to add up", "distance from the whole batch's gradient, relative"],
    )
    print("The first distance is rounding in float64; the second comes from a different loss function.")
    assert rounding < 1e-14 and error > 1e-2

# %% [markdown]
# ## 5 · States that live elsewhere
#
# Once activations are recomputed, masters and states are most of what is left. They are used once per step, so they can live in
# host memory or in files (**offloading**). One chunk at a time is fetched, updated, and written back. Step `t` of AdamW, with
# moments `m` and `v`:
#
# ```python
# p.mul_(1 - lr * weight_decay)
# m.lerp_(g, 1 - beta1)
# v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
# denominator = (v.sqrt() / (1 - beta2**t) ** 0.5).add_(eps)
# p.addcdiv_(m, denominator, value=-lr / (1 - beta1**t))
# ```
#
# *Worked example.* A parameter of 10 numbers with `chunk` = 4: chunks of 4, 4 and 2. Each moment file has 4 · 10 = 40 bytes.
#
# ### Exercise 6 (18 points)
#
# `adamw_from_files(folder, parameter, gradient, step, chunk, options) -> Tensor`: one AdamW step, with its moments in
# `exp_avg.bin` and `exp_avg_sq.bin` in `folder`: raw float32, one number per parameter, in flat order. The folder gets no
# other file.
#
# - Step 1 makes the folder if it is missing, and begins with moments of zeros in new files, whatever the folder holds.
# - From step 2 on a missing file is a `FileNotFoundError` with its name, and one of the wrong size a `ValueError` with its name
#   and bytes. A step that is refused leaves both files as they are.
# - Returns the new parameter. `parameter` and `gradient` (float32, contiguous, any shape, not empty) stay as they are.
# - Parameter and moments equal those of `torch.optim.AdamW(foreach=False)` **to the last bit**: the operations above on
#   float32 tensors, in this order.
# - Besides the new parameter and the files, only tensors of `chunk` numbers are in memory. This is measured.


# %% nbgrader={"grade": false, "grade_id": "offload", "locked": false, "schema_version": 3, "solution": true, "task": false}
def adamw_from_files(folder: str, parameter: Tensor, gradient: Tensor, step: int, chunk: int, options: AdamW) -> Tensor:
    """The parameter after one AdamW step whose moments lie in `folder`."""
    for name, value in (("step", step), ("chunk", chunk)):
        if value < 1:
            raise ValueError(f"{name} = {value}: expected at least 1")
    for name, tensor in (("parameter", parameter), ("gradient", gradient)):
        if tensor.dtype != torch.float32:
            raise TypeError(f"{name} has dtype {tensor.dtype}: expected torch.float32")
    ### BEGIN SOLUTION
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


# %% nbgrader={"grade": true, "grade_id": "offload_test_values", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("offload", "AdamW with its moments in files", part="values", hidden="other shapes, options and chunks"):

    def resident(parameter, options):
        """PyTorch's optimizer, with everything in memory."""
        return torch.optim.AdamW(
            [parameter],
            lr=options.lr,
            betas=(options.beta1, options.beta2),
            eps=options.eps,
            weight_decay=options.weight_decay,
            foreach=False,
        )

    def confront(shape, chunk, options, steps, seed, largest=1.0):
        """Both optimizers side by side: ours from files, PyTorch's with everything in memory."""
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(shape, generator=generator)
        gradients = [torch.randn(shape, generator=generator) * 10.0 ** (t % 4 - 2) for t in range(1, steps + 1)]
        gradients[0].view(-1)[3] *= largest
        found = steps_from_files(adamw_from_files, start, gradients, chunk, options)
        theirs = start.clone().requires_grad_()
        optimizer = resident(theirs, options)
        before = start
        for step, (ours, files, kept, gradient) in enumerate(found, 1):
            theirs.grad = gradients[step - 1].clone()
            optimizer.step()
            case = f"step {step} of {tuple(shape)}, {chunk} elements at a time"
            case += f", one gradient {largest:g} times as large" if largest != 1 else ""
            check.shape(ours, tuple(shape), what=f"parameter after {case}")
            check.equal(kept, before, what=f"the parameter that was passed at {case}", hint="update a copy")
            check.equal(
                gradient, gradients[step - 1], what=f"the gradient that was passed at {case}", hint="it stays as it is"
            )
            for name, content in zip(("exp_avg", "exp_avg_sq"), files, strict=True):
                check.equal(len(content), 4 * start.numel(), what=f"bytes of {name}.bin after {case}")
                moment = torch.frombuffer(bytearray(content), dtype=torch.float32).reshape(shape)
                check.equal(
                    moment,
                    optimizer.state[theirs][name],
                    what=f"{name}.bin after {case}",
                    hint=moment_cause(name, step, moment, optimizer.state[theirs][name], chunk),
                )
            after, expected = ours, theirs.detach()
            if math.isinf(largest):  # then one number is NaN, which equals nothing
                after, expected = (each.nan_to_num(9.0, math.inf, -math.inf) for each in (after, expected))
            cause = cause_at(step, ours, theirs.detach(), start, options.lr)
            check.equal(after, expected, what=f"parameter after {case}", hint=cause)
            before = ours

    def moment_cause(name, step, moment, expected, chunk):
        if not moment.any():
            return "the file holds nothing but zeros: write each chunk back"
        off, last = moment.flatten() != expected.flatten(), moment.numel() // chunk * chunk
        if not off[:last].any():
            return "only the last, shorter chunk is wrong"
        kept = "; or the moments of the step before are not used" if step > 1 else ""
        line = "second" if name == "exp_avg" else "third"
        return (
            f"the {line} line of the text, over all chunks; another form of the same formula rounds differently{kept}"
        )

    def cause_at(step, ours, theirs, start, lr):
        if step > 1:
            return "the moments in the files are right, so an operation on the parameter is wrong: look at this step's bias corrections, and at the order"
        moved = float(((ours - start).abs() / lr).median())
        if 2.9 < moved < 3.5:
            return f"in its first step Adam moves numbers by lr, and here by {moved:.1f} · lr: that happens without the bias corrections"
        if torch.allclose(ours, theirs, 1e-5, 1e-6):
            return "the values differ by rounding: the same operations in another order"
        return ""

    def goes_on(shape, chunk, options, step, seed):
        """Check a step whose moments come from given files, which no earlier call has written."""
        generator = torch.Generator().manual_seed(seed)
        start, gradient, m = torch.randn((3, *shape), generator=generator)
        v = torch.rand(shape, generator=generator)
        files = [moment.numpy().tobytes() for moment in (m, v)]
        [(ours, after, _, _)] = steps_from_files(adamw_from_files, start, [gradient], chunk, options, step, files)
        theirs = start.clone().requires_grad_()
        theirs.grad = gradient
        optimizer = resident(theirs, options)
        optimizer.state[theirs] = {"step": torch.tensor(step - 1.0), "exp_avg": m, "exp_avg_sq": v}
        optimizer.step()
        case = f"step {step} of {tuple(shape)} from files that no call has written"
        for name, content, expected in (("exp_avg", after[0], m), ("exp_avg_sq", after[1], v)):
            check.equal(content, expected.numpy().tobytes(), what=f"{name}.bin after {case}")
        cause = "the moments are in the files, and nowhere else"
        check.equal(ours, theirs.detach(), what=f"parameter after {case}", hint=cause)

    confront((6, 5), 8, AdamW(), 3, seed=0)
    confront((67, 33), 500, AdamW(lr=0.02, beta1=0.8, eps=1e-5, weight_decay=0.2), 4, seed=1)
    goes_on((9,), 4, AdamW(lr=0.02), 5, seed=5)
    confront((3, 5), 4, AdamW(), 3, seed=7, largest=1e25)  # its square is infinite
    confront((3, 5), 4, AdamW(), 1, seed=7, largest=math.inf)
    ### BEGIN HIDDEN TESTS
    confront((7, 11, 3), 100, AdamW(lr=0.02, beta1=0.8, beta2=0.95, eps=1e-5, weight_decay=0.2), 4, seed=2)
    confront((129,), 1000, AdamW(weight_decay=0.0), 3, seed=3)
    confront((9, 4), 1, AdamW(lr=0.1), 2, seed=4)
    goes_on((5, 3), 4, AdamW(beta1=0.8, weight_decay=0.1), 12, seed=6)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "offload_test_files", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("offload", "files of an older run, missing or of another size", part="files", hidden="other files"):

    def first_step(old, what):
        """Step 1 in a folder that holds files equals step 1 in an empty one."""
        arguments = torch.linspace(-1, 1, 10), [torch.ones(10)], 4, AdamW(), 1
        [(fresh, expected, _, _)] = steps_from_files(adamw_from_files, *arguments)
        [(found, files, _, _)] = steps_from_files(adamw_from_files, *arguments, old)
        check.equal(found, fresh, what=what, hint="step 1 begins with zeros, whatever is there")
        check.equal([len(content) for content in files], [40, 40], what=f"bytes of the files after {what}")
        check.equal(files, expected, what=f"the files after {what}")

    names, _, _ = there(second_step, adamw_from_files, 10, 4)
    check.equal(names, ["exp_avg.bin", "exp_avg_sq.bin"], what="the files in the folder after a step")
    first_step((b"\x01" * 48, b"\x02" * 48), "step 1 in a folder that holds a longer, older run")
    first_step((b"\x41" * 40, b"\x41" * 40), "step 1 in a folder that holds an older run")
    first_step((b"\x41" * 8, b"\x41" * 8), "step 1 in a folder that holds a shorter, older run")

    def refused(kind, files, names, step=2):
        with in_folder(files) as folder:
            try:
                adamw_from_files(str(folder.path), torch.ones(10), torch.ones(10), step, 4, AdamW())
                found = None
            except Exception as error:
                found = error
            after = {name: folder.read(name) for name in files}
        case = f"step {step} of 10 numbers, bytes of files { {name: len(content) for name, content in files.items()} }"
        got = "a result" if found is None else f"{type(found).__name__}: {found}"
        check.true(issubclass(type(found), kind), f"expected {kind.__name__} for {case}, got {got}")
        for name in names:
            check.true(
                name in str(found), f"the {kind.__name__} for {case} says {str(found)!r}: expected {name!r} in it"
            )
        changed = [name for name in files if after[name] != files[name]]
        check.true(
            not changed, f"{case}: refused, but {changed} changed. Look at both files before you write to either"
        )

    right = bytes(range(40))
    refused(FileNotFoundError, {}, ["exp_avg"])
    refused(FileNotFoundError, {"exp_avg.bin": right}, ["exp_avg_sq.bin"])
    refused(ValueError, {"exp_avg.bin": right, "exp_avg_sq.bin": right[:36]}, ["exp_avg_sq.bin", "36"])
    refused(ValueError, {"exp_avg.bin": right + b"1234", "exp_avg_sq.bin": right}, ["exp_avg.bin", "44"])
    ### BEGIN HIDDEN TESTS
    refused(ValueError, {"exp_avg.bin": right, "exp_avg_sq.bin": right + b"\x00"}, ["exp_avg_sq.bin", "41"], step=3)
    refused(ValueError, {"exp_avg.bin": b"", "exp_avg_sq.bin": right}, ["exp_avg.bin", "0"])
    refused(FileNotFoundError, {"exp_avg_sq.bin": right}, ["exp_avg.bin"], step=9)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "offload_test_chunks", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("offload", "one chunk at a time", part="chunks", hidden="the last number"):
    MiB, elements = 1 << 20, 1 << 21
    run = on_cluster(Cluster(1), large_step, adamw_from_files, elements, elements // 64, memory=50 * MiB)
    what = f"a step of {elements:,} numbers, {elements // 64:,} at a time"
    check.close(run.results[0][0], 0.99899, rtol=5e-3, what=f"the first number after {what}")
    check.true(
        run.memory[0] < 50 * MiB,
        f"{what}, took {run.memory[0] / MiB:.0f} MiB. The parameter, its gradient, the new parameter and two files of 8 MiB each "
        "are 40 MiB, so expected less than 50: besides these, only one chunk may be in memory",
    )
    elements = 1 << 20
    _, tensors, objects = there(second_step, adamw_from_files, elements, elements // 64)
    check.true(
        tensors + objects < 5 * MiB,
        f"step 2 of {elements:,} numbers, {elements // 64:,} at a time, allocated {tensors / MiB:.1f} MiB in tensors of more than "
        f"two chunks, and {objects / MiB:.1f} MiB in Python's objects and NumPy's arrays. The new parameter is one such tensor of "
        "4 MiB, so expected less than 5. Reading a whole file, copying the gradient or taking whole rows needs more",
    )
    ### BEGIN HIDDEN TESTS
    check.close(run.results[0][1], 0.99899, rtol=5e-3, what=f"the last number after {what}")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "offload",
    "np.memmap(path, np.float32, 'w+', shape=(n,)) makes a file of zeros, 'r+' opens an existing one. torch.from_numpy shares memory with an array. Copy a slice of the memmap out, update it, and assign it back.",
    "The flat view of a contiguous tensor is `tensor.view(-1)`; a slice of it is a view, so an operation in place changes the tensor. Clone the parameter once, at the beginning.",
)
debrief(
    "offload",
    """Adam treats each number alone, so chunks of any size give the same bits, and only one chunk has to be in memory at a
    time. `lerp_` is m + w·(g − m) in one operation: `m.mul_().add_()` is the same on paper but rounds differently, which shows
    from the second step on.""",
    parts=("values", "files", "chunks"),
)
predict(
    "journey",
    "AdamW's two moments of 6.7 billion parameters, in FP32, go to the GPU and back over PCIe 5.0 at 63 GB/s, one direction at a time. How many seconds does that take per step?",
    unit="s",
)

# %% [markdown]
# ## 6 · How long is the journey?
#
# The journey can overlap with the update. With two **buffers** the next chunk is on its way while this one is updated. One
# **channel** carries all fetches and writes, one after another: first the fetches of the first `buffers` chunks; then, whenever
# an update is done, its write, and behind it the next fetch into the same buffer.
#
# Move the sliders: when does the second buffer save most?

# %% tags=["demo"] jupyter={"source_hidden": true}
explore(budget.draw_journey, fetch=(0.5, 4.0, 0.5, 1.0), update=(0.5, 6.0, 0.5, 2.0), write=(0.5, 4.0, 0.5, 1.0))
journey = 2 * 2 * 4 * SEVEN.parameters_count() / h100.host_link_bandwidth
work = 3 * SEVEN.flops_per_token(2048) * 8 * 2048 / (0.4 * h100.rate("bf16"))
show.against_prediction("journey", round(journey, 2), unit="s", source="model: bytes over bandwidth")
with reveal("journey"):
    print(f"Forward and backward pass of 8 × 2,048 tokens, at an assumed 40% of the peak: {work:.2f} s.")
    print(
        "In the picture a second buffer hides most of the transfers or of the updates, whichever take less time, and saves most\n"
        "when both take equally long. A third finds little left to hide, unless chunks are irregular."
    )

# %% [markdown]
# ## 7 · You choose
#
# You have three levers: smaller microbatches, recomputation, and offloading. `needs(job, plan)` and `duration(job, plan)` say
# what a plan costs. Recomputation makes the work a third longer, each microbatch adds `job.overhead`, and offloading adds the
# journey. A `Plan` has `micro`, `k` (0: nothing recomputed) and `offload`; a `Job` has `layers`, `batch`, `capacity` and the
# bytes and seconds that the two functions use (`??needs` shows them).
#
# *Worked example.* A job has 20 GB of weights and gradients, 40 GB of states, 10 GB of activations per sequence, and a GPU of 80
# GB. With a margin of a tenth, 72 GB may be used, so one sequence at a time fits (70 GB) and two do not (80 GB).
#
# ### Exercise 7 (12 points)
#
# `choose_plan(job, margin) -> Plan`: a plan that fits (it needs at most (1 − margin) · `job.capacity` bytes) and whose step
# takes at most 2% longer than that of the fastest such plan.
#
# - 1 ≤ `micro` ≤ `job.batch`; `k` is 0 or a divisor of `job.layers`.
# - The margin leaves room for the CUDA context, workspaces and fragmentation.
# - If no plan fits, raise a `ValueError` that contains `capacity`.


# %% nbgrader={"grade": false, "grade_id": "choose", "locked": false, "schema_version": 3, "solution": true, "task": false}
def choose_plan(job: Job, margin: float) -> Plan:
    """A plan that fits with the margin, and takes hardly longer than the fastest that does."""
    ### BEGIN SOLUTION
    segments = [0] + [k for k in range(1, job.layers + 1) if job.layers % k == 0]
    plans = [
        Plan(micro, k, offload)
        for micro in range(1, job.batch + 1)
        for k in segments
        for offload in (False, True)
        if needs(job, Plan(micro, k, offload)) <= (1 - margin) * job.capacity
    ]
    if not plans:
        raise ValueError(f"capacity = {job.capacity:g}: no plan fits with a margin of {margin:.0%}")
    return min(plans, key=lambda plan: duration(job, plan))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "choose_test_outcome", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose", "a plan that fits and is fast", part="outcome", hidden="other jobs and margins"):
    GB = 1e9
    JOBS = [  # name, layers, b, c, head, weights, states, batch, seconds, overhead, link, capacity
        Job("1.3B", 24, 8e6, 0.15 * GB, 0.6 * GB, 5 * GB, 16 * GB, 32, 0.045, 0.01, 63 * GB, 86 * GB),
        Job("6.7B", 32, 17e6, 0.3 * GB, 0.6 * GB, 27 * GB, 81 * GB, 16, 0.22, 0.02, 63 * GB, 86 * GB),
        Job("long sequences", 24, 0.13 * GB, 2.4 * GB, 6 * GB, 5 * GB, 16 * GB, 4, 1.2, 0.02, 63 * GB, 86 * GB),
        Job("very deep", 128, 0.1 * GB, 0.3 * GB, 1 * GB, 20 * GB, 40 * GB, 4, 0.5, 0.05, 63 * GB, 86 * GB),
        Job("high overhead", 24, 8e6, 0.15 * GB, 0.6 * GB, 5 * GB, 16 * GB, 64, 0.01, 0.2, 63 * GB, 43 * GB),
        Job("two large layers", 2, 0.1 * GB, 2 * GB, 1 * GB, 5 * GB, 16 * GB, 2, 0.1, 0.02, 63 * GB, 10 * GB),
    ]

    def outcome(best, job, margin):
        """`best` is the number of seconds per step of the fastest plan that fits."""
        allowed = (1 - margin) * job.capacity
        found = choose_plan(job, margin)
        for name, low, high in (("micro", 1, job.batch), ("k", 0, job.layers)):
            value = getattr(found, name)
            whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
            check.true(
                whole and low <= value <= high, f"{job.name}: {name} = {value!r}, expected an int from {low} to {high}"
            )
        plan = Plan(int(found.micro), int(found.k), bool(found.offload))
        check.true(
            plan.k == 0 or job.layers % plan.k == 0, f"{job.name}: k = {plan.k} is not a divisor of {job.layers} layers"
        )
        size, seconds = needs(job, plan), duration(job, plan)
        only_without = " It would fit without the margin." * (size <= job.capacity)
        check.true(
            size <= allowed,
            f"{job.name}, margin {margin:.0%}: {plan} needs {size / GB:.1f} GB, and at most {allowed / GB:.1f} may be used.{only_without}",
        )
        check.true(
            seconds <= 1.02 * best,
            f"{job.name}, margin {margin:.0%}: {plan} takes {seconds:.2f} s per step, and a plan that fits takes {best:.2f}. "
            f"Of yours, recomputation is {job.batch * job.seconds / 3 if plan.k else 0:.2f} s, overhead {math.ceil(job.batch / plan.micro) * job.overhead:.2f} s, the journey {2 * job.states / job.link if plan.offload else 0:.2f} s",
        )
        if job in JOBS:
            check.note(f"{job.name}: seconds per step", seconds, best, "s")

    for best, job in zip((1.47, 6.17143, 5.38794, 2.76667, 1.65333, 0.814603), JOBS, strict=True):
        outcome(best, job, 0.1)
    outcome(1.47, JOBS[0], 0.0)
    # two sequences at a time would fit only with segments of 3 or 4 layers, which do not divide 11
    outcome(1.02, Job("eleven layers", 11, GB, GB, 0.0, GB, 0.0, 2, 0.01, 0.5, 63 * GB, 16 * GB), 0.1)
    # with half of the capacity allowed, three and ten sequences at a time just fit
    for best, capacity in ((0.9, 8), (0.3, 22)):
        outcome(best, Job(f"{capacity} GB", 1, GB / 2, GB, 0.0, GB, 0.0, 10, 0.01, 0.2, 63 * GB, capacity * GB), 0.5)
    # 104 sequences at a time fit, in two parts
    outcome(0.3, Job("200 sequences", 2, 1e6, 5e6, 1e6, GB, GB, 200, 0.001, 0.05, 63 * GB, 3.5 * GB), 0.1)
    ### BEGIN HIDDEN TESTS

    def every_plan(job):
        """Return all plans for a job. The check needs the fastest one that fits."""
        segments = [0, *(k for k in range(1, job.layers + 1) if job.layers % k == 0)]
        return [Plan(m, k, o) for m in range(1, job.batch + 1) for k in segments for o in (False, True)]

    for seed in range(12):
        rng = check.rng(seed)
        layers, b = int(rng.choice([8, 24, 48, 96])), float(rng.uniform(5e6, 2e8))
        c = b * float(rng.uniform(1.5, 25))
        weights = float(rng.uniform(2, 30)) * GB
        states, head = 3 * weights * float(rng.uniform(0.3, 1.0)), float(rng.uniform(0.1, 3)) * GB
        least = weights + layers * b + c + head
        made = Job(
            f"job {seed}",
            layers,
            b,
            c,
            head,
            weights,
            states,
            int(rng.integers(1, 17)),
            float(rng.uniform(0.02, 1)),
            float(rng.uniform(0.005, 0.3)),
            63 * GB,
            least * float(rng.uniform(1.3, 6)),
        )
        margin = float(rng.choice([0.0, 0.05, 0.2]))
        fitting = [plan for plan in every_plan(made) if needs(made, plan) <= (1 - margin) * made.capacity]
        outcome(min(duration(made, plan) for plan in fitting), made, margin)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "choose_test_errors", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose", "a job that fits nowhere", part="errors", hidden="other such jobs"):
    huge = Job("70B", 80, 34e6, 0.6e9, 0.6e9, 280e9, 840e9, 8, 2.0, 0.02, 63e9, 86e9)
    check.raises(ValueError, choose_plan, huge, 0.1, names="capacity")
    check.accepts(choose_plan, Job("1B", 2, 1e9, 1e9, 1e9, 4e9, 12e9, 1, 2.0, 0.02, 63e9, 86e9), 0.1)
    ### BEGIN HIDDEN TESTS
    just = Job("just", 1, 1e9, 1e9, 1e9, 1e9, 1e9, 1, 1.0, 0.1, 1e9, 5e9)
    check.equal(choose_plan(just, 0.0).micro, 1, what="micro of a job of one sequence")
    check.raises(ValueError, choose_plan, just, 0.5, names="capacity")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "choose",
    "No lever is free: each further microbatch costs an overhead, recomputation costs a third of the work, and offloading costs the journey, once per step. Which is cheapest depends on the job.",
    "There are few plans: microbatches up to the batch, divisors of the layers and 0, offloading or not. Try them all.",
)
debrief(
    "choose",
    """Trying all plans is practical while there are only a few thousand. For jobs like these, the result follows a useful
    rule: accumulate first, because a smaller microbatch usually costs least; recompute when not even one sequence fits, or when
    the overhead per microbatch is high; offload states when they alone fill the GPU. Segments of √(L·b/c) layers hold the
    least, but that matters only in models with many layers that keep little each.""",
    parts=("outcome", "errors"),
)

# %% [markdown]
# ## 8 · All of it at once
#
# A small GPT trains for two steps, all at once, and then within a budget of 8 MB: *your* account describes the job, *your*
# `choose_plan` decides, and *your* schedule, accumulation and AdamW carry it out, watched by *your* tracker. The reference
# replaces what is missing, and the output says so.

# %% tags=["demo"] jupyter={"source_hidden": true}
import tempfile

CONFIG, BATCH, LENGTH, BUDGET = GPTConfig.tiny(layers=8), 8, 128, 8e6
TRAINING = budget.Training(CONFIG, BATCH, LENGTH)
if parts := together("account", "tracker", "recompute", "accumulate", "offload", "choose"):
    one, all_at_once = parts.account(CONFIG, 1, LENGTH, 2), parts.account(CONFIG, BATCH, LENGTH, 2)
    weights, b = one.parameters + one.gradients, 4 * LENGTH * CONFIG.width
    head = one.peak - one.parameters - one.states - CONFIG.layers * one.layer  # what is alive at the loss besides
    job = Job("tiny", CONFIG.layers, b, one.layer, head, weights, one.states, BATCH, 0.02, 0.002, 1e8, BUDGET)
    plan = parts.choose_plan(job, 0.1)

    def from_files(folder, parameter, gradient, step):
        return parts.adamw_from_files(folder, parameter, gradient, step, 4096, AdamW())

    def planned():
        with tempfile.TemporaryDirectory() as folder:
            TRAINING.within(
                plan.micro,
                plan.k,
                folder if plan.offload else None,
                schedule=parts.schedule,
                accumulated=parts.accumulated,
                update=from_files,
            )

    lines, peaks, trained = [], [], []
    for run in (TRAINING.plain, planned):
        lines.append(budget.tracked(run))
        peaks.append(parts.live_bytes(run).peak)
        trained.append(TRAINING.parameters)
    sizes = zip(("all at once", str(plan)), (all_at_once.peak, needs(job, plan)), peaks, lines, strict=True)
    show.table(
        [
            [name, *(f"{size / 1e6:.2f}" for size in (counted, peak, line.peak_bytes))]
            for name, counted, peak, line in sizes
        ],
        ["two steps", "MB, counted", "MB, by your tracker", "MB, by the library's"],
    )
    show.figure(
        budget.draw_within(*lines, BUDGET, peaks, ("All at once", "Your plan, on a larger scale")),
        "the same two steps, all at once and within the budget",
    )
    far = float(np.linalg.norm(trained[1] - trained[0]) / np.linalg.norm(trained[0]))
    print(
        f"The parameters of the two runs are {far:.0e} of their size apart: the same training, in {peaks[1] / peaks[0]:.0%} of the memory."
    )

# %% [markdown]
# ## In practice
#
# On a GPU, `torch.cuda.max_memory_allocated()` is the most that tensors held and `max_memory_reserved()` the most that PyTorch
# took from the driver; the difference is fragmentation and cache. A recorded history
# (`torch.cuda.memory._record_memory_history()`) becomes a picture at <https://docs.pytorch.org/memory_viz>.
# `torch.utils.checkpoint.checkpoint(…, use_reentrant=False)` recomputes (last cell; Megatron-Core: `--recompute-granularity`). FSDP2
# (`CPUOffloadPolicy`) and DeepSpeed (`offload_optimizer`) offload states.
#
# ## What to remember
#
# - **Count storages, not tensors.** A view keeps all of the storage that it looks into; two views of it count once.
# - With Adam, parameters, gradients, masters and states come to 16 bytes per parameter. **Activations** grow with batch × length.
# - The peak is a *moment*: maxima of different moments must not be added up.
# - Segments of k layers hold (L/k)·b + k·c, so k = 1 is best until L = 2·c/b.
# - Accumulation equals the big batch if each part is weighted by the number of targets that **count** in it.
# - States are used once per step, so they can live elsewhere if the link is fast enough.
#
# The dives hold a post-mortem, selective recomputation, offloading measured, and twelve claims. Next: `07_feeding_the_gpu`.
#
# ## In your own words
#
# A colleague wants to fine-tune 8 billion parameters on one GPU of 80 GB, with sequences of 8,192 tokens, in BF16 with AdamW.
# It runs out of memory in the first step. In which order do you try recomputation, smaller microbatches and offloading? For
# each: which number of the account makes it the right first move, what does it cost, and how do you see that it worked?

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# First states and masters in host memory: with parameters and gradients they are 16 bytes per parameter, 128 GB, so nothing
# fits. States and masters are 96 GB of it, and the journey at 63 GB/s takes 3 s per step. Next recomputation: a
# sequence keeps 51 GB and needs 8 more at the loss, 75 with the parameters, which leaves no margin. Inputs of 67 MB in
# place of 1.5 GB per layer leave 3.6 GB, for a third more arithmetic. Smaller microbatches come last: activations grow
# with the batch, and each part costs its overhead. `max_memory_allocated()` must fall by these bytes.

# %% tags=["demo"] jupyter={"source_hidden": true}
from torch.utils.checkpoint import checkpoint


def grads_of(run):
    """Gradients and live bytes of four blocks."""
    for parameter in stack.parameters():
        parameter.grad = None
    torch.manual_seed(1)
    x = torch.randn(4, 32, stack_config.width, requires_grad=True)
    with LiveStorage(stack) as live:
        for block in list(stack)[:4]:
            x = run(block, x)
        x.sum().backward()
    return [p.grad.clone() for p in stack[0].parameters()], live.timeline.peak_of("activation")


plain, plain_bytes = grads_of(lambda block, x: block(x, angles))
again, again_bytes = grads_of(lambda block, x: checkpoint(block, x, angles, use_reentrant=False))
assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
print(
    f"four blocks: {readable_bytes(plain_bytes)} of activations, with checkpoint {readable_bytes(again_bytes)}; the gradients are equal bit for bit"
)
calibration()
