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
#     title: What does one token cost?
#     minutes: 195
#     withholds: [threeloops.product.decode, threeloops.product.quantized, threeloops.product.batching, threeloops.inner.kernels.attention, threeloops.lab.drawings]
#     edition: 2
# ---

# %% [markdown]
# # What does one token cost?
#
# ![All weights of a model and the keys and values of earlier tokens go through the chip for one new token](attachment:opening.png)
#
# A language model writes one token at a time, and every token needs a pass over all of its weights. What makes that
# cheaper?
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import math
import time
from dataclasses import dataclass, replace

import torch
from threeloops.hardware import accelerator
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
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.training.cluster import Cluster
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

torch.set_num_threads(1)  # so that times depend less on what else runs


@dataclass(frozen=True)
class Served:
    """A model as it is served."""

    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    weight_bytes: float  # per parameter
    cache_bytes: float  # per number of a key or a value


@dataclass(frozen=True)
class Device:
    """A GPU: bytes/s, FLOP/s and bytes."""

    bandwidth: float
    flops: float
    memory: float


class OutOfBlocks(RuntimeError):
    """More blocks were asked for than are free."""


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def number_in(value):
    """A number of any kind as a float; NaN for everything else."""
    try:
        return math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        return math.nan


def cause_of(got, expected, slips, rtol=1e-4, atol=1e-5):
    """Return the first cause whose value was given, or "". `slips` maps causes to the value or values that they give."""

    def near(value):
        if isinstance(value, list):
            return any(map(near, value))
        return (
            value is not None and value.shape == got.shape and torch.allclose(got.double(), value.double(), rtol, atol)
        )

    if not torch.is_tensor(got) or near(expected):
        return ""
    return next((cause for cause, value in slips.items() if near(value)), "")


# Test cells run these functions in the process of the answer.


def flops_of(CachedAttention, kv_heads, chunks):
    """Return for each call the FLOPs of its matrix products, and its result."""
    attention, found = CachedAttention(kv_heads), []
    for chunk in chunks:
        with FlopCounterMode(display=False) as counter:
            got = attention.attend(*chunk)
        found.append((counter.get_total_flops(), got))
    return found


def last_of_many(CachedAttention, kv_heads, chunks):
    """Return the result of the last call."""
    attention, got = CachedAttention(kv_heads), None
    for chunk in chunks:
        got = attention.attend(*chunk)
    return got


def accepted(accept, draft, model, guessed, noise):
    """Return what `accept` says of each list of guesses: how many are kept, and the chances of the next token."""
    runs = zip(guessed, noise, strict=True)
    found = [accept(guesses, draft.clone(), model.clone(), own) for guesses, own in runs]
    return [kept for kept, _ in found], torch.stack([chances for _, chances in found])


def live(Blocks, count, size, history):
    """Run a history of ("append", name, tokens), ("fork", name, new) and ("free", name) on a manager, with a memory in
    which tokens are really written through the tables. Returns the first thing that is wrong, or ""."""
    said = []
    try:
        wrong = lived(Blocks(count, size), count, size, history, said)
    except NotImplementedError:
        raise
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    return wrong and f"Blocks({count}, {size}) after {'; '.join(said[-6:])}: {wrong}"


def lived(manager, count, size, history, said):
    memory, texts, stamp = {}, {}, 0
    for action, name, *rest in history:
        said.append(f"{action}({', '.join(map(repr, (name, *rest)))})")
        before = {each: list(manager.table(each)) for each in texts}
        if action == "fork":
            manager.fork(name, rest[0])
            texts[rest[0]] = list(texts[name])
        elif action == "free":
            manager.free(name)
            del texts[name]
        else:
            old, table = texts.get(name, []), before.get(name, [])
            shared = len(old) % size > 0 and any(table[-1] in before[each] for each in before if each != name)
            copies = [tuple(copy) for copy in manager.append(name, rest[0])]
            found = list(manager.table(name))
            texts[name] = old + [stamp + each for each in range(rest[0])]
            stamp += rest[0]
            needed = -(-len(texts[name]) // size)
            if len(found) != needed:
                return f"the table of {name!r} is {found}: {len(texts[name])} tokens need {needed} blocks of {size}"
            place = len(old) // size
            if shared and found[place] == table[-1]:
                return (
                    f"append returned {copies}, and block {table[-1]} is still in the table of {name!r}: expected "
                    f"[({table[-1]}, a fresh block)]: its last block is partly filled and shared"
                )
            wanted = [(table[-1], found[place])] if shared else []
            if copies != wanted:
                why = "its last block is partly filled and shared" if shared else "no shared block is written"
                return f"append returned {copies}, expected {wanted}: {why}"
            for source, target in copies:
                memory[target] = list(memory.get(source, []))
            for position in range(len(old), len(texts[name])):
                cells = memory.setdefault(found[position // size], [None] * size)
                cells += [None] * (size - len(cells))
                cells[position % size] = texts[name][position]
        tables = {each: list(manager.table(each)) for each in texts}
        for each, text in texts.items():
            blocks, needed = tables[each], -(-len(text) // size)
            if not all(type(block) is int and 0 <= block < count for block in blocks) or len(blocks) != needed:
                return f"the table of {each!r} is {blocks}: expected {needed} blocks from 0 to {count - 1}"
            for position, token in enumerate(text):
                block = blocks[position // size]
                if memory.get(block, [None] * size)[position % size] != token:
                    others = [other for other in tables if other != each and block in tables[other]]
                    return f"position {position} of {each!r} lies in block {block} and no longer holds its token" + (
                        f": {others[0]!r} has that block too, and one of them has written into it" if others else ""
                    )
        held = len({block for blocks in tables.values() for block in blocks})
        if manager.available() != count - held:
            return f"available() = {manager.available()}, expected {count - held}: the tables hold {held} of {count} blocks"
    return ""


def packs(quantize, weight, group, scales, steps, case, slips=None):
    """`scales` and `steps` are expected. `slips` maps causes to other scales or steps."""
    weight, expected, steps = torch.as_tensor(weight), torch.tensor(scales), torch.tensor(steps)
    rows, columns = weight.shape
    slips = {cause: torch.tensor(value) for cause, value in (slips or {}).items()}
    packed, scales = quantize(weight, group)
    check.shape(scales, tuple(expected.shape), what=f"scales, {case}")
    check.dtype(scales, torch.float32, what=f"scales, {case}")
    multiples = {
        "this is max |w|: divide it by 7": 7 * expected,
        "this is max |w| / 8: steps go from −7 to 7": 7 * expected / 8,
        "this is max |w| / 7.5: steps go from −7 to 7": 7 * expected / 7.5,
    }
    cause = cause_of(scales, expected, multiples | slips, 1e-5, 1e-9)
    check.close(scales, expected, rtol=1e-5, atol=1e-9, what=f"scales, {case}", hint=cause)
    check.shape(packed, (rows, -(-columns // 2)), what=f"packed, {case}")
    check.dtype(packed, torch.uint8, what=f"packed, {case}")
    low, high = (packed & 15).long(), (packed >> 4).long()
    codes, swapped = (torch.stack(pair, -1).flatten(1)[:, :columns] for pair in ((low, high), (high, low)))
    halves = torch.cat((low, high), 1)[:, :columns]
    readings = {
        "the halves of the bytes are exchanged: the code of column 2j goes in the low half": swapped - 8,
        "the first half of a row is in the low halves: two neighbours share a byte": halves - 8,
        "8 was not added: steps are kept as they are, modulo 16": (codes + 8) % 16 - 8,
        "7 was added instead of 8": codes - 7,
    }
    cause = cause_of(codes - 8, steps, slips, 0, 0)
    if not torch.equal(codes - 8, steps):
        cause = next((name for name, value in readings.items() if torch.equal(value, steps)), cause)
    check.equal(codes - 8, steps, what=f"steps, that is codes − 8, {case}", hint=cause)


def unpacks(dequantize, packed, scales, group, expected, case, slips=None):
    """`expected` weights come back. `slips` maps causes to other weights."""
    expected, slips = torch.tensor(expected), {cause: torch.tensor(value) for cause, value in (slips or {}).items()}
    back = dequantize(torch.tensor(packed, dtype=torch.uint8), torch.tensor(scales), group, expected.shape[1])
    check.shape(back, tuple(expected.shape), what=f"dequantize, {case}")
    cause = cause_of(back, expected, slips, 1e-4, 1e-7)
    check.close(back, expected, rtol=1e-4, atol=1e-7, what=f"dequantize, {case}", hint=cause)
    check.dtype(back, torch.float32, what=f"dequantize, {case}")


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
from matplotlib.patches import Rectangle
from threeloops.figures import ON_LIGHT

plot, axes = figure(width=9.5, height=2.9)
axes.barh([1], [4.2], left=0, height=0.8, color=palette.sky, alpha=0.7)
axes.text(2.1, 1, "all weights", ha="center", va="center", weight="bold", size=12, color=ON_LIGHT)
for place in range(14):
    axes.barh([0], [0.22], left=0.3 * place, height=0.8, color=palette.orange, alpha=0.75)
axes.text(2.1, -0.62, "keys and values of the tokens so far", ha="center", va="center", size=11)
for height in (1, 0):
    axes.annotate(
        "",
        (6.0, 0.5 + 0.1 * (2 * height - 1)),
        (4.4, height),
        arrowprops={"arrowstyle": "->", "color": palette.ink, "lw": 1.6},
    )
axes.add_patch(Rectangle((6.1, 0.05), 1.3, 0.9, fill=False, ec=palette.ink, lw=1.6))
axes.text(6.75, 0.5, "GPU", ha="center", va="center", size=12)
axes.annotate("", (8.4, 0.5), (7.5, 0.5), arrowprops={"arrowstyle": "->", "color": palette.ink, "lw": 1.6})
axes.text(8.5, 0.5, "one token", ha="left", va="center", weight="bold", size=12)
axes.set(xlim=(-0.1, 9.9), ylim=(-0.95, 1.6))
axes.axis("off")
show.figure(
    plot, "All weights of a model and the keys and values of earlier tokens go through the chip for one new token"
)

# %% [markdown]
# ## 1 · Keys and values that stay
#
# A model reads its prompt in one pass (**prefill**) and then writes the answer token by token (**decode**). In
# attention, the query of a new token meets the keys and values of all earlier tokens. Those never change, because no
# token sees a later one, so we keep them: the **KV cache**.
#
# Queries have `heads` heads of `head_dim` numbers each. Keys and values have only `kv_heads` heads, and neighbouring
# query heads share one of them (grouped-query attention, lab 04).
#
# A layer projects each token once, when it arrives, to its query, key and value. `whole_attention` below has no cache. To use
# it for a new token, you would need the queries, keys and values of all tokens, and it would compute all results again. It
# leaves out the rotary position embeddings that real models apply to queries and keys. You can call it in this notebook, but
# your answer cannot call it in graded runs.
#
# *Worked example.* Three tokens are in the cache, and a chunk of two arrives, at positions 3 and 4. The first new token sees
# keys 0 to 3, the second sees keys 0 to 4. A mask that starts counting at the chunk would let the first see only key 0. With 4
# heads, 2 key-value heads and a head_dim of 8, a token has 4 · 8 numbers in its query, and 2 · 8 each in its key and value.
# Scores and results for 2 queries and 5 keys take 2 · 2 · 2 · 5 · 4 · 8 = 1,280 FLOPs.
#
# ### Exercise 1 (20 points)
#
# `CachedAttention(kv_heads)` is the attention of one layer, for a batch of sequences that grow together.
#
# - `attend(q, k, v)` takes the queries of the new tokens, (batch, new, heads · head_dim), and their keys and values,
#   (batch, new, kv_heads · head_dim), and leaves them unchanged. Each token is passed only once. `attend` returns what
#   `whole_attention` of all tokens so far would return for the new tokens, in the shape of `q`.
# - If n tokens are new and the cache then holds t tokens, torch's matrix products in a call may take 4 · n · t · heads ·
#   head_dim FLOPs per sequence of the batch. With a long cache, memory is measured too: scores and masks of n · t numbers
#   fit, and those of t · t numbers do not.
# - `truncate(length)` forgets all tokens from position `length` on; `attend` continues from there. If `length` is
#   negative or larger than the number of cached tokens, forget nothing and raise a `ValueError` that says so:
#   `length = 9 of 5 tokens`.


# %% tags=["setup", "oracle"] nbgrader={"grade": false, "grade_id": "whole_attention", "locked": true, "schema_version": 3, "solution": false, "task": false}
def whole_attention(q, k, v, kv_heads):
    """Compute causal attention of all tokens. The result has the shape of q, (batch, tokens, heads · head_dim)."""
    head_dim = k.shape[-1] // kv_heads
    q, k, v = (each.unflatten(-1, (-1, head_dim)).transpose(1, 2) for each in (q, k, v))
    group = q.shape[1] // kv_heads  # neighbouring query heads that share a key head
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.mT / head_dim**0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(future, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)


# %% tags=["demo"]
predict(
    "recompute",
    "A small GPT writes 128 tokens, starting from one. How many times as much arithmetic does it take without a cache as with one?",
    unit="×",
)


# %% nbgrader={"grade": false, "grade_id": "CachedAttention", "locked": false, "schema_version": 3, "solution": true, "task": false}
class CachedAttention:
    """Attention of one layer that keeps the keys and values of earlier tokens."""

    def __init__(self, kv_heads: int):
        ### BEGIN SOLUTION
        self.kv_heads, self.keys, self.values = kv_heads, None, None
        ### END SOLUTION

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention of the new tokens over all tokens so far."""
        ### BEGIN SOLUTION
        head_dim = k.shape[-1] // self.kv_heads
        q, k, v = (each.unflatten(-1, (-1, head_dim)).transpose(1, 2) for each in (q, k, v))
        if self.keys is not None:
            k, v = torch.cat((self.keys, k), 2), torch.cat((self.values, v), 2)
        self.keys, self.values = k, v
        group = q.shape[1] // self.kv_heads
        scores = q @ k.repeat_interleave(group, 1).mT / head_dim**0.5
        positions = torch.arange(k.shape[2])
        future = positions > positions[-q.shape[2] :, None]
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        return (weights @ v.repeat_interleave(group, 1)).transpose(1, 2).flatten(2)
        ### END SOLUTION

    def truncate(self, length: int) -> None:
        """Forget all tokens from position `length` on."""
        ### BEGIN SOLUTION
        kept = 0 if self.keys is None else self.keys.shape[2]
        if not 0 <= length <= kept:
            raise ValueError(f"length = {length} of {kept} tokens: expected 0 to {kept}")
        if kept:
            self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "CachedAttention_test_values", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("CachedAttention", "what new tokens see", part="values", hidden="other sizes, heads and chunks"):

    def attended(tokens, kv_heads, sees, scale=True, interleaved=False):
        """One process, all tokens; `sees(query, key)` says which keys a token sees."""
        head_dim = tokens[1].shape[-1] // kv_heads
        q, k, v = (each.double().unflatten(-1, (-1, head_dim)).transpose(1, 2) for each in tokens)
        heads = torch.arange(q.shape[1])
        of = heads % kv_heads if interleaved else heads // (len(heads) // kv_heads)
        at = torch.arange(q.shape[2])
        scores = (q @ k[:, of].mT / (head_dim**0.5 if scale else 1)).masked_fill(~sees(at[:, None], at), -torch.inf)
        return (scores.softmax(-1) @ v[:, of]).transpose(1, 2).flatten(2)

    def causal(query, key):
        return key <= query

    def grows(batch, chunks, heads, kv_heads, head_dim, seed, huge=False):
        """With `huge`, queries are −2¹⁵ and keys 2¹⁶, so that all scores are equal and far below 0."""
        tokens = [
            drawn(batch, sum(chunks), count * head_dim, seed=seed + place)
            for place, count in enumerate((heads, kv_heads, kv_heads))
        ]
        if huge:
            tokens[:2] = [
                torch.full_like(each, number) for each, number in zip(tokens, (-32768.0, 65536.0), strict=False)
            ]
        attention, start = CachedAttention(kv_heads), 0
        for new in chunks:
            given = [each[:, start : start + new].clone() for each in tokens]
            before = [each.clone() for each in given]
            got = attention.attend(*map(inout, given))
            so_far = [each[:, : start + new] for each in tokens]
            rows = slice(start, start + new)
            masks = {
                "": causal,
                f"the mask counts from the chunk's first token and forgets the {start} before it": lambda q, k, s=start: (
                    k <= q - s
                ),
                "tokens see later ones of their chunk": lambda q, k, end=start + new: k < end,
                "a token sees one key too many, that of the next token": lambda q, k: k <= q + 1,
                "tokens do not see themselves": lambda q, k: (k < q) | (k == q) & (q == 0),
                "only keys of the same chunk are seen": lambda q, k, s=start: (k <= q) & (k >= s),
            }
            slips = {cause: attended(so_far, kv_heads, sees)[:, rows] for cause, sees in masks.items()}
            expected = slips.pop("")
            slips["the scores are not divided by √head_dim"] = attended(so_far, kv_heads, causal, scale=False)[:, rows]
            slips["query head h uses key head h % kv_heads: neighbouring query heads share a key head"] = attended(
                so_far, kv_heads, causal, interleaved=True
            )[:, rows]
            what = f"attend of {new} token{'s' * (new > 1)} after {start}, batch {batch}, {heads} heads, {kv_heads} key heads"
            what += ", all scores are −4,294,967,296" * huge
            check.close(got, expected, rtol=1e-4, atol=1e-5, what=what, hint=cause_of(got, expected, slips))
            for name, each, old in zip("qkv", given, before, strict=True):
                check.true(torch.equal(each, old), f"`{name}` was changed by {what}: arguments stay unchanged")
            start += new

    def weighs(expected, keys):
        """One head with a head_dim of 1. The queries are 1, so the scores are the keys. The values are 8, 16 and 32."""
        q, k = torch.ones(1, 3, 1), torch.tensor(keys)[None, :, None]
        got = CachedAttention(1).attend(q, k, torch.tensor([8.0, 16.0, 32.0])[None, :, None])
        check.shape(got, (1, 3, 1), what="the result")
        check.close(got[0, :, 0], expected, rtol=1e-4, what=f"attend of 3 tokens, whose scores are {keys}")

    grows(1, [4], 2, 2, 4, seed=1)
    grows(1, [3, 1, 1], 2, 2, 4, seed=2)
    grows(1, [3, 2, 4], 2, 2, 4, seed=3)
    grows(2, [2, 3, 1], 4, 2, 2, seed=4)
    grows(1, [3, 2, 1], 2, 1, 4, seed=5, huge=True)
    weighs([8.0, 13.848469, 25.923611], [100.0, 101.0, 102.0])
    weighs([8.0, 12.0, 32.0], [0.0, 0.0, 2.0e7])
    ### BEGIN HIDDEN TESTS
    grows(3, [1] * 7, 6, 2, 4, seed=2519842099)
    grows(2, [5, 1, 7, 3], 8, 1, 6, seed=2645751311)
    grows(1, [9, 8], 3, 3, 5, seed=2828427124)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "CachedAttention_test_cost", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("CachedAttention", "arithmetic and memory per call", part="cost", hidden="other sizes"):

    def costs(chunks, heads, kv_heads, head_dim, seed=0):
        tokens = [
            drawn(1, sum(chunks), count * head_dim, seed=seed + place)
            for place, count in enumerate((heads, kv_heads, kv_heads))
        ]
        cut = [list(parts) for parts in zip(*(each.split(chunks, 1) for each in tokens), strict=True)]
        run = on_cluster(Cluster(1), flops_of, CachedAttention, kv_heads, cut)
        expected = whole_attention(*(each.double() for each in tokens), kv_heads).split(chunks, 1)
        total = 0
        for new, (flops, got), wanted in zip(chunks, run.results[0], expected, strict=True):
            total += new
            most = 4 * new * total * heads * head_dim
            what = f"attend of {new} token{'s' * (new > 1)} as the last of {total}"
            whole = ": that is a pass over all tokens so far" if flops == 4 * total**2 * heads * head_dim else ""
            check.true(
                flops <= most,
                f"{what} takes matrix products of {flops:,} FLOPs, expected at most {most:,} for attention{whole}",
            )
            near = (
                torch.is_tensor(got) and got.shape == wanted.shape and torch.allclose(got.double(), wanted, 1e-3, 1e-3)
            )
            check.true(near, f"{what} returns another result, so its FLOPs do not count: see the test above")

    def takes_little_memory(total, new, head_dim, seed=0):
        """Check a long cache. A mask of all tokens would take total² bytes, one of the new tokens new · total."""
        q, k, v = (drawn(1, total, head_dim, seed=seed + place) for place in range(3))
        chunks = [list(parts) for parts in zip(*(each.split(new, 1) for each in (q, k, v)), strict=True)]
        whole = total**2 / 2**20
        run = on_cluster(Cluster(1), last_of_many, CachedAttention, 1, chunks, memory=0.75 * whole * 2**20)
        took = run.memory[0] / 2**20
        scores = q[:, -new:].double() @ k.double().mT / head_dim**0.5
        future = torch.ones(new, total, dtype=torch.bool).triu(1 + total - new)
        expected = scores.masked_fill(future, -torch.inf).softmax(-1) @ v.double()
        what = f"attend of {new} tokens as the last of {total:,}"
        check.close(run.results[0], expected, rtol=1e-3, atol=1e-4, what=what)
        check.true(
            took < 0.75 * whole,
            f"{what} takes {took:.0f} MiB of memory, expected less than {0.75 * whole:.0f} MiB: scores of {new} · "
            f"{total:,} numbers take {4 * new * total / 2**20:.1f} MiB, those of {total:,} · {total:,} take "
            f"{4 * whole:.0f} MiB, and a mask of {total:,} · {total:,} truth values {whole:.0f} MiB",
        )

    costs([8, 1, 1, 4], 4, 2, 8)
    takes_little_memory(3072, 64, 8)
    ### BEGIN HIDDEN TESTS
    costs([1] * 12, 6, 3, 4, seed=3072316825)
    costs([30, 2], 2, 1, 16, seed=3301927249)
    takes_little_memory(3000, 50, 6, seed=3476026645)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "CachedAttention_test_truncate", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("CachedAttention", "tokens that are forgotten", part="truncate", hidden="other lengths"):

    def tokens_of(batch, count, seed):
        """Return q, k and v for 2 heads, which share one key-value head, with a head_dim of 4."""
        return [drawn(batch, count, width, seed=seed + place) for place, width in enumerate((8, 4, 4))]

    def forgets(first, length, then, batch=1, seed=1):
        kept, new = tokens_of(batch, first, seed), tokens_of(batch, then, seed + 6)
        attention = CachedAttention(1)
        for start, end in ((0, first - 1), (first - 1, first)):
            attention.attend(*(each[:, start:end].contiguous() for each in kept))
        attention.truncate(length)
        what = f"attend of {then} token{'s' * (then > 1)} after {first}, cut to {length} by truncate"
        try:
            got = attention.attend(*new)
        except Exception as error:
            check.true(
                False, f"{what}: {type(error).__name__}: {error}. Are both keys and values cut to {length} tokens?"
            )

        def after(count):
            joined = (torch.cat((old[:, :count], own), 1).double() for old, own in zip(kept, new, strict=True))
            return whole_attention(*joined, 1)[:, count:]

        expected = after(length)
        slips = {f"the tokens from {length} on are still seen": after(first)} if length < first else {}
        if length < first:
            slips[f"the token at position {length} is still seen: `length` tokens stay"] = after(length + 1)
        if length > 0:
            slips[f"the token at position {length - 1} is gone: `length` tokens stay"] = after(length - 1)
        check.close(got, expected, rtol=1e-4, atol=1e-5, what=what, hint=cause_of(got, expected, slips))

    def refuses(kept, length):
        attention, old, new = CachedAttention(1), tokens_of(1, kept, seed=3), tokens_of(1, 1, seed=8)
        if kept:
            attention.attend(*old)
        check.raises(ValueError, attention.truncate, length, names=(f"length = {length} of {kept} tokens",))
        expected = whole_attention(*(torch.cat(pair, 1).double() for pair in zip(old, new, strict=True)), 1)[:, -1:]
        what = f"attend of 1 token after {kept}, where truncate({length}) was refused"
        check.close(attention.attend(*new), expected, rtol=1e-4, atol=1e-5, what=what)

    forgets(5, 3, 2)
    forgets(4, 0, 2)
    forgets(3, 3, 1)
    refuses(5, 9)
    refuses(2, -1)
    refuses(0, 1)
    ### BEGIN HIDDEN TESTS
    forgets(9, 8, 3, batch=2, seed=3476026645)
    forgets(7, 1, 5, batch=3, seed=3634241185)
    refuses(6, 7)
    refuses(0, -2)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "CachedAttention",
    "Join the new keys and values to the kept ones along the token dimension, and keep the result. Queries need not be kept.",
    "With `positions = torch.arange(t)`, the new queries are at `positions[-n:]`. Hide a key whose position is larger than the query's.",
    "`truncate` cuts the kept keys and the kept values: `keys[:, :, :length]`.",
)


def matmul_flops(model, calls):
    """FLOPs of matrix products; `calls` are (tokens, tokens so far) of each pass."""
    config = model.config
    attention = 4 * config.layers * config.width
    return sum(
        2 * new * config.matmul_parameters + attention * (new * total - new * (new - 1) / 2) for new, total in calls
    )


tiny = GPT(GPTConfig.tiny())
again, cached = (matmul_flops(tiny, [(t, t) if whole else (1, t) for t in range(1, 129)]) for whole in (True, False))
show.against_prediction("recompute", round(again / cached, 1), unit="×", source="matrix products of the course's GPT")
debrief(
    "CachedAttention",
    """Without a cache, token t costs a pass over t tokens, so n tokens cost about n²/2 passes of one token. With a cache each
    costs one, plus an attention that grows slowly. Prefill and decode are the same call with different sizes. So is a chunk
    of a long prompt, where the mask's offset matters: a wrong one still gives plausible text, and only a comparison finds it.

    If you used `torch.cat`, it copies the whole cache for every token. Servers allocate memory beforehand and write in
    place; section 3 asks how much to reserve. Section 6 needs `truncate`, because the keys of rejected tokens must go.""",
    parts=("values", "cost", "truncate"),
)

# %% [markdown]
# ## 2 · A decode step on the roofline
#
# A decode step computes one new token for each of `batch` sequences. It reads all weights once, whatever the batch, and
# the keys and values of every sequence. Each token costs 2 FLOPs per parameter, and attention adds 4 · layers · heads ·
# head_dim FLOPs per token of context. As in lab 01, a step takes at least bytes / bandwidth and at least FLOPs / peak
# rate. We take the larger, and leave out launches, activations and everything else.
#
# *Worked example.* A model has 8.03 billion parameters, 32 layers, 32 heads and 8 key-value heads of 128, all in 16
# bits. It runs on an H100 (3.35 TB/s, 989.4 TFLOP/s, 85.9 GB). A token's keys and values are 2 · 32 · 8 · 128 · 2 =
# 131,072 bytes, so a context of 8,192 takes 1.07 GB per sequence. With one sequence, a step reads 16.06 + 1.07 = 17.13
# GB in 5.1 ms; its arithmetic takes 0.02 ms. With 47, it reads 66.5 GB in 19.9 ms. 65 sequences still fit into memory,
# but then a step takes 25.6 ms.
#
# ### Exercise 2 (16 points)
#
# - `step_seconds(model, device, batch, context)` is that time. All sequences have `context` tokens.
# - A `model` has the fields parameters, layers, heads, kv_heads, head_dim, weight_bytes (per parameter) and cache_bytes
#   (per element of a key or value). A `device` has bandwidth (bytes/s), flops (FLOP/s) and memory (bytes).
# - `largest_batch(model, device, context, limit)` is the largest batch whose keys and values fit into memory beside the
#   weights, and whose step takes at most `limit` seconds; 0 if there is none.

# %% tags=["demo"]
predict(
    "batch",
    "A GPT with 3 million parameters on one CPU thread of this machine: how many times as many tokens per second does it write with 32 sequences per step as with 1?",
    unit="×",
)
LLAMA = Served(8.03e9, 32, 32, 8, 128, weight_bytes=2, cache_bytes=2)
chip = accelerator("H100 SXM")
H100 = Device(chip.memory_bandwidth, chip.rate("bf16"), chip.memory_bytes)
print(LLAMA, H100, sep="\n")


# %% nbgrader={"grade": false, "grade_id": "decode_step", "locked": false, "schema_version": 3, "solution": true, "task": false}
def step_seconds(model: Served, device: Device, batch: int, context: int) -> float:
    """Seconds of a step, by the roofline."""
    ### BEGIN SOLUTION
    cache = 2 * model.layers * model.kv_heads * model.head_dim * model.cache_bytes * context
    read = model.parameters * model.weight_bytes + batch * cache
    flops = batch * (2 * model.parameters + 4 * model.layers * model.heads * model.head_dim * context)
    return max(read / device.bandwidth, flops / device.flops)
    ### END SOLUTION


def largest_batch(model: Served, device: Device, context: int, limit: float) -> int:
    """The largest batch that fits into memory and the time."""
    ### BEGIN SOLUTION
    cache = 2 * model.layers * model.kv_heads * model.head_dim * model.cache_bytes * context
    batch = 0
    while (
        model.parameters * model.weight_bytes + (batch + 1) * cache <= device.memory
        and step_seconds(model, device, batch + 1, context) <= limit
    ):
        batch += 1
    return batch
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "decode_step_test_seconds", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("decode_step", "seconds of a step", part="seconds", hidden="other models and devices"):
    llama, h100 = Served(8.03e9, 32, 32, 8, 128, 2, 2), Device(3.35e12, 989.4e12, 85.9e9)

    def takes(expected, slips, model, device, batch, context, case):
        got = step_seconds(model, device, batch, context)
        number = number_in(got)
        cause = next((words for slip, words in slips.items() if abs(number - slip) <= 1e-8 * slip), "")
        check.close(
            got,
            expected,
            rtol=1e-9,
            unit="s",
            what=f"step_seconds(…, batch={batch}, context={context}), {case}",
            hint=cause,
        )

    takes(
        0.00511454979821,
        {
            0.004954289824: "there are keys and values: twice as many bytes",
            0.006076109641: "keys and values of kv_heads are kept, not of heads",
            0.00513512284: "this is the sum of both times: take the larger",
            2.057304154e-05: "the bytes take longer here, and were left out",
            0.004794029851: "the keys and values are missing",
        },
        llama,
        h100,
        1,
        8192,
        "the worked example",
    )
    takes(
        0.0198584673815,
        {
            0.2403838405: "the weights are read once per step, not once per sequence",
            0.01232624862: "there are keys and values: twice as many bytes",
            0.06505177997: "keys and values of kv_heads are kept, not of heads",
            0.005114549798: "the context of one sequence was counted, not that of all",
            0.02082540033: "this is the sum of both times: take the larger",
            0.0009669329522: "the bytes take longer here, and were left out",
            0.004794029851: "the keys and values are missing",
        },
        llama,
        h100,
        47,
        8192,
        "the worked example",
    )
    takes(
        0.00974432298848,
        {
            2.87679352: "the weights are read once per step, not once per sequence",
            0.01491396215: "this is the sum of both times: take the larger",
            0.005169639164: "the arithmetic takes longer here, and was left out",
            0.009739235901: "the arithmetic of attention is missing",
            0.009740507673: "attention's arithmetic has all heads, not only kv_heads",
            0.009741779445: "attention has two products, scores and results: 4 FLOPs, not 2",
        },
        llama,
        h100,
        600,
        16,
        "a large batch, a short context",
    )
    takes(
        0.0651995506933,
        {
            19.1961519: "the weights are read once per step, not once per sequence",
            0.08492401672: "keys and values of kv_heads are kept, not of heads",
            0.09002607726: "this is the sum of both times: take the larger",
            0.02482652657: "the arithmetic takes longer here, and was left out",
            0.06492823934: "the arithmetic of attention is missing",
            0.06499606718: "attention's arithmetic has all heads, not only kv_heads",
            0.06506389502: "attention has two products, scores and results: 4 FLOPs, not 2",
        },
        llama,
        h100,
        4000,
        128,
        "a batch so large that arithmetic decides",
    )
    takes(
        0.00151151522388,
        {
            0.009901067463: "the weights are read once per step, not once per sequence",
            0.001355011343: "there are keys and values: twice as many bytes",
            0.002450538507: "keys and values of kv_heads are kept, not of heads",
            0.001237633433: "the context of one sequence was counted, not that of all",
            0.001645610942: "this is the sum of both times: take the larger",
            0.0001340957186: "the bytes take longer here, and were left out",
            0.001276759403: "the keys and values have weight_bytes here: they have cache_bytes",
            0.001198507463: "the keys and values are missing",
        },
        replace(llama, weight_bytes=0.5),
        h100,
        8,
        1000,
        "weights in 4 bits",
    )
    takes(
        0.0204444179104,
        {
            0.05400262687: "the weights are read once per step, not once per sequence",
            0.01261922388: "there are keys and values: twice as many bytes",
            0.06739558209: "keys and values of kv_heads are kept, not of heads",
            0.006750328358: "the context of one sequence was counted, not that of all",
            0.02099819838: "this is the sum of both times: take the larger",
            0.000553780473: "the bytes take longer here, and were left out",
            0.03609480597: "the keys and values have weight_bytes here: they have cache_bytes",
            0.004794029851: "the keys and values are missing",
        },
        replace(llama, cache_bytes=1),
        h100,
        8,
        100_000,
        "keys and values in 8 bits, a long context",
    )
    takes(
        0.09673408,
        {
            0.2552002388: "keys and values of kv_heads are kept, not of heads",
            0.1054407069: "this is the sum of both times: take the larger",
            0.008706626866: "the arithmetic takes longer here, and was left out",
            0.012848: "the arithmetic of attention is missing",
            0.01415872: "attention's arithmetic has all heads, not only kv_heads",
            0.05479104: "attention has two products, scores and results: 4 FLOPs, not 2",
        },
        replace(llama, heads=64, kv_heads=1),
        replace(h100, flops=1e13),
        8,
        100_000,
        "long contexts, slow arithmetic",
    )

    ### BEGIN HIDDEN TESTS
    def answers(model, device, batch, context):
        """Return the seconds of a step, and the causes of other values."""
        weights = model.parameters * model.weight_bytes
        cache = 2 * model.layers * model.kv_heads * model.head_dim * model.cache_bytes * context
        dense, attention = 2 * model.parameters, 4 * model.layers * model.heads * model.head_dim * context
        by_bytes, by_flops = (weights + batch * cache) / device.bandwidth, batch * (dense + attention) / device.flops
        expected = max(by_bytes, by_flops)
        slips = {
            "the weights are read once per step, not once per sequence": max(
                batch * (weights + cache) / device.bandwidth, by_flops
            ),
            "there are keys and values: twice as many bytes": max(
                (weights + batch * cache / 2) / device.bandwidth, by_flops
            ),
            "keys and values of kv_heads are kept, not of heads": max(
                (weights + batch * cache * model.heads / model.kv_heads) / device.bandwidth, by_flops
            ),
            "the context of one sequence was counted, not that of all": max(
                (weights + cache) / device.bandwidth, by_flops
            ),
            "this is the sum of both times: take the larger": by_bytes + by_flops,
            "the arithmetic takes longer here, and was left out": by_bytes,
            "the bytes take longer here, and were left out": by_flops,
            "the arithmetic of attention is missing": max(by_bytes, batch * dense / device.flops),
            "attention's arithmetic has all heads, not only kv_heads": max(
                by_bytes, batch * (dense + attention * model.kv_heads / model.heads) / device.flops
            ),
            "attention has two products, scores and results: 4 FLOPs, not 2": max(
                by_bytes, batch * (dense + attention / 2) / device.flops
            ),
            "the keys and values have weight_bytes here: they have cache_bytes": max(
                (weights + batch * cache * model.weight_bytes / model.cache_bytes) / device.bandwidth, by_flops
            ),
            "the keys and values are missing": max(weights / device.bandwidth, by_flops),
        }
        return expected, {slip: words for words, slip in slips.items()}

    for seed in range(8):
        rng = check.rng(seed)
        model = Served(
            float(10 ** rng.uniform(8, 11)), int(rng.integers(8, 90)), 32, int(rng.choice([1, 4, 8])), 64, 0.5, 1.5
        )
        device = Device(float(10 ** rng.uniform(11, 13)), float(10 ** rng.uniform(12, 15)), 80e9)
        batch, context = int(rng.integers(1, 500)), int(rng.integers(1, 50_000))
        takes(*answers(model, device, batch, context), model, device, batch, context, f"seed {seed}")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "decode_step_test_decision", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("decode_step", "the largest batch", part="decision", hidden="other models and limits"):
    llama, h100 = Served(8.03e9, 32, 32, 8, 128, 2, 2), Device(3.35e12, 989.4e12, 85.9e9)

    def allows(expected, in_memory, in_time, model, device, context, limit, why):
        """`in_memory` sequences fit into memory, and `in_time` take at most `limit`."""
        got = largest_batch(model, device, context, limit)
        cause = ""
        if got != expected and number_in(got) > in_memory:
            cause = f"only {in_memory:,} sequences fit into memory beside the weights"
        elif got != expected and number_in(got) > in_time:
            cause = f"only {in_time:,} sequences take at most the limit"
        elif got != expected and number_in(got) >= 0:
            cause = f"{in_memory:,} sequences fit into memory, and {in_time:,} take at most the limit"
        what = f"largest_batch at context {context}, limit {1e3 * limit:g} ms{': ' * bool(why)}{why}"
        check.equal(got, expected, what=what, hint=cause)

    allows(47, 65, 47, llama, h100, 8192, 0.020, "the worked example")
    allows(65, 65, 78, llama, h100, 8192, 0.030, "the worked example with more time: memory decides")
    allows(0, 65, 0, llama, h100, 8192, 0.004, "not even one sequence is in time")
    allows(0, 0, 2989, replace(llama, parameters=70e9), h100, 8192, 1.0, "the weights do not fit")
    allows(0, 0, 3040, replace(llama, parameters=42.9e9), h100, 8192, 1.0, "the weights fit, and no sequence does")
    allows(1533, 4162, 1533, llama, h100, 128, 0.025, "short contexts: arithmetic decides")
    small = Served(2.0**20, 1, 1, 1, 64, 2, 2)
    exact = Device(1e12, 1e15, 2.0**21 + 4 * 2**18)
    allows(4, 4, 3_814_689, small, exact, 1024, 1.0, "four sequences fit exactly")
    slow = Device(2.0**30, 1e15, 1e9)
    allows(4, 3806, 4, small, slow, 1024, (2.0**21 + 4 * 2**18) / 2**30, "four sequences take exactly the limit")
    ### BEGIN HIDDEN TESTS
    for seed in range(10):
        rng = check.rng(seed)
        model = Served(
            float(10 ** rng.uniform(9, 10.5)), int(rng.integers(8, 90)), 32, int(rng.choice([1, 4, 8])), 128, 1, 1
        )
        device = Device(
            float(10 ** rng.uniform(11.5, 13)), float(10 ** rng.uniform(13, 15)), float(rng.uniform(30e9, 200e9))
        )
        context, limit = int(rng.integers(500, 50_000)), float(10 ** rng.uniform(-2, -0.5))
        cache = 2 * model.layers * model.kv_heads * model.head_dim * context
        flops = 2 * model.parameters + 4 * model.layers * model.heads * model.head_dim * context
        in_memory = max(0, int((device.memory - model.parameters) // cache))
        by_bytes = (limit * device.bandwidth - model.parameters) // cache
        in_time = max(0, int(min(by_bytes, limit * device.flops // flops)))
        allows(min(in_memory, in_time), in_memory, in_time, model, device, context, limit, "")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "decode_step",
    "A token in the cache has a key and a value in every layer, each with kv_heads · head_dim elements. How many tokens does the whole batch have there?",
    "Bytes: those of the cache, plus parameters · weight_bytes once. FLOPs: every term times the batch.",
    "`largest_batch`: raise the batch by one for as long as both conditions hold.",
)
from threeloops.lab.drawings.product import decoding
from threeloops.product.decode import generate
from threeloops.product.request import Sampling

served = GPT(GPTConfig(256, 4, 4, 2, 256, 768, 256)).eval()
rates = {}
for batch in (1, 8, 32):
    generate(served, [[1] * 8] * batch, Sampling(max_tokens=2))
    rounds = []
    for _ in range(3):
        began = time.perf_counter()
        generate(served, [[1] * 8] * batch, Sampling(max_tokens=12))
        rounds.append(time.perf_counter() - began)
    rates[batch] = batch * 12 / min(rounds)
with reveal("batch"):
    show.against_prediction(
        "batch", round(rates[32] / rates[1], 1), unit="×", source="measured here, 12 new tokens each, best of three"
    )
    show.table(
        [(batch, f"{rate:,.0f}") for batch, rate in rates.items()],
        header=("sequences", "tokens/s"),
        caption="On one CPU thread",
    )
    show.busy_notice()


def draw_step(context, weight_bits, cache_bits):
    return decoding.draw_decode_steps(
        LLAMA.parameters * weight_bits / 8,
        2 * LLAMA.layers * LLAMA.kv_heads * LLAMA.head_dim * cache_bits / 8 * context,
        2 * LLAMA.parameters + 4 * LLAMA.layers * LLAMA.heads * LLAMA.head_dim * context,
        (H100.bandwidth, H100.flops, H100.memory),
        f"H100, context {context:,}, {weight_bits}-bit weights, {cache_bits}-bit cache",
    )


explore(
    draw_step,
    labels={"context": "context (tokens)", "weight_bits": "bits per weight", "cache_bits": "bits per cached number"},
    context=[8192, 512, 131072],
    weight_bits=[16, 8, 4],
    cache_bits=[16, 8],
)
debrief(
    "decode_step",
    """A step for one sequence reads 16 GB of weights to write one token, and the arithmetic units are idle for more than 99% of
    it. A second sequence uses the same weights, so its token costs only its own keys and values. That is why servers batch,
    and why they usually run out of memory for keys and values before they run out of arithmetic.

    With long contexts, keys and values outweigh the weights. A larger batch then gains little, and a smaller cache helps
    instead: fewer key-value heads, fewer bits, or a window, where attention sees only the latest tokens (lab 04). These times are lower bounds; a kernel that
    reaches 80% of the bandwidth is good.""",
    parts=("seconds", "decision"),
)

from threeloops.lab.drawings.measured import attention as silicon
from threeloops.lab.drawings.measured.series import draw_floors

predict(
    "one_sequence",
    "FlashAttention-3 on an H100, one layer, 32 heads on 8 key heads of 128: the queries of 64 sequences with 8,192 tokens each take "
    "688 µs. How many µs does that of one such sequence take, with a 64th of the bytes?",
    unit="µs",
)
predict(
    "latent",
    "Multi-head latent attention (DeepSeek-V3) caches 576 numbers per token for all of its 128 heads, where these 8 key heads "
    "cache 2,048. How many times faster does it decode the 64 sequences?",
    unit="×",
)
grouped = {batch: silicon.decode("H100 SXM", batch) for batch in (1, 64)}
latent = silicon.latent_decode("H100 SXM", 64).since(64)
show.against_prediction("one_sequence", round(1e6 * grouped[1].at(8192), 1), unit="µs", source=grouped[1].source)
show.against_prediction("latent", round(grouped[64].at(8192) / latent.at(8192), 2), unit="×", source=latent.source)
if parts := together("decode_step"):
    names = {1: "1 sequence", 64: "64 sequences"}
    layer = replace(LLAMA, parameters=0, layers=1)
    floors = {
        names[batch]: {tokens: parts.step_seconds(layer, H100, batch, tokens) for tokens in series.sizes}
        for batch, series in grouped.items()
    }
    floors["64, latent"] = {tokens: 64 * tokens * 576 * 2 / H100.bandwidth for tokens in latent.sizes}
    with reveal("latent"):
        show.figure(
            draw_floors(
                {"1 sequence": grouped[1], "64 sequences": grouped[64], "64, latent": latent},
                floors,
                "One layer's decode attention on an H100, and lines: the time of its bytes",
                "tokens of each sequence",
                (64, 512, 4096, 32768),
            ),
            "measured times of decode attention by context, and the time of their bytes",
        )
        print(
            f"64 sequences reach {100 * floors['64 sequences'][8192] / grouped[64].at(8192):.0f}% of the bandwidth. One sequence needs "
            f"{1e6 * grouped[1].at(8192):.1f} µs where its bytes need {1e6 * floors['1 sequence'][8192]:.1f}, since even a call with 64 tokens takes "
            f"{1e6 * grouped[1].at(64):.0f} µs. (Its 34 MB fit into the L2 cache, and the same call was timed again and again: in a model it is slower.)"
        )
        print(
            f"Latent attention reads {2048 / 576:.1f} times fewer bytes, but 128 heads share them: 2 · 128 · (576 + 512) FLOPs for 1,152 bytes "
            f"are {2 * 128 * 1088 / 1152:.0f} per byte, close to the ridge point of 295. So bytes and arithmetic both matter."
        )

# %% [markdown]
# ## 3 · Memory in blocks
#
# Nobody knows in advance how long an answer will be, so a server that keeps each cache in one piece has to reserve the
# longest possible one. A **paged** cache hands out blocks instead, of 16 tokens for example. Each sequence has a
# **block table**, the list of its blocks in the order of its tokens, and takes another block only when the last one is
# full.
#
# Sequences can share blocks, for example two answers to one prompt. A sequence that is about to write into a shared
# block first gets a copy of it (**copy-on-write**).
#
# *Worked example.* Blocks hold 4 tokens. `a` has 6 tokens in blocks 0 and 1, so block 1 is half full. Fork `b` from it:
# its table is [0, 1], too. `b` appends one token, which belongs in block 1. So `b` takes block 2, block 1 is copied to
# it, and the table of `b` becomes [0, 2]. Then `a` appends: block 1 now belongs to `a` alone, so nothing is copied.
# When `a` is freed, block 1 is free, while `b` still holds block 0.
#
# ### Exercise 3 (20 points)
#
# `Blocks(count, size)` manages the blocks 0 … count − 1, each for `size` tokens. Any free block will do. Write `append`;
# the other methods are given. You may change them and the attributes.
#
# - `append(name, tokens)`: the sequence, a new one if the name is unknown, grows by `tokens` ≥ 1 tokens, with as few
#   blocks as hold them. Returns the copies to make before the write, [(source, target)], or [].
# - If the write starts in a block that another sequence holds too, a fresh block first takes its place in the table,
#   and (old, fresh) is the copy to return.
# - `fork(name, new)`: `new`, a name that is not in use, gets the same tokens and shares all blocks.
# - `free(name)` forgets a sequence. A block is free when no table holds it.
# - `table(name)` is the sequence's list of blocks, `available()` the number of free blocks.
# - If too few blocks are free, `append` raises `OutOfBlocks("…")`, with any text, and changes nothing. `fork`, `free` and
#   `table` of an unknown name raise `KeyError`.

# %% tags=["demo"]
predict(
    "waste",
    "Answers have 50 to 1,500 tokens, all lengths equally likely, and each reserves a cache for 2,048. What percentage of that memory is still empty when the answers are complete?",
    unit="%",
)


# %% nbgrader={"grade": false, "grade_id": "Blocks", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Blocks:
    """Gives, shares and takes back blocks of a cache."""

    def __init__(self, count: int, size: int):
        self.size = size
        self.unused = list(range(count))
        self.holders = [0] * count  # for each block, how many tables hold it
        self.tables, self.lengths = {}, {}  # blocks and tokens of each name

    def append(self, name: str, tokens: int) -> list[tuple[int, int]]:
        """Grow a sequence; the copies (source, target) to make first."""
        ### BEGIN SOLUTION
        table, length = self.tables.get(name, []), self.lengths.get(name, 0)
        shared = length % self.size > 0 and self.holders[table[-1]] > 1
        needed = -(-(length + tokens) // self.size) - len(table)
        if needed + shared > len(self.unused):
            raise OutOfBlocks(f"{needed + shared} blocks needed, {len(self.unused)} are free")
        fresh = [self.unused.pop() for _ in range(needed + shared)]
        for block in fresh:
            self.holders[block] = 1
        copies = []
        if shared:
            copies = [(table[-1], fresh[0])]
            self.holders[table[-1]] -= 1
            table = table[:-1]
        self.tables[name], self.lengths[name] = table + fresh, length + tokens
        return copies
        ### END SOLUTION

    def fork(self, name: str, new: str) -> None:
        """A second sequence with the same tokens in the same blocks."""
        for block in self.tables[name]:
            self.holders[block] += 1
        self.tables[new], self.lengths[new] = list(self.tables[name]), self.lengths[name]

    def free(self, name: str) -> None:
        """Forget a sequence."""
        for block in self.tables.pop(name):
            self.holders[block] -= 1
            if not self.holders[block]:
                self.unused.append(block)
        del self.lengths[name]

    def table(self, name: str) -> list[int]:
        """The blocks of a sequence, in the order of its tokens."""
        return list(self.tables[name])

    def available(self) -> int:
        """How many blocks are free."""
        return len(self.unused)


# %% nbgrader={"grade": true, "grade_id": "Blocks_test_tables", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("Blocks", "tables that grow and are freed", part="tables", hidden="longer histories"):

    def survives(count, size, history):
        wrong = live(Blocks, count, size, history)
        check.true(not wrong, wrong)

    survives(4, 4, [("append", "a", 6)])
    survives(4, 4, [("append", "a", 4), ("append", "a", 1)])
    survives(6, 4, [("append", "a", 3), ("append", "b", 5), ("append", "a", 1), ("append", "a", 1), ("append", "b", 4)])
    survives(3, 2, [("append", "a", 6), ("free", "a"), ("append", "b", 5), ("append", "b", 1)])
    survives(4, 4, [("append", "a", 3), ("free", "a"), ("append", "a", 2)])
    survives(4, 1, [("append", "a", 2), ("append", "b", 2), ("free", "a"), ("append", "b", 1), ("append", "c", 1)])
    ### BEGIN HIDDEN TESTS
    for seed in range(4):
        rng, history, lengths, size = check.rng(seed), [], {}, int(check.rng(seed + 50).integers(1, 6))
        for _ in range(25):
            name = "abcd"[int(rng.integers(4))]
            if name in lengths and rng.random() < 0.3:
                history.append(("free", name))
                del lengths[name]
            else:
                history.append(("append", name, int(rng.integers(1, 8))))
                lengths[name] = 1
        survives(200, size, history)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "Blocks_test_sharing", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("Blocks", "sequences that share blocks", part="sharing", hidden="random histories"):

    def shares(count, size, history):
        wrong = live(Blocks, count, size, history)
        check.true(not wrong, wrong)

    start = [("append", "a", 6), ("fork", "a", "b")]
    shares(6, 4, start)
    shares(6, 4, [*start, ("append", "b", 1)])
    shares(6, 4, [("append", "a", 9), ("fork", "a", "b"), ("append", "b", 1)])
    shares(6, 4, [*start, ("append", "b", 1), ("append", "a", 1), ("free", "a"), ("append", "b", 4)])
    shares(6, 4, [*start, ("free", "a"), ("append", "b", 1)])
    shares(6, 4, [("append", "a", 8), ("fork", "a", "b"), ("append", "b", 1), ("append", "a", 1)])
    shares(
        9, 4, [*start, ("fork", "b", "c"), ("append", "c", 5), ("append", "a", 2), ("free", "b"), ("append", "c", 1)]
    )
    shares(9, 4, [*start, ("append", "b", 7), ("free", "b"), ("append", "a", 1), ("append", "c", 9)])
    shares(6, 4, [*start, ("free", "b"), ("append", "b", 1), ("append", "a", 1)])
    ### BEGIN HIDDEN TESTS
    for seed in range(6):
        rng, history, lengths, size = check.rng(seed), [], {}, int(check.rng(seed + 50).integers(1, 6))
        for _ in range(30):
            name, other = (chr(97 + int(each)) for each in rng.choice(5, size=2, replace=False))
            what = rng.random()
            if name in lengths and other not in lengths and what < 0.45:
                history.append(("fork", name, other))
                lengths[other] = 1
            elif name in lengths and what < 0.6:
                history.append(("free", name))
                del lengths[name]
            else:
                history.append(("append", name, int(rng.integers(1, 8))))
                lengths[name] = 1
        shares(300, size, history)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "Blocks_test_edges", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("Blocks", "too few blocks, and unknown names", part="edges", hidden="other histories"):

    def full(count, size, history, name, tokens):
        manager = Blocks(count, size)
        for action, *arguments in history:
            getattr(manager, action)(*arguments)
        names = sorted({each for _, *arguments in history for each in arguments if type(each) is str})
        tables, free = {each: list(manager.table(each)) for each in names}, manager.available()
        check.raises(OutOfBlocks, manager.append, name, tokens)
        after = {each: list(manager.table(each)) for each in names}
        case = f"after append({name!r}, {tokens}) raised OutOfBlocks"
        check.equal(after, tables, what=f"tables {case}")
        check.equal(manager.available(), free, what=f"available() {case}")
        if name not in names:
            check.raises(KeyError, manager.table, name)
            check.raises(KeyError, manager.fork, name, "new")
            check.raises(KeyError, manager.free, name)
        room = free * size
        if room:
            manager.append("late", room)
            check.equal(manager.available(), 0, what=f"available() {case}, and all that was free was taken")
        for each in names:
            del tables[each]
            manager.free(each)
            held = {block for blocks in tables.values() for block in blocks}
            wanted = count - len(held) - free
            check.equal(manager.available(), wanted, what=f"available() {case}, and {each!r} was freed")

    full(3, 4, [("append", "a", 9)], "b", 1)
    full(3, 4, [("append", "a", 5)], "b", 5)
    full(2, 4, [("append", "a", 6), ("fork", "a", "b")], "b", 1)
    full(3, 4, [("append", "a", 6), ("fork", "a", "b")], "b", 3)
    manager = Blocks(4, 2)
    manager.append("a", 3)
    manager.free("a")
    check.raises(KeyError, manager.free, "a")
    check.equal(manager.available(), 4, what="available() after free('a') twice")
    check.raises(KeyError, manager.table, "b")
    check.raises(KeyError, manager.fork, "b", "c")
    check.raises(KeyError, manager.table, "c")
    ### BEGIN HIDDEN TESTS
    full(5, 3, [("append", "a", 4), ("append", "b", 3), ("fork", "a", "c")], "c", 9)
    full(4, 1, [("append", "a", 2), ("append", "b", 2)], "a", 1)
    full(4, 5, [("append", "a", 7), ("fork", "a", "b"), ("append", "b", 1)], "a", 9)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "Blocks",
    "A sequence of n tokens needs ⌈n / size⌉ blocks: take those that its table lacks. How many more if the last one is copied?",
    "Only the last block can be partly filled. Copy it if `length % size > 0` and more than one table holds it.",
    "Count the blocks that you need, including the copy, before you change anything. Then `OutOfBlocks` leaves everything as it was.",
)
from matplotlib.patches import Rectangle
from threeloops.figures import ON_LIGHT
from threeloops.product.decode import BlockManager, contiguous_waste, paged_waste

STORY = [
    ("append", "a", 6), ("fork", "a", "b"), ("append", "b", 1), ("append", "a", 1), ("append", "c", 5),
    ("append", "b", 3), ("free", "a"), ("append", "c", 4), ("free", "b"),
]  # fmt: skip


def draw_story(frame):
    manager, tables, lengths, copies = BlockManager(8, 4), {}, {}, []
    for action, name, *rest in STORY[:frame]:
        copies = []
        if action == "append":
            table, length = tables.setdefault(name, []), lengths.get(name, 0)
            copies = manager.grow(table, length + rest[0], written=length)
            lengths[name] = length + rest[0]
        elif action == "fork":
            tables[rest[0]], lengths[rest[0]] = manager.fork(tables[name]), lengths[name]
        else:
            manager.release(tables.pop(name))
            del lengths[name]
    colours = {"a": palette.sky, "b": palette.orange, "c": palette.green}
    plot, axes = figure(width=9.0, height=2.6)
    for block in range(8):
        owners = [name for name in sorted(tables) if block in tables[name]]
        axes.add_patch(Rectangle((block, 0), 0.9, 0.9, fill=False, ec=palette.ink, lw=1.2))
        for row, name in enumerate(owners):
            used = min(4, lengths[name] - 4 * tables[name].index(block))
            share = 0.9 / len(owners)
            axes.add_patch(Rectangle((block, row * share), 0.9 * used / 4, share, color=colours[name], alpha=0.8))
            axes.text(block + 0.06, (row + 0.5) * share, name, va="center", weight="bold", color=ON_LIGHT)
        axes.text(block + 0.45, -0.2, f"{block}", ha="center", va="center")
    for source, target in copies:
        axes.annotate(
            "",
            (target + 0.45, 0.95),
            (source + 0.45, 0.95),
            arrowprops={
                "arrowstyle": "->",
                "color": palette.vermillion,
                "connectionstyle": "arc3,rad=-0.35",
                "lw": 1.8,
            },
        )
        axes.text((source + target) / 2 + 0.45, 1.5, "copy", ha="center", color=palette.vermillion)
    for row, name in enumerate(sorted(tables)):
        axes.text(3 * row, -0.65, f"{name}: {tables[name]}, {lengths[name]} tokens", color=palette.ink)
    last = (
        "nothing yet" if not frame else "{}({})".format(STORY[frame - 1][0], ", ".join(map(str, STORY[frame - 1][1:])))
    )
    axes.set(xlim=(-0.1, 8.1), ylim=(-0.95, 1.75))
    axes.set_title(f"{last}: {manager.free} of 8 blocks are free")
    axes.axis("off")
    return plot


animate(draw_story, range(len(STORY) + 1), seconds=1.2, caption="Blocks given, shared, copied and freed", still=3)

ANSWERS = torch.randint(50, 1501, (10_000,), generator=torch.Generator().manual_seed(0)).tolist()
with reveal("waste"):
    show.against_prediction("waste", round(100 * contiguous_waste(ANSWERS, 2048)), unit="%", source="10,000 answers")
    show.table(
        [("one piece of 2,048 tokens", f"{contiguous_waste(ANSWERS, 2048):.1%}")]
        + [(f"blocks of {size}", f"{paged_waste(ANSWERS, size):.1%}") for size in (1, 16, 64, 256)],
        header=("cache", "empty"),
        caption="When the answers are complete",
    )
debrief(
    "Blocks",
    """A reservation is even emptier while its answer is being written. With block tables nothing is reserved: at most `size` − 1 slots per sequence are empty. The memory saved holds more
    sequences, and section 2 says what a larger batch is worth. Sharing costs one counter per block. A system prompt of 2,000
    tokens is then kept once for all requests (lab 16).

    `append` counts what it needs before it takes anything. A manager that takes blocks one by one and fails halfway loses
    those it has taken. A server with that bug loses some whenever memory is full, until none are left.""",
    parts=("tables", "sharing", "edges"),
)

# %% [markdown]
# ## 4 · Attention through a block table
#
# The keys of a sequence may now lie anywhere: position p of sequence s is in block `tables[s, p // size]`, slot p %
# size. One call attends for one query per sequence, and sequences have different lengths.
#
# As a tensor, the tables have as many columns as the longest sequence needs. The other entries of a row mean nothing.
# Neither do the slots after the last token, which still hold whatever their last owner left, perhaps infinities or NaN.
#
# *Worked example.* Blocks of 4, a table row [7, 2, −1] and a length of 6. Positions 0 to 3 are in block 7, positions 4
# and 5 in the first half of block 2. The second half is not part of the sequence, and giving it a weight of 0 would not
# hide it: 0 · NaN is NaN.
#
# ### Exercise 4 (14 points)
#
# `paged_attention(q, keys, values, tables, lengths)` returns (sequences, heads, head_dim).
#
# - `q` is (sequences, heads, head_dim), `keys` and `values` are (blocks, size, kv_heads, head_dim). `tables` is
#   (sequences, columns) and `lengths` (sequences,), both int64. Every length is at least 1.
# - The query of sequence s sees its `lengths[s]` keys. Neighbouring query heads share a key head, and scores are divided
#   by √head_dim, as in section 1.
# - Nothing else in `tables`, `keys` and `values` changes the result. All arguments stay unchanged, since the other slots
#   may belong to other sequences.


# %% nbgrader={"grade": false, "grade_id": "paged_attention", "locked": false, "schema_version": 3, "solution": true, "task": false}
def paged_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tables: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Each sequence's query over its keys."""
    ### BEGIN SOLUTION
    size, group = keys.shape[1], q.shape[1] // keys.shape[2]
    positions = torch.arange(int(lengths.max()))
    known = positions < lengths[:, None]
    blocks = tables[:, positions // size].where(known, 0)
    k, v = (each[blocks, positions % size].where(known[:, :, None, None], 0) for each in (keys, values))
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("shd,skhd->shk", q, k) / q.shape[2] ** 0.5
    weights = scores.masked_fill(~known[:, None], -torch.inf).softmax(-1)
    return torch.einsum("shk,skhd->shd", weights, v)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "paged_attention_test_values", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("paged_attention", "attention over scattered keys", part="values", hidden="other sizes"):

    def averages(expected, lengths, stored, tables, slips, case, score=0.0):
        """All scores are equal, so the result is the mean of the values that are seen. `stored` has the values of each block."""
        values = torch.tensor(stored)[:, :, None, None]
        q, rows = torch.ones(len(lengths), 1, 1), torch.tensor(tables)
        got = paged_attention(q, torch.full_like(values, score), values.clone(), rows, torch.tensor(lengths))
        check.shape(got, (len(lengths), 1, 1), what="the result")
        for s, number in enumerate(expected):
            cause = next((words for wrong, words in slips.items() if abs(float(got[s]) - wrong) < 1e-3), "")
            what = f"result of sequence {s} of lengths {lengths}, {case}"
            check.close(got[s, 0, 0], number, rtol=1e-4, what=what, hint=cause)

    averages(
        [1.5], [2], [[1.0, 2.0]], [[0]], {1.0: "the last key is missing"}, "one full block of 2 with the values 1 and 2"
    )
    ones = "keys past the length are 0, but still get a weight: hide their scores too"
    averages(
        [10.5, 200.0],
        [6, 2],
        [[16.0, 32.0, 64.0, 128.0], [150.0, 250.0, 500.0, 2000.0], [1.0, 2.0, 4.0, 8.0]],
        [[2, 0], [1, 0]],
        {
            6.2: "the last key is missing",
            150.0: "the last key is missing",
            18.142857: "one key too many is seen: position p is seen if p < length",
            300.0: "one key too many is seen: position p is seen if p < length",
            9.0: "one key too many, of zeros, gets a weight: position p is seen if p < length",
            133.33333: "one key too many, of zeros, gets a weight: position p is seen if p < length",
            31.875: "all slots of its blocks are seen, not only its tokens",
            725.0: "all slots of its blocks are seen, not only its tokens",
            491.33333: "the keys of the longest sequence are seen",
            392.5: "all columns of the table are seen, even blocks that are not its own",
            7.875: ones,
            66.666667: ones,
            100.0: ones,
            50.0: ones,
        },
        "blocks of 4 with the values 16 to 128, 150 to 2,000, and 1 to 8, tables [2, 0] and [1, 0]",
    )
    averages(
        [7 / 3, 1.0],
        [3, 1],
        [[1.0, 2.0, 4.0, 8.0]],
        [[0], [0]],
        {},
        "which share a block with the values 1, 2, 4 and 8",
    )
    averages(
        [7 / 3, 1.0],
        [3, 1],
        [[1.0, 2.0, 4.0, 8.0]],
        [[0], [0]],
        {0.0: "the scores of keys past the length are larger than all others: hide them with −∞"},
        "the same, all scores are −4,294,967,296",
        score=-(2.0**32),
    )

    def weighs(expected, q, keys, values, slips, case):
        """One block of two tokens. `keys` and `values` have a row per token and key head."""
        keys, values, q = torch.tensor(keys)[None], torch.tensor(values)[None], torch.tensor(q)[None]
        got = paged_attention(q, keys, values, torch.tensor([[0]]), torch.tensor([2]))
        check.shape(got, tuple(q.shape), what="the result")
        cause = cause_of(got[0], torch.tensor(expected), {words: torch.tensor(wrong) for words, wrong in slips.items()})
        check.close(got[0], expected, rtol=1e-4, what=f"result for {case}", hint=cause)

    rest, log9 = [0.0] * 15, 2.1972246
    weighs(
        [[14.0, *rest]],
        [[2.0, *rest]],
        [[[0.0, *rest]], [[log9, *rest]]],
        [[[8.0, *rest]], [[16.0, *rest]]],
        {"the scores are not divided by √head_dim": [[15.902439, *rest]]},
        "q · k = 0 and 4 ln 3, head_dim 16: the weights are 1/4 and 3/4",
    )
    for first, second, expected in ((0.0, 2000.0, 16.0), (-2000.0, -2000.0, 12.0), (100.0, 101.0, 13.848469)):
        weighs(
            [[expected]], [[1.0]], [[[first]], [[second]]], [[[8.0]], [[16.0]]], {}, f"scores {first:g} and {second:g}"
        )
    weighs(
        [[1.0], [1.0], [5.0], [5.0]],
        [[0.0]] * 4,
        [[[0.0], [0.0]]] * 2,
        [[[1.0], [5.0]]] * 2,
        {
            "query head h uses key head h % kv_heads: neighbouring query heads share a key head": [
                [1.0],
                [5.0],
                [1.0],
                [5.0],
            ]
        },
        "4 heads and 2 key heads, whose values are 1 and 5",
    )
    ### BEGIN HIDDEN TESTS

    def attends(lengths, size, heads, kv_heads, head_dim, seed, shared=0, spare=2):
        """The first `shared` blocks are in all tables."""
        columns = max(-(-length // size) for length in lengths)
        needed = [-(-length // size) for length in lengths]
        order = check.rng(seed).permutation(shared + sum(max(0, n - shared) for n in needed) + spare).tolist()
        tables, taken = [], shared
        for count in needed:
            own = order[:shared][:count] + order[taken : taken + max(0, count - shared)]
            taken += max(0, count - shared)
            tables.append(own + [0] * (columns - count))
        keys, values = (drawn(len(order), size, kv_heads, head_dim, seed=seed + each) for each in (1, 2))
        q = drawn(len(lengths), heads, head_dim, seed=seed + 3)
        got = paged_attention(q.clone(), keys.clone(), values.clone(), torch.tensor(tables), torch.tensor(lengths))
        check.shape(got, (len(lengths), heads, head_dim), what="the result")
        of = [h * kv_heads // heads for h in range(heads)]
        for s, length in enumerate(lengths):
            blocks, at = [tables[s][p // size] for p in range(length)], [p % size for p in range(length)]
            k, v = (each.double()[blocks, at][:, of] for each in (keys, values))
            weights = (torch.einsum("hd,khd->hk", q[s].double(), k) * head_dim**-0.5).softmax(-1)
            what = f"result of sequence {s} of lengths {lengths}, blocks of {size}, {heads} heads, {kv_heads} key heads"
            check.close(got[s], torch.einsum("hk,khd->hd", weights, v), rtol=1e-4, atol=1e-5, what=what)

    attends([9, 11], 4, 2, 1, 4, seed=5, shared=2)
    attends([1, 17, 4, 30, 16], 16, 6, 2, 8, seed=6)
    attends([13, 1, 2], 1, 8, 1, 4, seed=7)
    attends([40, 33], 5, 3, 3, 6, seed=8, shared=3)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "paged_attention_test_stale", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("paged_attention", "what earlier requests left behind", part="stale", hidden="other sizes"):

    def ignores(expected, lengths, stored, tables, case):
        """Keys are 0, or what the value is where it is rubbish. So the result is the mean of the values that are seen."""
        values = torch.tensor(stored)[:, :, None, None].repeat(1, 1, 1, 4)
        keys = torch.where(values.isfinite() & (values.abs() < 1e3), 0.0, values)
        q = torch.ones(len(lengths), 1, 4)
        keeps(
            torch.tensor(expected)[:, None, None].repeat(1, 1, 4), q, keys, values, torch.tensor(tables), lengths, case
        )

    def keeps(expected, q, keys, values, tables, lengths, case):
        given = {"q": q, "keys": keys, "values": values, "tables": tables, "lengths": torch.tensor(lengths)}
        before = {name: each.clone() for name, each in given.items()}
        what = f"lengths {lengths}, {case}"
        try:
            got = paged_attention(*(inout(each) for each in given.values()))
        except (IndexError, RuntimeError) as error:
            if type(error) is NotImplementedError or "ind" not in str(error):
                raise
            check.true(False, f"{what}: {error}. Is an unused entry of the table taken for a block?")
        nan = torch.is_tensor(got) and bool(got.isnan().any())
        cause = "a weight of 0 does not hide NaN: set keys and values past the length to 0 themselves" * nan
        check.close(got, expected, rtol=1e-4, atol=1e-5, what=f"result for {what}", hint=cause)
        for name, each in given.items():
            same = torch.equal(each.nan_to_num(12345), before[name].nan_to_num(12345))
            check.true(same, f"`{name}` was changed by paged_attention: arguments stay unchanged ({what})")

    nan, inf = float("nan"), float("inf")
    ignores(
        [3.0, 20.0],
        [5, 3],
        [[10.0, 20.0, 30.0, 0.0], [5.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0]],
        [[2, 1, -1], [0, -1, -1]],
        "unused slots hold 0, unused entries of tables -1",
    )
    ignores(
        [3.0, 20.0],
        [5, 3],
        [[10.0, 20.0, 30.0, 1e4], [5.0, 1e4, 1e4, 1e4], [1.0, 2.0, 3.0, 4.0]],
        [[2, 1, 0], [0, 0, 0]],
        "unused slots hold 10,000, unused entries of tables 0",
    )
    ignores(
        [3.0, 20.0],
        [5, 3],
        [[10.0, 20.0, 30.0, nan], [5.0, nan, nan, nan], [1.0, 2.0, 3.0, 4.0]],
        [[2, 1, -1], [0, -1, -1]],
        "unused slots hold NaN, unused entries of tables -1",
    )
    ignores(
        [1.5, 6.0],
        [2, 9],
        [[1.0, 2.0, inf, inf], [2.0, 4.0, 6.0, 8.0], [10.0, inf, inf, inf], [3.0, 5.0, 7.0, 9.0]],
        [[0, 10**6, 10**6, 10**6], [1, 3, 2, 10**6]],
        "unused slots hold inf, unused entries of tables 1,000,000",
    )
    ignores(
        [5.5, 2.0],
        [8, 3],
        [[1.0, 2.0, 3.0, nan], [2.0, 4.0, 6.0, 8.0], [3.0, 5.0, 7.0, 9.0]],
        [[1, 2, 10**6], [0, 10**6, 10**6]],
        "blocks of 4, so the first sequence fills its two, unused entries of tables 1,000,000",
    )
    ### BEGIN HIDDEN TESTS

    def forgets(lengths, size, rubbish, entry, seed):
        needed = [-(-length // size) for length in lengths]
        blocks = check.rng(seed).permutation(sum(needed) + 3).tolist()
        tables = torch.full((len(lengths), max(needed) + 1), entry)
        keys, values = (torch.full((len(blocks), size, 2, 4), rubbish) for _ in range(2))
        wanted, q = [], drawn(len(lengths), 4, 4, seed=seed)
        for s, length in enumerate(lengths):
            own, blocks = blocks[: needed[s]], blocks[needed[s] :]
            tables[s, : needed[s]] = torch.tensor(own)
            k, v = drawn(length, 2, 4, seed=seed + 10 * s + 1), drawn(length, 2, 4, seed=seed + 10 * s + 2)
            at = torch.arange(length)
            keys[torch.tensor(own)[at // size], at % size], values[torch.tensor(own)[at // size], at % size] = k, v
            k, v = k.double().repeat_interleave(2, 1), v.double().repeat_interleave(2, 1)
            weights = (torch.einsum("hd,khd->hk", q[s].double(), k) / 2).softmax(-1)
            wanted.append(torch.einsum("hk,khd->hd", weights, v))
        keeps(torch.stack(wanted), q, keys, values, tables, lengths, f"unused slots hold {rubbish}")

    forgets([1, 16, 7], 8, float("nan"), 99, seed=5)
    forgets([3], 2, float("-inf"), -7, seed=6)
    forgets([5, 3], 4, 1e4, 0, seed=2)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "paged_attention",
    "With `positions = torch.arange(longest)`: `tables[:, positions // size]` are the blocks, `positions % size` the slots in them.",
    "`keys[blocks, slots]` gathers (sequences, longest, kv_heads, head_dim) in one step.",
    "Before the gather, replace meaningless table entries by any valid block. After it, set keys and values past a sequence's length to 0.",
)
debrief(
    "paged_attention",
    """The gather copies all keys and values side by side, and attention then reads them again: three times the traffic of one
    read. On a GPU, a PagedAttention kernel walks over the table and reads each block where it lies; the dives look at ours.
    The result is the same as with contiguous memory, because paging changes only where the bytes lie.

    Masking scores is enough as long as unused slots hold finite numbers. In a server they hold what the last request left,
    and one request with a NaN would spoil others that get its blocks. So either clear blocks when they are handed out, or
    never read past the length.""",
    parts=("values", "stale"),
)

# %% [markdown]
# ## 5 · Four-bit weights
#
# Decoding waits for bytes, so fewer bits per weight make it faster even if the arithmetic stays as it is: weights are
# stored in 4 bits and expanded on the chip (**weight-only quantization**). Every `group` consecutive weights of a row
# share one **scale**, and each weight is stored as a whole number of steps of that size. The price shows in the
# **perplexity**, e to the mean of −log p over a text: 10 means as unsure as among 10 equally likely tokens.
#
# *Worked example.* A group of four: [7, −2.5, 1, 0.6]. The scale is max |w| / 7 = 1, and the steps are [7, −2, 1, 1],
# since `torch.round` rounds ties to the even number. Add 8, so that nothing is negative: the codes are [15, 6, 9, 9].
# Two codes share a byte, the first one in the low half: 15 + 16 · 6 = 111 and 9 + 16 · 9 = 153. The weights come back
# as [7, −2, 1, 1]. A weight moves by at most half a step, a fourteenth of the largest in its group.
#
# ### Exercise 5 (15 points)
#
# - `quantize(weight, group) -> (packed, scales)`: `weight` is (rows, columns). `packed` is (rows, ⌈columns / 2⌉) in uint8,
#   with the code of column 2j in the low half of byte j. `scales` is (rows, ⌈columns / group⌉) in float32: max |w| / 7 of
#   each group.
# - `dequantize(packed, scales, group, columns)` returns the weights that these stand for, (rows, columns) in float32.
# - The last group of a row may be shorter, and the last byte half used. If `group` is odd, some bytes hold codes of two
#   groups. A group of zeros has scale 0 and codes 8, and comes back as zeros. Arguments stay unchanged.

# %% tags=["demo"]
myth("dec-1")
predict(
    "perplexity",
    "A GPT of 228,000 parameters, trained for a minute, gets int4 weights, rounded to the nearest step in groups of 32. By how many percent does its perplexity rise?",
    unit="%",
)


# %% nbgrader={"grade": false, "grade_id": "quantize", "locked": false, "schema_version": 3, "solution": true, "task": false}
def quantize(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of four bits, two per byte, and one scale per group."""
    ### BEGIN SOLUTION
    rows, columns = weight.shape
    groups = -(-columns // group)
    grouped = functional.pad(weight, (0, groups * group - columns)).view(rows, groups, group)
    scales = grouped.abs().amax(-1) / 7
    steps = (grouped / scales[:, :, None].where(scales[:, :, None] > 0, 1)).round()
    codes = (steps + 8).to(torch.uint8).view(rows, -1)[:, :columns]
    codes = functional.pad(codes, (0, columns % 2))
    return codes[:, ::2] | codes[:, 1::2] << 4, scales
    ### END SOLUTION


def dequantize(packed: torch.Tensor, scales: torch.Tensor, group: int, columns: int) -> torch.Tensor:
    """The weights that codes and scales stand for."""
    ### BEGIN SOLUTION
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1)[:, :columns]
    return (codes.float() - 8) * scales.repeat_interleave(group, 1)[:, :columns]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "quantize_test_values", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("quantize", "scales, codes and weights", part="values", hidden="other sizes"):
    packs(
        quantize,
        [[7.0, -2.5, 1.0, 0.6]],
        4,
        [[1.0]],
        [[7, -2, 1, 1]],
        "the worked example",
        {
            "steps are rounded down": [[7, -3, 1, 0]],
            "steps are rounded towards 0": [[7, -2, 1, 0]],
            "ties go to the even number, as with torch.round: −2.5 to −2": [[7, -3, 1, 1]],
        },
    )
    unpacks(
        dequantize,
        [[111, 153]],
        [[1.0]],
        4,
        [[7.0, -2.0, 1.0, 1.0]],
        "the worked example",
        {
            "uint8 has no negative numbers: convert the codes before you subtract 8": [[7.0, 254.0, 1.0, 1.0]],
            "8 was not subtracted from the codes": [[15.0, 6.0, 9.0, 9.0]],
        },
    )
    packs(
        quantize,
        [[7.0, 2.5, -2.5, 0.5, -0.5, 1.5, -1.5, 3.5]],
        8,
        [[1.0]],
        [[7, 2, -2, 0, 0, 2, -2, 4]],
        "weights between two steps",
        {
            "steps are rounded down": [[7, 2, -3, 0, -1, 1, -2, 3]],
            "steps are rounded towards 0": [[7, 2, -2, 0, 0, 1, -1, 3]],
            "ties go to the even number, as with torch.round: 2.5 to 2": [[7, 3, -2, 1, 0, 2, -1, 4]],
            "ties go to the even number, as with torch.round: −2.5 to −2": [[7, 3, -3, 1, -1, 2, -2, 4]],
        },
    )
    pairs = [[0.7, -0.28, 0.1, 0.33, 3.5, -1.2, 0.4, 2.1], [-1.4, 0.52, 0.86, -0.34, 0.021, 0.01, -0.014, 0.004]]
    packs(
        quantize,
        pairs,
        4,
        [[0.1, 0.5], [0.2, 0.003]],
        [[7, -3, 1, 3, 7, -2, 1, 4], [-7, 3, 4, -2, 7, 3, -5, 1]],
        "2 rows of 8, groups of 4",
        {
            "this is the largest weight of the whole row": [[0.5, 0.5], [0.2, 0.2]],
            "this is made of the largest weight, not of the largest |w|": [[0.1, 0.5], [0.1228571, 0.003]],
        },
    )
    unpacks(
        dequantize,
        [[95, 185, 111, 201], [177, 108, 191, 147]],
        [[0.1, 0.5], [0.2, 0.003]],
        4,
        [[0.7, -0.3, 0.1, 0.3, 3.5, -1.0, 0.5, 2.0], [-1.4, 0.6, 0.8, -0.4, 0.021, 0.009, -0.015, 0.003]],
        "2 rows of 8, groups of 4",
        {
            "the scales are not those of the weights' groups": [
                [0.7, -1.5, 0.1, 1.5, 0.7, -1.0, 0.1, 2.0],
                [-1.4, 0.009, 0.8, -0.006, 1.4, 0.009, -1.0, 0.003],
            ]
        },
    )
    packs(
        quantize,
        [[-2.1, -0.5, -1.0, -0.2]],
        4,
        [[0.3]],
        [[-7, -2, -3, -1]],
        "negative weights",
        {"this is made of the largest weight, not of the largest |w|": [[-0.02857143]]},
    )
    packs(
        quantize,
        [[7e-30, -3e-30, 1e-30, 5e-30]],
        4,
        [[1e-30]],
        [[7, -3, 1, 5]],
        "small weights, whose scale is small as well",
    )
    given = torch.tensor(pairs)
    quantize(inout(given), 4)
    check.equal(given, torch.tensor(pairs), what="the weight after quantize")
    codes, factors = torch.tensor([[111, 153]], dtype=torch.uint8), torch.tensor([[0.5]])
    dequantize(inout(codes), inout(factors), 4, 4)
    check.equal(codes, torch.tensor([[111, 153]], dtype=torch.uint8), what="`packed` after dequantize")
    check.equal(factors, torch.tensor([[0.5]]), what="`scales` after dequantize")
    ### BEGIN HIDDEN TESTS

    def agrees(weight, group, case):
        parts = torch.stack([part.double().abs().amax(1) for part in weight.split(group, 1)], 1) / 7
        step = parts.repeat_interleave(group, 1)[:, : weight.shape[1]]
        steps = (weight.double() / step.where(step > 0, 1)).round()
        packs(quantize, weight, group, parts.tolist(), steps.long().tolist(), case)
        codes = functional.pad(steps.long() + 8, (0, weight.shape[1] % 2))
        packed = codes[:, ::2] + 16 * codes[:, 1::2]
        unpacks(dequantize, packed.tolist(), parts.tolist(), group, (steps * step).tolist(), case)

    agrees(drawn(2, 8, seed=1), 4, "2 rows of 8, groups of 4")
    agrees(drawn(7, 96, seed=4) * 0.02, 32, "7 rows of 96, groups of 32")
    agrees(drawn(5, 64, seed=5) * 1e3, 2, "5 rows of 64, groups of 2")
    agrees(-drawn(2, 8, seed=3).abs(), 8, "negative weights, one group per row")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "quantize_test_edges", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("quantize", "short groups, odd rows, zeros", part="edges", hidden="other sizes"):
    packs(
        quantize,
        [[2.8, -1.08, 0.5, 0.3, 0.7, -0.36]],
        4,
        [[0.4, 0.1]],
        [[7, -3, 1, 1, 7, -4]],
        "a row of 6, groups of 4: the last one has 2",
        {"this is the largest weight of the whole row": [[0.4, 0.4]]},
    )
    unpacks(
        dequantize,
        [[95, 153, 79]],
        [[0.4, 0.1]],
        4,
        [[2.8, -1.2, 0.4, 0.4, 0.7, -0.4]],
        "a row of 6, groups of 4: the last one has 2",
    )
    packs(
        quantize,
        [[0.7, 0.12, -0.2, 0.33, -2.1], [-1.4, 0.44, 0.34, -1.0, 0.14]],
        4,
        [[0.1, 0.3], [0.2, 0.02]],
        [[7, 1, -2, 3, -7], [-7, 2, 2, -5, 7]],
        "2 rows of 5, groups of 4: the last byte is half used",
    )
    unpacks(
        dequantize,
        [[159, 182, 1], [161, 58, 15]],
        [[0.1, 0.3], [0.2, 0.02]],
        4,
        [[0.7, 0.1, -0.2, 0.3, -2.1], [-1.4, 0.4, 0.4, -1.0, 0.14]],
        "2 rows of 5, groups of 4: the last byte is half used",
    )
    packs(
        quantize,
        [[0.7, 0.12, -0.2, 2.1, -1.2]],
        3,
        [[0.1, 0.3]],
        [[7, 1, -2, 7, -4]],
        "a row of 5, groups of 3: a byte holds codes of two groups",
    )
    unpacks(
        dequantize,
        [[159, 246, 4]],
        [[0.1, 0.3]],
        3,
        [[0.7, 0.1, -0.2, 2.1, -1.2]],
        "a row of 5, groups of 3: a byte holds codes of two groups",
    )
    packs(
        quantize,
        [[0.7, 0.12, -0.2, 0.33, -0.61]],
        16,
        [[0.1]],
        [[7, 1, -2, 3, -6]],
        "a row of 5, groups of 16: one short group",
    )
    packs(
        quantize,
        [[0.7, 0.12, -0.2, 0.33, 0.0, 0.0, 0.0, 0.0]],
        4,
        [[0.1, 0.0]],
        [[7, 1, -2, 3, 0, 0, 0, 0]],
        "groups of 4, one of them all zeros",
        {"in a group of zeros 0 is divided by 0, which is NaN: its codes are 8": [[7, 1, -2, 3, -8, -8, -8, -8]]},
    )
    unpacks(dequantize, [[136, 136]], [[0.0]], 4, [[0.0] * 4], "nothing but zeros")
    packs(quantize, [[0.0] * 4], 4, [[0.0]], [[0] * 4], "nothing but zeros")
    ### BEGIN HIDDEN TESTS

    def agrees(weight, group, case):
        parts = torch.stack([part.double().abs().amax(1) for part in weight.split(group, 1)], 1) / 7
        step = parts.repeat_interleave(group, 1)[:, : weight.shape[1]]
        steps = (weight.double() / step.where(step > 0, 1)).round()
        packs(quantize, weight, group, parts.tolist(), steps.long().tolist(), case)
        codes = functional.pad(steps.long() + 8, (0, weight.shape[1] % 2))
        packed = codes[:, ::2] + 16 * codes[:, 1::2]
        unpacks(dequantize, packed.tolist(), parts.tolist(), group, (steps * step).tolist(), case)

    agrees(drawn(3, 33, seed=10), 8, "3 rows of 33, groups of 8")
    agrees(drawn(1, 1, seed=11), 32, "one weight")
    agrees(drawn(4, 15, seed=12), 5, "4 rows of 15, groups of 5")
    agrees(drawn(2, 5, seed=13), 3, "2 rows of 5, groups of 3")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "quantize",
    "Pad each row with zeros to whole groups, and view it as (rows, groups, group). Zeros do not change the largest |w|.",
    "Divide by the scale where it is not 0 and by 1 elsewhere: 0 / 0 is NaN, and it is undefined what NaN becomes in uint8.",
    "`codes[:, ::2] | codes[:, 1::2] << 4` packs; `packed & 15` and `packed >> 4` unpack.",
)
from threeloops.product.quantized import Scheme, perplexity, weight_bytes
from threeloops.product.quantized import quantize as quantize_model
from threeloops.product.trained import standard_library, trained

model, (text, unseen) = trained("tiny"), (part.long() for part in standard_library())
seen = torch.stack([text[start : start + 128] for start in range(0, len(text) - 128, len(text) // 32)])
unseen = unseen[:32_768]
plain = perplexity(model, unseen, window=128).value
rows = [("float32", f"{weight_bytes(model) / 1e3:,.0f} kB", f"{plain:.3f}", "")]
rises = {}
for name, method, bits in (("int8", "rtn", 8), ("int4", "rtn", 4), ("int4, GPTQ", "gptq", 4)):
    few = quantize_model(model, method, Scheme(bits, 32), calibration=seen if method == "gptq" else None, head=True)
    found = perplexity(few, unseen, window=128).value
    rises[name] = 100 * (found / plain - 1)
    rows.append((name, f"{weight_bytes(few) / 1e3:,.0f} kB", f"{found:.3f}", f"{rises[name]:+.2f}%"))
with reveal("perplexity"):
    show.against_prediction(
        "perplexity", round(rises["int4"], 2), unit="%", source="measured here on 32,768 unseen bytes"
    )
    show.table(
        rows,
        header=("weights, groups of 32", "size", "perplexity", "rise"),
        caption="The embedding stays in float32. GPTQ chooses codes by their effect on the layer's output (dives)",
    )
calm = [0.31, -0.12, 0.24, -0.35, 0.05, 0.18, -0.27, 0.09]
show.figure(
    decoding.draw_four_bits({"a group of 8": calm, "the same with an outlier": [*calm[:-1], 1.4]}),
    "eight weights and the steps of their group, and the same weights beside an outlier: its large step moves all of them",
)
few_bits = {bits: (8.03e9 * bits / 8, 1.074e9) for bits in (16, 8.125, 4.125)}
faster = {
    batch: [
        (few_bits[16][0] + batch * few_bits[16][1]) / (few_bits[bits][0] + batch * few_bits[bits][1])
        for bits in (8.125, 4.125)
    ]
    for batch in (1, 47)
}
audit(
    "dec-1",
    round(faster[47][1], 2),
    "times faster, int4 at batch 47",
    "model",
    "corrected",
    how=f"the claim does not name the batch, and that decides. 8 billion parameters on an H100, context 8,192, by section 2: at batch 1, where weights are nearly all of the bytes, int8 is {faster[1][0]:.1f}× and int4 {faster[1][1]:.1f}× faster, about as claimed. At batch 47, where most bytes are keys and values, it is {faster[47][0]:.2f}× and {faster[47][1]:.2f}×. Where arithmetic is the limit, as in prefill, weight-only formats gain nothing",
)
debrief(
    "quantize",
    """The largest weight of a group sets its step, so a single outlier coarsens all its neighbours. Smaller groups are more
    accurate and cost more scales: with 16-bit scales, groups of 128 take 4.125 bits per weight and groups of 32 take 4.5.

    A layer that uses the scale of the wrong group still runs and still has the right size; only a comparison with the
    weights finds the mistake. Eight bits cost this model nothing that can be measured, four bits a little more than 1% with
    plain rounding, and GPTQ half of that. This differs from model to model, so measure yours. The arithmetic here stays in 16 or 32 bits; formats whose
    products are computed in few bits, such as FP8 and NVFP4, are in lab 05.""",
    parts=("values", "edges"),
)

# %% [markdown]
# ## 6 · Guess and check
#
# While weights dominate, a step with a few tokens per sequence takes about as long as a step with one. **Speculative
# decoding** (Leviathan et al., 2023) uses that: a small, fast **draft model** guesses a few tokens, and the large
# **target model** computes all of them in one step, like a chunk of a prompt. Guesses are kept up to the first one that
# is rejected.
#
# The output must be distributed as if the target model had drawn it. Let q be the draft's distribution at one position
# and p the target's. A guess g is kept with probability min(1, p[g] / q[g]). If it is rejected, another token is drawn
# from the excess max(0, p − q), divided by its sum.
#
# *Worked example.* q = [0.5, 0.3, 0.2], p = [0.2, 0.5, 0.3]. Guess 0 is kept with probability 0.4; otherwise the excess
# [0, 0.2, 0.1] gives [0, 2/3, 1/3]. So token 1 comes out in two ways: as a kept guess, 0.3 · 1, or after a rejected 0,
# with probability 0.5 · 0.6 · 2/3 = 0.2. Together that is 0.5 = p[1].
#
# ### Exercise 6 (15 points)
#
# `accept(guesses, draft, model, noise) -> (kept, chances)`
#
# - `draft`, (guesses, vocabulary), has the q of each guess; guess i was drawn from `draft[i]`. `model`, (guesses + 1,
#   vocabulary), has the p at the same positions, and in its last row the p after all guesses.
# - `noise[i]` is uniform in [0, 1): guess i is kept if noise[i] · draft[i, guess] < model[i, guess] and all before it
#   are kept.
# - `kept` is how many are kept. `chances`, (vocabulary,), is the distribution of the next token and sums to 1: the
#   excess where a guess was rejected, the last row of `model` if none was.

# %% tags=["demo"]
myth("dec-2")
myth("dec-6")
predict(
    "speculation",
    "Each guess is kept with probability 0.7. How many tokens does a step with 4 guesses give on average, counting the token drawn after them?",
)


# %% nbgrader={"grade": false, "grade_id": "accept", "locked": false, "schema_version": 3, "solution": true, "task": false}
def accept(
    guesses: list[int], draft: torch.Tensor, model: torch.Tensor, noise: torch.Tensor
) -> tuple[int, torch.Tensor]:
    """How many guesses are kept, and what the token after them is to be drawn from."""
    ### BEGIN SOLUTION
    for place, guess in enumerate(guesses):
        if noise[place] * draft[place, guess] >= model[place, guess]:
            excess = (model[place] - draft[place]).clamp(min=0)
            return place, excess / excess.sum()
    return len(guesses), model[len(guesses)]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "accept_test_values", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("accept", "guesses kept, and what comes after", part="values", hidden="other distributions"):
    P, Q, LAST = [0.2, 0.5, 0.3], [0.5, 0.3, 0.2], [0.1, 0.1, 0.8]
    DRAFT, MODEL = [Q, [0.1, 0.5, 0.4]], [P, [0.3, 0.2, 0.5], LAST]  # rows that differ

    def judges(kept, chances, guesses, draft, model, noise, case, counts=None, slips=None):
        """`counts` maps wrong numbers of kept guesses to causes, and `slips` maps causes to wrong chances."""
        draft, model, noise = (torch.as_tensor(each, dtype=torch.float32) for each in (draft, model, noise))
        got = accept(list(guesses), draft.view(len(guesses), model.shape[1]), model, noise)
        check.equal(len(got), 2, what="number of results")
        check.equal(got[0], kept, what=f"guesses kept, {case}", hint=(counts or {}).get(number_in(got[0]), ""))
        slips = {cause: torch.tensor(wrong) for cause, wrong in (slips or {}).items()}
        cause = cause_of(got[1], torch.tensor(chances), slips, 1e-5, 1e-6)
        check.close(got[1], chances, rtol=1e-5, atol=1e-6, what=f"chances, {case}", hint=cause)

    judges(
        1,
        [0.1, 0.1, 0.8],
        [1],
        [Q],
        [P, LAST],
        [0.3],
        "the worked example, guess 1, noise 0.3",
        {0: "the comparison is reversed: a guess is kept if noise · q < p"},
        {"this is the row of the last guess: the token after all guesses has the last row": [0.2, 0.5, 0.3]},
    )
    judges(
        1,
        [0.1, 0.1, 0.8],
        [0],
        [Q],
        [P, LAST],
        [0.1],
        "the worked example, guess 0, noise 0.1",
        {0: "guesses are not compared with the likeliest token: the result would not be distributed as p"},
    )
    judges(
        1,
        [0.1, 0.1, 0.8],
        [0],
        [Q],
        [P, LAST],
        [0.39],
        "the worked example, guess 0, noise 0.39",
        {0: "a guess is kept with probability p / q, not p"},
    )
    judges(
        0,
        [0, 0.6666666, 0.3333334],
        [0],
        [Q],
        [P, LAST],
        [0.41],
        "the worked example, guess 0, noise 0.41",
        {1: "the rejected guess was counted too"},
        {
            "this is |p − q|: only where p is larger counts": [0.5, 0.3333333, 0.1666667],
            "this is the excess as it is: divide it by its sum": [0, 0.2, 0.1],
            "after a rejected guess the token is drawn from the excess of p over q, not from p": [0.2, 0.5, 0.3],
            "this is the excess of q over p": [1, 0, 0],
            "p is of the next position: take model[kept]": [0, 0, 1],
            "this is the softmax of the excess: divide it by its sum instead": [0.3006096, 0.3671654, 0.332225],
            "this is p without the rejected token": [0, 0.625, 0.375],
        },
    )
    judges(1, [0.1, 0.1, 0.8], [1], [Q], [P, LAST], [0.99], "the worked example, guess 1, noise 0.99")
    judges(1, [0, 0.6666666, 0.3333334], [1, 0], [Q, Q], [P, P, LAST], [0.5, 0.6], "guesses 1 and 0, noise 0.5 and 0.6")
    judges(
        0,
        [0, 0.6666666, 0.3333334],
        [0, 1],
        [Q, Q],
        [P, P, LAST],
        [0.9, 0.1],
        "guesses 0 and 1, noise 0.9 and 0.1: the first is rejected",
        {1: "a guess after a rejected one was counted: it follows a token that is not there"},
    )
    judges(
        2,
        [0.1, 0.1, 0.8],
        [1, 0],
        [Q, Q],
        [P, P, LAST],
        [0.9, 0.1],
        "guesses 1 and 0, noise 0.9 and 0.1: both are kept",
        {1: "every guess has its own noise: noise[i], not noise[0]"},
    )
    judges(
        1,
        [0, 0.6666666, 0.3333334],
        [0, 0],
        [Q, Q],
        [P, P, LAST],
        [0.1, 0.9],
        "guesses 0 and 0, noise 0.1 and 0.9: the second is rejected",
    )
    judges(2, [0.1, 0.1, 0.8], [1, 2], [Q, Q], [P, P, LAST], [0.9, 0.9], "guesses 1 and 2, both likelier for the model")
    judges(
        2,
        [0.1, 0.1, 0.8],
        [1, 0],
        DRAFT,
        MODEL,
        [0.9, 0.9],
        "rows that differ, guesses 1 and 0, noise 0.9 and 0.9",
        {1: "q is row 0 of draft for every guess: guess i has draft[i]"},
    )
    judges(
        2,
        [0.1, 0.1, 0.8],
        [1, 2],
        DRAFT,
        MODEL,
        [0.9, 0.8],
        "rows that differ, guesses 1 and 2, noise 0.9 and 0.8",
        {1: "p is row 0 of model for every guess: guess i has model[i]"},
    )
    judges(
        1,
        [0.6666667, 0, 0.3333333],
        [1, 1],
        DRAFT,
        MODEL,
        [0.9, 0.6],
        "rows that differ, guesses 1 and 1, noise 0.9 and 0.6",
        {},
        {
            "this is the excess of row 0 of model and draft: take the row of the rejected guess": [
                0,
                0.6666666,
                0.3333334,
            ]
        },
    )
    judges(
        0,
        [0, 0.6666666, 0.3333334],
        [0, 1],
        DRAFT,
        MODEL,
        [0.9, 0.1],
        "rows that differ, guesses 0 and 1, noise 0.9 and 0.1",
    )
    judges(0, [0.1, 0.1, 0.8], [], [], [LAST], [], "no guesses")
    judges(
        0,
        [0.5, 0, 0.5],
        [1],
        [[0.25, 0.5, 0.25]],
        [[0.5, 0, 0.5], LAST],
        [0.0],
        "a guess that the model never makes",
        {1: "a guess with noise · q = p is not kept: < is meant, not <="},
    )
    judges(
        0,
        [0, 1, 0],
        [0],
        [[0.5, 0.5, 0]],
        [[0.49999905, 0.50000095, 0], LAST],
        [0.9999998],
        "q and p differ by a millionth",
    )
    ### BEGIN HIDDEN TESTS

    def agrees(guesses, draft, model, noise, case):
        limits = [noise[i] * float(draft[i, g]) < float(model[i, g]) for i, g in enumerate(guesses)]
        kept = next((i for i, fine in enumerate(limits) if not fine), len(guesses))
        chances = model[kept].double()
        if kept < len(guesses):
            chances = (chances - draft[kept].double()).clamp(min=0)
        judges(kept, (chances / chances.sum()).tolist(), guesses, draft, model, noise, case)

    for seed in range(12):
        count = seed % 5 + 1
        draft, model = drawn(count, 7, seed=seed).softmax(-1), drawn(count + 1, 7, seed=seed + 30).softmax(-1)
        guesses = [int(each) for each in check.rng(seed).integers(0, 7, size=count)]
        agrees(guesses, draft, model, check.rng(seed + 9).random(count).tolist(), f"{count} guesses, seed {seed}")
    for seed in range(12):
        draft, model = drawn(4, 5, seed=seed + 60).softmax(-1), drawn(5, 5, seed=seed + 90).softmax(-1)
        guesses, limits = draft.argmax(-1).tolist(), (model[:4] / draft).gather(1, draft.argmax(-1, keepdim=True))[:, 0]
        near = check.rng(seed).choice([0.9, 0.995, 1.005], size=4)  # close to what decides, so that every noise counts
        noise = [min(0.999, each * float(limit)) for each, limit in zip(near, limits, strict=True)]
        agrees(guesses, draft, model, noise, f"4 guesses near the limit, seed {seed}")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "accept_test_distribution", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("accept", "what is drawn in the end", part="distribution", hidden="other distributions"):

    def draws_from(draft, model, runs, seed):
        draft, model = torch.tensor(draft), torch.tensor([*model, model[-1]])
        last, generator = len(draft) - 1, torch.Generator().manual_seed(seed)
        guessed = torch.multinomial(draft, runs, replacement=True, generator=generator).T
        noise = torch.rand(guessed.shape, generator=generator)
        run = on_cluster(Cluster(1), accepted, accept, draft, model, guessed.tolist(), noise)
        kept, chances = torch.tensor(run.results[0][0]), run.results[0][1]
        check.shape(chances, (runs, draft.shape[1]), what=f"chances of {runs:,} runs")
        reached = kept >= last
        own = torch.multinomial(chances[reached], 1, generator=generator)[:, 0]
        tokens = torch.where(kept[reached] > last, guessed[reached, last], own)
        counts = tokens.bincount(minlength=draft.shape[1]).tolist()
        total = sum(counts)
        check.true(
            total > runs / 4,
            f"in {runs - total:,} of {runs:,} runs not even the first {last} of {last + 1} guesses were kept",
        )
        share, keeps = float((kept > last).sum()) / total, float(torch.minimum(draft[last], model[last]).sum())
        check.true(
            abs(share - keeps) < 4 * (keeps * (1 - keeps) / total) ** 0.5,
            f"of the last guesses, the share {share:.3f} is kept in {total:,} runs, expected {keeps:.3f}, the sum of "
            "min(p, q) over all tokens",
        )
        expected = [total * float(p) for p in model[last]]
        chi = sum((got - wanted) ** 2 / wanted for got, wanted in zip(counts, expected, strict=True))
        most = {2: 9.2, 3: 11.3, 5: 15.1}[len(counts) - 1]
        says, wanted, guessed = (
            ", ".join(f"{each:.3f}" for each in shares)
            for shares in ([got / total for got in counts], model[last].tolist(), draft[last].tolist())
        )
        place = "the first token" if not last else f"token {last + 1}, where the guesses before it are kept,"
        check.true(
            chi < most,
            f"the shares of {place} are [{says}] in {total:,} runs, expected [{wanted}]: χ² = {chi:.1f}, and 99 of 100 "
            f"fair draws stay below {most}; the draft has [{guessed}]",
        )

    draws_from([[0.5, 0.3, 0.2]], [[0.2, 0.5, 0.3]], 3000, seed=1)
    draws_from([[0.7, 0.1, 0.1, 0.1]], [[0.1, 0.2, 0.3, 0.4]], 3000, seed=2)
    draws_from([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]], [[0.2, 0.5, 0.3], [0.5, 0.3, 0.2]], 3000, seed=4)
    ### BEGIN HIDDEN TESTS
    draws_from([[0.05, 0.05, 0.1, 0.2, 0.3, 0.3]], [[0.3, 0.1, 0.1, 0.2, 0.25, 0.05]], 3000, seed=3)
    draws_from([[0.6, 0.2, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1]], [[0.3, 0.3, 0.2, 0.2], [0.4, 0.1, 0.2, 0.3]], 3000, seed=5)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "accept",
    "Walk over the guesses and return at the first that is rejected. If the loop ends, all are kept.",
    "`noise * q < p` needs no division, and keeps every guess with p ≥ q, since noise < 1.",
    "The excess: `(model[i] - draft[i]).clamp(min=0)`, divided by its sum.",
)
from threeloops.product.decode import expected_speedup, expected_tokens

show.figure(
    decoding.draw_guess([0.5, 0.3, 0.2], [0.2, 0.5, 0.3], 0),
    "the worked example: where q and p overlap, guesses are kept; where q exceeds p, they are rejected, and redrawn where p exceeds q",
)
show.against_prediction("speculation", round(expected_tokens(0.7, 4), 2), source="1 + 0.7 + 0.7² + 0.7³ + 0.7⁴")
from threeloops.product.trained import standard_library, trained

model, small = trained("tiny"), trained("tiny_draft")
windows = standard_library()[1][:32_768].long().view(-1, 128)
with torch.inference_mode():
    p, q = (each(windows).softmax(-1) for each in (model, small))
acceptance = float(torch.minimum(p, q).sum(-1).mean())
cost = small.config.matmul_parameters / model.config.matmul_parameters
speedups = {guesses: expected_speedup(acceptance, guesses, cost) for guesses in range(1, 9)}
best = max(speedups, key=speedups.get)
with reveal("dec-2"):
    show.table(
        [
            (guesses, f"{expected_tokens(acceptance, guesses):.2f}", f"{speedup:.2f}×")
            for guesses, speedup in speedups.items()
        ],
        header=("guesses", "tokens per step", "speed-up"),
        caption=f"Acceptance rate {acceptance:.0%}, best with {best} guesses",
    )
audit(
    "dec-2",
    round(speedups[best], 2),
    "times, at best",
    "model",
    "corrected",
    how=f"the GPT of section 5 and a draft with {cost:.0%} of its weights: the acceptance rate {acceptance:.2f}, the mean of Σ min(p, q), was measured here on unseen bytes; the speed-up follows from it, from the draft's share of the weights, {cost:.2f}, and from the number of guesses, {best}. With an acceptance rate of 0.9 and a draft that costs 5% of a step it is {max(expected_speedup(0.9, k, 0.05) for k in range(1, 16)):.1f}×, with 0.5 it is {max(expected_speedup(0.5, k, 0.05) for k in range(1, 16)):.1f}×. The gain lasts while weights dominate: in a large batch, computing guesses that are then rejected takes time from other sequences",
)
exact = {
    float(
        (torch.minimum(a, b) + (1 - torch.minimum(a, b).sum()) * (b - a).clamp(min=0) / (b - a).clamp(min=0).sum() - b)
        .abs()
        .max()
    )
    for a, b in zip(q[0].double(), p[0].double(), strict=True)
}
audit(
    "dec-6",
    round(max(exact), 7),
    "largest difference between a token's chance with and without guesses, in 128 positions",
    "CPU",
    "holds",
    how="the chance that a guess is kept plus the chance that the excess gives the token, from the measured p and q of both models; only the rounding of the models' float32 is left. It holds for the rule of exercise 6, and the check above tests it with drawn tokens. Variants that keep more guesses than this rule, to be faster, change the distribution",
)
debrief(
    "accept",
    """A token comes out as a kept guess with probability min(p, q), and after a rejection with probability (Σ max(0, p − q)) ·
    max(0, p − q) / Σ max(0, p − q). Together: min(p, q) + max(0, p − q) = p. So a bad draft costs time but never changes the
    distribution of the output. The acceptance rate is a = Σ min(p, q). If every one of k guesses is kept with
    probability a, a step gives 1 + a + a² + … + aᵏ tokens on average.

    Keys and values of rejected guesses are in the cache and have to go (`truncate` of section 1), or later tokens see words
    that were never written. Nothing crashes if that is forgotten; the text just gets worse.""",
    parts=("values", "distribution"),
)

# %% [markdown]
# ## 7 · Your decoder
#
# Your pieces decode with a trained GPT of 228,000 parameters. `quantize` makes a draft of it with 4-bit weights. The draft
# guesses four characters, the GPT computes them in one pass through `CachedAttention`, `accept` says how many are kept, and
# `truncate` forgets the rest. Here both always take the likeliest character, so the text must be the one that the GPT writes
# alone. Then three answers to one prompt share their keys: `Blocks` gives and copies blocks, and `paged_attention` reads them.


# %% tags=["demo"]
class Layer:
    """A cache for one layer of the GPT, made of your attention."""

    def __init__(self, attention):
        self.attention = attention

    def attend(self, q, k, v, _):
        flat = [each.transpose(1, 2).flatten(2) for each in (q, k, v)]
        return self.attention.attend(*flat).unflatten(2, (q.shape[1], -1)).transpose(1, 2)


class Decoder:
    """A GPT with your cache."""

    def __init__(self, parts, model):
        self.model, self.length = model, 0
        self.layers = [Layer(parts.CachedAttention(model.config.kv_heads)) for _ in model.blocks]

    def likeliest(self, tokens):
        """Pass new tokens through the model: after each, all of the probability is on the likeliest next one."""
        logits = self.model(torch.tensor([tokens]), start=self.length, caches=self.layers)[0]
        self.length += len(tokens)
        return functional.one_hot(logits.argmax(-1), logits.shape[1]).float()

    def forget(self, length):
        for layer in self.layers:
            layer.attention.truncate(length)
        self.length = length


def speculate(parts, model, draft, prompt, count, guesses=4):
    """The text, and for each pass of the model (guessed characters, how many were kept, what came after)."""
    target, small = Decoder(parts, model), Decoder(parts, draft)
    text, passes = list(prompt), []
    while len(text) < len(prompt) + count:
        rows, guessed = [], []
        for _ in range(guesses):
            rows.append(small.likeliest([*text, *guessed][small.length :])[-1])
            guessed.append(int(rows[-1].argmax()))
        chances = target.likeliest([*text, *guessed][target.length :])[-guesses - 1 :]
        kept, then = parts.accept(guessed, torch.stack(rows), chances, torch.rand(guesses))
        passes.append((guessed, kept, int(then.argmax())))
        text += [*guessed[:kept], int(then.argmax())]
        target.forget(len(text) - 1)
        small.forget(min(small.length, len(text) - 1))
    return text[: len(prompt) + count], passes


# %% tags=["demo"] jupyter={"source_hidden": true}
import copy

from threeloops.product.decode import accept as library_accept


def normalised(guesses, draft, model, noise):
    kept, excess = library_accept(guesses, draft, model, noise)
    return kept, excess / excess.sum()


class Pool:
    """The keys and values of a layer, in the blocks that your tables name."""

    def __init__(self, parts, model, count, size):
        self.parts, self.size = parts, size
        self.keys, self.values = torch.zeros(2, count, size, model.config.kv_heads, model.config.head_dim)

    def attend(self, q, k, v, _):
        """One new token per sequence; `tables` and `lengths` were set before the pass."""
        for row, table in enumerate(self.tables):
            place = self.lengths[row] - 1
            self.keys[table[place // self.size], place % self.size] = k[row, :, 0]
            self.values[table[place // self.size], place % self.size] = v[row, :, 0]
        columns = max(map(len, self.tables))
        tables = torch.tensor([[*table, *[-1] * (columns - len(table))] for table in self.tables])
        got = self.parts.paged_attention(q[:, :, 0], self.keys, self.values, tables, torch.tensor(self.lengths))
        return got[:, :, None]


def drawn_next(logits, generators):
    """The next token of each sequence, drawn with its own generator."""
    rows = zip(logits.softmax(-1), generators, strict=True)
    return [int(torch.multinomial(row, 1, generator=generator)) for row, generator in rows]


def three_answers(parts, model, prompt, count, size=4):
    """Three answers to one prompt through shared blocks: texts, blocks held, blocks copied."""
    manager, copied, texts = parts.Blocks(200, size), 0, {"a": list(prompt)}
    pools = [Pool(parts, model, 200, size) for _ in model.blocks]

    def step(tokens, at):
        nonlocal copied
        for name in texts:
            for source, target in manager.append(name, 1):
                copied += 1
                for pool in pools:
                    pool.keys[target], pool.values[target] = pool.keys[source], pool.values[source]
        for pool in pools:
            pool.tables, pool.lengths = [manager.table(name) for name in texts], [at + 1] * len(texts)
        return model(torch.tensor(tokens)[:, None], start=at, caches=pools)[:, -1]

    for at, token in enumerate(prompt):
        logits = step([token], at)
    for name in "bc":
        manager.fork("a", name)
        texts[name] = list(prompt)
    generators = [torch.Generator().manual_seed(seed) for seed in range(3)]
    tokens = drawn_next(logits.expand(3, -1), generators)
    for at in range(len(prompt), len(prompt) + count):
        for text, token in zip(texts.values(), tokens, strict=True):
            text.append(token)
        if at + 1 < len(prompt) + count:
            tokens = drawn_next(step(tokens, at), generators)
    return list(texts.values()), 200 - manager.available(), copied


def alone(parts, model, prompt, count, seed):
    """The same answer by one sequence with your CachedAttention."""
    decoder, text, new = Decoder(parts, model), list(prompt), list(prompt)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        logits = model(torch.tensor([new]), start=len(text) - len(new), caches=decoder.layers)[:, -1]
        new = drawn_next(logits, [generator])
        text += new
    return text


PIECES = ("CachedAttention", "decode_step", "Blocks", "paged_attention", "quantize", "accept")
if parts := together(*PIECES, library={"accept": normalised}):
    gpt, prompt = trained("tiny"), list(b"def __init__(self, ")
    few = copy.deepcopy(gpt)
    with torch.inference_mode():
        for module in few.modules():
            if isinstance(module, torch.nn.Linear):
                shape = module.weight.shape
                module.weight = torch.nn.Parameter(
                    parts.dequantize(*parts.quantize(module.weight.detach().clone(), 32), 32, shape[1]), False
                )
        plain, new = Decoder(parts, gpt), list(prompt)
        greedy = list(prompt)
        for _ in range(60):
            new = [int(plain.likeliest(new)[-1].argmax())]
            greedy += new
        text, passes = speculate(parts, gpt, few, prompt, 60)
        answers, held, copied = three_answers(parts, gpt, prompt, 40)
        same = [answer == alone(parts, gpt, prompt, 40, seed) for seed, answer in enumerate(answers)]
    show.figure(
        decoding.draw_passes([(bytes(g).decode("latin-1"), kept, chr(then)) for g, kept, then in passes[:12]]),
        "the first passes of the GPT: guesses of its 4-bit copy that were kept and rejected, and the character after them",
    )
    per_pass = 60 / len(passes)
    alone_each = -(-(len(answers[0]) - 1) // 4)  # the last token of an answer is in no cache
    step = parts.step_seconds(LLAMA, H100, 1, 8192)
    small = parts.step_seconds(replace(LLAMA, weight_bytes=0.5), H100, 1, 8192)
    show.table(
        [
            ("the text is the one that the GPT writes alone", text == greedy),
            ("tokens per pass", f"{per_pass:.2f}"),
            ("a token of an 8-billion model on an H100, alone", f"{1e3 * step:.2f} ms"),
            (
                "the same with a 4-bit copy that guesses as well as here",
                f"{1e3 * (step + 4 * small) / per_pass:.2f} ms",
            ),
            ("three answers through shared blocks are those of one sequence each", all(same)),
            ("blocks that they hold, and copies", f"{held} (alone {3 * alone_each}), {copied} copied"),
        ],
        caption=f"{bytes(text).decode('latin-1')!r}",
    )

# %% [markdown]
# ## In practice
#
# Names change between versions, so look at `--help`.
#
# | section | vLLM 0.33 | SGLang 0.5.23 |
# |---|---|---|
# | 2, batch | `--max-num-seqs` | `--max-running-requests` |
# | 3, blocks | `--block-size`, `--gpu-memory-utilization` | `--page-size`, `--mem-fraction-static` |
# | 8-bit cache | `--kv-cache-dtype fp8` | `--kv-cache-dtype fp8_e4m3` |
# | 5, weights | read from the checkpoint's configuration | the same |
# | 6, guesses | `--speculative-config '{"method": "ngram", "num_speculative_tokens": 4}'` | `--speculative-algorithm EAGLE` |
#
# ## What to remember
#
# - Keep keys and values: a new token then costs a pass over one token instead of one over all tokens so far.
# - A decode step waits for bytes. The batch shares the weights; each sequence adds its own keys and values.
# - Blocks waste at most one partly filled block per sequence, and let sequences share a common beginning.
# - Fewer bits make each step shorter and cost some perplexity, which you have to measure.
# - Guesses fill a step with more tokens and leave the distribution as it is.
#
# The deep dives (`15_decode_path_dives.ipynb`) cover GPTQ and AWQ, the kernel that reads through block tables, CUDA
# graphs, export, GGUF files, and guesses from the prompt.
#
# ## Reflection
#
# The model of section 2 runs on one H100 with a batch of 4, contexts of 30,000 tokens, and 16-bit weights and cache. Users find it
# slow. Which of this lab's techniques do you try first, which do you leave alone, and what do you measure? A paragraph
# is enough.

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# I first compute the bytes of a step: 16 GB of weights and 4 · 30,000 · 131 kB = 15.7 GB of keys and values. Both
# matter, so 4-bit weights and an 8-bit cache together cut a step from 31.8 to about 12 GB. I measure the time per step
# before and after, and perplexity and answers on our own tasks. With a batch of 4 the arithmetic units are mostly idle,
# so speculative decoding comes next, if the acceptance rate on our traffic is high; I log it per request. Every server
# has paged blocks already. A larger batch would raise throughput but not make any one user's answer faster, so I leave
# it alone unless requests wait in a queue.

# %% tags=["demo"] jupyter={"source_hidden": true}
term("KV cache")
term("block table")
calibration()
