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
#     title: When is it worth moving the cache?
#     minutes: 180
#     withholds: [threeloops.lab.drawings]
#     handed_out: {choose: "the simulation of a service is given; the exercise is to search with it"}
#     edition: 2
# ---

# %% [markdown]
# # When is it worth moving the cache?
#
# ![A long prompt between short steps of decoding on one GPU, and the same work on two GPUs with a cache that travels between them](attachment:opening.png)
#
# One GPU reads prompts, another writes answers, and the keys and values travel between them. When does that pay?
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import math
import random
from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from itertools import cycle
from numbers import Integral

import numpy as np
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
from threeloops.training.cluster import Cluster, ClusterError, ask, compute, fabric

KV = 131_072  # bytes of the keys and values of one token of Llama-3-8B in 16 bits
ALPHA, BETA = 14e-6, 50e9  # of the virtual cluster's network: seconds, and bytes per second


def step_seconds(decodes, keys, prompt=0):
    """Seconds of one step of Llama-3-8B on an H100: `decodes` requests get a token, with `keys` cached tokens in all, beside
    `prompt` tokens of prompts. The five constants are fitted to the course's kernel model (lab 16), which was fitted to
    measurements by NVIDIA. Steps with only decodes or only prompts are within 6% of that model, and those with both are
    up to 20% too short."""
    return 3.5e-3 + max(4.5e-3, 22.5e-6 * (decodes + prompt)) + 42e-9 * keys + 50e-6 * decodes


@dataclass(frozen=True)
class Model:
    """`latent` is the length of the one vector per token and layer that multi-head latent attention caches, else 0."""

    name: str
    layers: int
    kv_heads: int = 0
    head_dim: int = 0
    element_bytes: int = 2
    latent: int = 0


@dataclass(frozen=True)
class Link:
    """`latency` in seconds, once; `gap` in seconds, the least time between two messages; `bandwidth` in bytes/s."""

    latency: float
    gap: float
    bandwidth: float


LLAMA, DEEPSEEK = Model("Llama-3-8B", 32, kv_heads=8, head_dim=128), Model("DeepSeek-V3", 61, latent=576)
NEAR, FAR = Link(14e-6, 2e-6, 50e9), Link(14e-6, 2e-6, 1.25e9)  # 400 and 10 Gbit/s


@dataclass(frozen=True)
class Travel:
    bytes: int
    messages: int
    seconds: float


@dataclass(frozen=True)
class Split:
    """GPUs of each pool, and the requests per second that they complete."""

    prefill: int
    decode: int
    rate: float


@dataclass(frozen=True)
class Target:
    """A GPU that could compute a prompt: tokens of prompts that wait there, tokens of this prompt that its cache holds, tokens
    per second that it computes, and seconds per token to bring the prompt's cache to the GPU that decodes."""

    queued: int
    cached: int
    speed: float
    travel: float


@dataclass(frozen=True)
class Blocks:
    """The blocks of a tier: each field is a NumPy array with an element per block. `first` and `last` are the seconds of the
    first and last use, `uses` counts them, and `depth` is how many blocks of the same prompt stand before it."""

    first: np.ndarray
    last: np.ndarray
    uses: np.ndarray
    depth: np.ndarray


@dataclass(frozen=True)
class Service:
    """`rate` requests per second in all; ranges of prompt and output lengths; limits in seconds; bytes/s between GPUs."""

    name: str
    gpus: int
    rate: float
    prompt: tuple[int, int]
    output: tuple[int, int]
    ttft: float
    tpot: float
    bandwidth: float


@dataclass(frozen=True)
class Plan:
    """ "whole" prompts, prompts in a "chunk" of so many tokens per step, or "split": `prefill` GPUs for prompts."""

    kind: str
    chunk: int = 0
    prefill: int = 0


SERVICES = [
    Service("reports", 8, 41, (3000, 6000), (80, 160), ttft=1.0, tpot=0.015, bandwidth=50e9),
    Service("branch office", 8, 45, (3000, 6000), (80, 160), ttft=1.0, tpot=0.025, bandwidth=1.25e9),
    Service("agents", 8, 88, (200, 800), (300, 600), ttft=1.0, tpot=0.014, bandwidth=50e9),
    Service("code", 4, 76, (1000, 2000), (20, 60), ttft=0.3, tpot=0.013, bandwidth=50e9),
]
SEATS = 128


def requests_of(service, seed):
    """(seconds, tokens of the prompt, tokens of the output) of each request."""
    rng, now, work = random.Random(f"{service.name} {seed}"), 0.0, []
    for _ in range(120 * service.gpus):
        now += rng.expovariate(service.rate)
        work.append((now, rng.randint(*service.prompt), rng.randint(*service.output)))
    return work


def run_gpu(jobs, chunk):
    """Steps of one GPU. A job is (seconds at which it is there, tokens of its prompt to compute, tokens already in the cache,
    tokens to make). A step gives a token to everybody who decodes, and computes up to `chunk` tokens of prompts; with 0,
    prompts are computed whole, in steps of their own. Returns the times of each job's first and last token, and of steps."""
    coming = deque(sorted((job[0], number) for number, job in enumerate(jobs)))
    left, made = [job[1] for job in jobs], [0] * len(jobs)
    first, last, steps = [math.nan] * len(jobs), [math.nan] * len(jobs), []
    running, prompts, now, keys = [], deque(), 0.0, 0
    while coming or running or prompts:
        if not running and not prompts:
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now and len(running) + len(prompts) < SEATS:
            number = coming.popleft()[1]
            if left[number]:
                prompts.append(number)
            else:
                running.append(number)
                keys += jobs[number][2]
        decoding = running if chunk or not prompts else []
        budget, tokens, done = chunk or math.inf, 0, []
        while prompts and tokens < budget:
            part = min(left[prompts[0]], budget - tokens)
            left[prompts[0]] -= part
            tokens += part
            if not left[prompts[0]]:
                done.append(prompts.popleft())
        begun = now
        now += step_seconds(len(decoding), keys if decoding else 0, tokens)
        steps.append((begun, now, len(decoding), tokens))
        for number in list(decoding):
            made[number] += 1
            last[number] = now
            keys += 1
            if made[number] == jobs[number][3]:
                running.remove(number)
                keys -= jobs[number][1] + jobs[number][2] + made[number]
        for number in done:
            first[number] = last[number] = now
            made[number] = 1
            if made[number] < jobs[number][3]:
                running.append(number)
                keys += jobs[number][1] + 1
    return first, last, steps


def serve(service, plan, seed):
    """(time to first token, time per output token) of each request, in virtual time. A cache leaves layer by layer."""
    work = requests_of(service, seed)
    found = [(math.nan, math.nan)] * len(work)
    if plan.kind != "split":
        for gpu in range(service.gpus):
            mine = range(gpu, len(work), service.gpus)
            jobs = [(work[n][0], work[n][1], 0, work[n][2]) for n in mine]
            first, last, _ = run_gpu(jobs, plan.chunk if plan.kind == "chunk" else 0)
            for n, begun, ended in zip(mine, first, last, strict=True):
                found[n] = (begun - work[n][0], (ended - begun) / max(1, work[n][2] - 1))
        return found
    free, sent = [0.0] * plan.prefill, [0.0] * plan.prefill
    first, ready = [], []
    for at, prompt, _ in work:
        gpu = min(range(plan.prefill), key=lambda each: free[each])
        begun, seconds, travel = max(at, free[gpu]), step_seconds(0, 0, prompt), prompt * KV / service.bandwidth
        free[gpu] = begun + seconds
        sent[gpu] = max(max(begun + seconds / 32, sent[gpu]) + travel, free[gpu] + travel / 32)
        first.append(free[gpu])
        ready.append(sent[gpu])
    for gpu in range(service.gpus - plan.prefill):
        mine = range(gpu, len(work), service.gpus - plan.prefill)
        _, last, _ = run_gpu([(ready[n], 0, work[n][1] + 1, work[n][2] - 1) for n in mine], 0)
        for n, ended in zip(mine, last, strict=True):
            found[n] = (first[n] - work[n][0], (ended - first[n]) / (work[n][2] - 1))
    return found


def in_time(service, plan, seed):
    """The share of the requests within both limits."""
    times = serve(service, plan, seed)
    return sum(ttft <= service.ttft and tpot <= service.tpot for ttft, tpot in times) / len(times)


def run_router(route, seed, kind):
    """Seconds to the first token of 300 prompts that begin with shared prefixes, as `route(prompt, targets)` sends them.

    Two prefill GPUs are near, one is behind a slow link, and the last target is the decode GPU itself, at half the speed.
    """
    rng, now, waits = random.Random(f"{kind} {seed}"), 0.0, []
    speeds, travels = (45e3, 45e3, 45e3, 22e3), (2.6e-6, 2.6e-6, 105e-6, 0.0)
    free, held = [0.0] * 4, [OrderedDict() for _ in range(4)]
    prefixes = [rng.choice((800, 2000, 4000, 6000)) for _ in range(24)]
    weights = [(1 + n) ** -1.3 if kind == "popular" else 1.0 for n in range(24)]
    for _ in range(300):
        now += rng.expovariate(55 if kind == "popular" else 42)
        prefix = rng.choices(range(24), weights)[0]
        prompt = prefixes[prefix] + rng.randint(50, 600)
        targets = [
            Target(
                max(0, round((free[n] - now) * speeds[n])),
                prefixes[prefix] * (prefix in held[n]),
                speeds[n],
                travels[n],
            )
            for n in range(4)
        ]
        chosen = route(prompt, list(targets))
        check.true(
            isinstance(chosen, Integral) and 0 <= chosen < 4,
            f"route({prompt}, …) = {chosen!r}: expected the index of one of 4 targets",
        )
        target = targets[chosen]
        free[chosen] = max(now, free[chosen]) + (prompt - target.cached) / target.speed
        held[chosen][prefix] = None
        held[chosen].move_to_end(prefix)
        while sum(prefixes[each] for each in held[chosen]) > 30_000:
            held[chosen].popitem(last=False)
        waits.append(free[chosen] + prompt * target.travel - now)
    return sorted(waits)


def late(waits):
    """P95."""
    return waits[int(0.95 * len(waits))]


def shortest_queue(prompt, targets):
    """The target with the fewest tokens of prompts that wait."""
    return min(range(len(targets)), key=lambda index: targets[index].queued)


COMPUTE, LOAD = 0.010, 0.002  # seconds to compute a block of a prompt, and to load one from the host's memory


def prompts_of(kind, seed):
    """(seconds, blocks of the prompt): conversations that grow, and documents that are read once."""
    rng, now, found, talks = random.Random(f"{kind} {seed}"), 0.0, [], []
    for n in range(300):
        now += rng.expovariate(1.0)
        if rng.random() < (0.35 if kind == "documents" else 0.1):
            found.append((now, [("document", n, i) for i in range(rng.randint(20, 40))]))
            continue
        if len(talks) < (12 if kind == "documents" else 16):
            talks.append([("system", rng.randrange(4), i) for i in range(6)])
            talk = talks[-1]
        else:
            talk = rng.choice(talks)
        talk += [("turn", n, i) for i in range(rng.randint(1, 3))]
        found.append((now, list(talk)))
        if len(talk) > 24:
            talks.remove(talk)
    return found


def run_tiers(keep, prompts, device=120, host=240):
    """Seconds spent on loading and on computing again what was once in the cache, and blocks found in (device, host, neither).

    When the device's memory is full, blocks with the least `keep(blocks, now)` move to the host's, and from there they go.
    """
    tiers, seen, seconds, found = ({}, {}), set(), 0.0, [0, 0, 0]
    for now, names in prompts:
        is_here = True
        for depth, name in enumerate(names):
            tier = next((n for n in (0, 1) if name in tiers[n]), 2) if is_here else 2
            is_here = tier < 2
            found[tier] += 1
            seconds += (0.0, LOAD, COMPUTE * (name in seen))[tier]
            seen.add(name)
            old = tiers[0].pop(name, None) or tiers[1].pop(name, None) or (now, now, 0, depth)
            tiers[0][name] = (old[0], now, old[2] + 1, depth)
        for tier, room in enumerate((device, host)):
            surplus = len(tiers[tier]) - room
            if surplus > 0:
                worth = np.asarray(keep(Blocks(*map(np.array, zip(*tiers[tier].values(), strict=True))), now))
                wanted = f"keep gave values of shape {worth.shape} for {len(tiers[tier])} blocks: expected an array with a number per block"
                check.true(worth.shape == (len(tiers[tier]),) and worth.dtype.kind in "fiub", wanted)
                check.true(not np.isnan(worth).any(), "keep gave NaN for a block: expected numbers")
                names_here = list(tiers[tier])
                for place in np.argsort(worth, kind="stable")[:surplus]:
                    block = tiers[tier].pop(names_here[place])
                    if tier == 0:
                        tiers[1][names_here[place]] = block
    return seconds, found


def oldest_first(blocks, now):
    """LRU: the block that was used last is worth most."""
    return blocks.last


def on_rank(function, seconds, elements, to):
    """Rank 0 computes layers and sends their caches with `function`; rank `to` receives."""
    if dist.get_rank() not in (0, to):
        return None
    if dist.get_rank():
        received = [torch.empty(n) for n in elements]
        for cache in received:
            dist.recv(cache, 0)
        return received

    def layer(number):
        def apply(x):
            compute(seconds[number], "layer")
            return x + number, x + torch.arange(elements[number], dtype=torch.float32)

        return apply

    return function([layer(number) for number in range(len(seconds))], ask("x"), to)


def run_pair(function, seconds, elements, x, to=1):
    """One prefill GPU and one decode GPU on the virtual cluster; whatever stops them becomes the message of the check."""
    case = f"{len(seconds)} layers, to = {to}"
    try:
        run = on_cluster(
            Cluster(fabric(to + 1, 1)),
            on_rank,
            function,
            list(seconds),
            list(elements),
            to,
            seconds=30,
            served={"x": lambda rank: x},
        )
    except ClusterError as error:
        check.true(False, f"{type(error).__name__} with {case}:\n{error}")
    computed = sum(span.end - span.start for span in run.spans if span.what == "layer")
    check.close(
        computed, sum(seconds), rtol=1e-9, unit="s", what=f"time of all layers, {case}", hint="call each layer once"
    )
    return run


def require_caches(run, elements, x):
    """The caches that arrived, and the last layer's output."""
    layers = len(elements)
    value = float(x)
    for number, cache in enumerate(run.results[-1]):
        check.close(
            cache,
            value + torch.arange(elements[number], dtype=torch.float32),
            rtol=0,
            what=f"cache of layer {number} of {layers} where it was sent",
        )
        value += number
    out = run.results[0]
    check.true(torch.is_tensor(out), f"send_layers returned {out!r}: expected the last layer's output, a tensor")
    check.close(out, torch.tensor([value]), rtol=0, what=f"what send_layers returned, {layers} layers")


def arrives(seconds, elements):
    """When the last byte is there, if the caches leave one after another and each as soon as its layer is computed."""
    computed = sent = 0.0
    for layer, count in zip(seconds, elements, strict=True):
        computed += layer
        sent = max(computed, sent) + 4 * count / BETA
    return sent + ALPHA


def splits(balance, case, step, expected, why=""):
    """A case of `balance`: prompt, output, TPOT, room and GPUs."""
    got = balance(*case, step)
    text = "prompt {}, output {}, TPOT {:.5g} s, room {}, {} GPUs".format(*case)
    check.true(
        all(hasattr(got, name) for name in ("prefill", "decode", "rate")),
        f"balance returned {got!r}: expected Split(prefill, decode, rate)",
    )
    check.equal((got.prefill, got.decode), expected[:2], what=f"prefill and decode GPUs, {text}", hint=why)
    check.close(got.rate, expected[2], rtol=1e-6, unit="requests/s", what=f"rate, {text}", hint=why)


def toy(decodes, keys, prompt):
    """A step of 2 s, and 1 s per request, per 100 keys and per 10 tokens of a prompt."""
    return 2 + decodes + keys / 100 + prompt / 10


def random_case(seed, gpus):
    """Arguments for `balance`, with limits that some requests keep."""
    rng = check.rng(seed)
    prompt, output = int(rng.integers(50, 9000)), int(rng.integers(2, 900))
    a, b, c = float(rng.uniform(1e-3, 1e-2)), float(rng.uniform(1e-5, 2e-4)), float(rng.uniform(1e-9, 9e-8))

    def step(decodes, keys, prompt):
        return a + b * decodes + c * keys + 2e-5 * prompt

    most = int(rng.integers(1, 90))
    tpot = step(most + 0.5, (most + 0.5) * (prompt + output / 2), 0)
    room = int(rng.integers(prompt + output, 60 * (prompt + output)))
    return (prompt, output, tpot, room, gpus), step


def require_tiers(keep, kind, share, seed, model=None):
    """The seconds with `keep` are at most this share of those with LRU."""
    prompts = prompts_of(kind, seed)
    (got, found), (usual, _) = run_tiers(keep, prompts), run_tiers(oldest_first, prompts)
    check.true(
        got <= share * usual,
        f"{kind}, seed {seed}: {got:.1f} s are spent, with {found[0]} blocks found on the GPU and {found[1]} on the host; expected at most "
        f"{share:.0%} of {usual:.1f} s, the time with LRU",
    )
    if model:
        check.note(f"{kind}: share of LRU's seconds", round(got / usual, 2), model, "")


def require_plan(choose, name, seeds):
    """At least 90% of a service's requests are in time with the chosen plan."""
    service = next(each for each in SERVICES if each.name == name)
    plan = choose(service)
    for field in ("kind", "chunk", "prefill"):
        check.true(hasattr(plan, field), f"choose returned {plan!r} for {name}: expected Plan(kind, chunk, prefill)")
    kinds = f"{plan} for {name}: expected the kind 'whole', 'chunk' or 'split'"
    check.true(plan.kind in ("whole", "chunk", "split"), kinds)
    most = 10_000 if plan.kind == "chunk" else service.gpus - 1
    number = plan.chunk if plan.kind == "chunk" else plan.prefill
    check.true(
        plan.kind == "whole" or isinstance(number, Integral) and 1 <= number <= most,
        f"{plan} for {name}: expected a whole number from 1 to {most:,}",
    )
    for seed in seeds:
        times = serve(service, plan, seed)
        first, slow, both = (
            sum(map(test, times)) / len(times)
            for test in (
                lambda time: time[0] > service.ttft,
                lambda time: time[1] > service.tpot,
                lambda time: time[0] <= service.ttft and time[1] <= service.tpot,
            )
        )
        check.true(
            both >= 0.9,
            f"{name}, {plan}, seed {seed}: {both:.1%} are in time, expected 90%; {first:.0%} have a late first token, and {slow:.0%} a TPOT "
            f"above {1000 * service.tpot:g} ms",
        )


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
plot, axes = figure(width=8.0, height=2.9)


def bars(row, at, width, color, text=""):
    axes.barh(row, width, left=at, height=0.55, color=color, edgecolor=palette.ink, lw=0.5)
    if text:
        axes.text(at + width / 2, row, text, ha="center", va="center", color="black")


for n in range(3):
    bars(2.4, n, 0.9, palette.green)
bars(2.4, 3, 5, palette.orange, "a long prompt")
for n in range(8, 11):
    bars(2.4, n, 0.9, palette.green)
axes.text(11.3, 2.4, "everybody waits", va="center")
bars(1.2, 3, 5, palette.orange, "a long prompt")
for n in range(11):
    bars(0.2, n, 0.9, palette.green)
for n in range(5):
    axes.annotate("", (4.4 + n, 0.5), (4.0 + n, 0.92), arrowprops={"arrowstyle": "->", "color": palette.blue})
axes.text(11.3, 0.72, "its cache travels", color=palette.blue, va="center", weight="bold")
axes.text(-0.3, 2.4, "one GPU", ha="right", va="center")
axes.text(-0.3, 1.2, "GPU for prompts", ha="right", va="center")
axes.text(-0.3, 0.2, "GPU for answers", ha="right", va="center")
axes.set(xlim=(-2.9, 14.7), ylim=(-0.3, 2.9))
axes.axis("off")
show.figure(
    plot, "A long prompt stops the answers of others on one GPU; on two GPUs it does not, but its cache has to travel"
)

# %% [markdown]
# **Prefill** computes a prompt: many tokens at once, limited by arithmetic. **Decode** makes one token per request and step,
# limited by memory (lab 15). On one GPU they disturb each other. *Disaggregated serving* gives each its own GPUs: the keys
# and values of a prompt, its *cache*, then travel from a prefill GPU to a decode GPU before the second token.
#
# You build what such a service needs to know: what a cache weighs, how it travels, how many GPUs of each kind, which
# of them takes a prompt, and what to keep. In the last exercise you decide for four services. All GPU
# times come from a model (`step_seconds`, in the folded cell above). We measured none of them on a GPU.
#
# ## 1 · What a prompt weighs
#
# A token leaves a key and a value per layer and KV head: 2 · 8 · 128 · 2 bytes = 4,096 B in each layer of Llama-3-8B. Engines keep
# the cache in **blocks**, and a block of one layer is one piece of memory, so it is one message.
#
# *Worked example.* 100 tokens in blocks of 16 need 7 blocks, the last partly empty. In each of 32 layers a block has
# 16 · 4,096 = 65,536 B. That is 7 · 32 = 224 messages, and 14.7 MB. At 50 GB/s one message takes 1.31 µs. But a network card
# starts a message at most every 2 µs, an assumption of this lab, so 224 messages take 448 µs, and the last arrives 14 µs
# later: 462 µs. In blocks of 64 it is 2 · 32 messages of 5.24 µs: 350 µs, although more bytes move.
#
# ### Exercise 1 (14 points)
#
# `travel(model, tokens, held, block, link) -> Travel(bytes, messages, seconds)` for a prompt of `tokens` tokens in blocks
# of `block`, the last of which may be partly empty and moves whole.
#
# - The decode GPU already holds the first `held` tokens. Full blocks of them do not move; a partly filled one does.
# - A model with `latent` caches one vector of so many elements per token and layer, instead of keys and values.
# - Each message takes the larger of `link.gap` and its bytes over `link.bandwidth`. Add the latency once. If nothing
#   moves, it takes 0 s.
# - ValueError unless `tokens` ≥ 1 and 0 ≤ `held` ≤ `tokens`.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "weight",
    "A prompt of 4,000 tokens takes 94 ms to compute on this H100. How long does its cache travel at 400 Gbit/s, in blocks of 16?",
    unit="ms",
)


# %% nbgrader={"grade": false, "grade_id": "travel", "locked": false, "schema_version": 3, "solution": true, "task": false}
def travel(model: Model, tokens: int, held: int, block: int, link: Link) -> Travel:
    """What moves, and how long it takes."""
    ### BEGIN SOLUTION
    if tokens < 1 or not 0 <= held <= tokens:
        raise ValueError(
            f"tokens = {tokens}, held = {held}: expected at least 1 token, of which 0 to {tokens} are held"
        )
    numbers = model.latent or 2 * model.kv_heads * model.head_dim
    size = block * numbers * model.element_bytes
    messages = model.layers * (-(-tokens // block) - held // block)
    seconds = link.latency + messages * max(link.gap, size / link.bandwidth) if messages else 0.0
    return Travel(messages * size, messages, seconds)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "travel_test_values", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("travel", "bytes, messages and seconds", part="values", hidden="other models, lengths and links"):
    CAUSES = {
        "held": "blocks that the decode GPU holds only in part have to move",
        "whole": "the last block moves whole",
        "latent": "a latent model caches one vector, without a factor of 2 and without heads",
        "bytes": "an element has `model.element_bytes` bytes",
        "gap": "a message takes at least `link.gap`",
        "far": "each message takes the larger of the gap and its bytes, and the latency is added once",
        "nothing": "nothing moves, so no latency is added",
    }

    def moves(model, tokens, held, block, link, expected, why=""):
        got = travel(model, tokens, held, block, link)
        case = f"of {model.name}, {tokens} tokens, {held} held, blocks of {block}"
        for name in ("bytes", "messages", "seconds"):
            check.true(hasattr(got, name), f"travel returned {got!r}: expected Travel(bytes, messages, seconds)")
        cause = CAUSES.get(why, "")
        check.equal(got.messages, expected[0], what=f"messages {case}", hint=cause)
        check.equal(got.bytes, expected[1], what=f"bytes {case}", hint=cause)
        check.close(got.seconds, expected[2], rtol=1e-9, unit="s", what=f"seconds {case}", hint=cause)

    moves(LLAMA, 100, 0, 16, FAR, (224, 14680064, 0.0117580512), "far")
    moves(LLAMA, 100, 0, 16, NEAR, (224, 14680064, 4.62e-4), "gap")
    moves(LLAMA, 100, 0, 64, NEAR, (64, 16777216, 3.4954432e-4), "whole")
    moves(LLAMA, 100, 40, 16, NEAR, (160, 10485760, 3.34e-4), "held")
    moves(LLAMA, 96, 0, 16, NEAR, (192, 12582912, 3.98e-4), "whole")
    moves(LLAMA, 96, 96, 16, NEAR, (0, 0, 0.0), "nothing")
    moves(LLAMA, 100, 100, 16, NEAR, (32, 2097152, 7.8e-5), "held")
    moves(LLAMA, 1, 0, 16, NEAR, (32, 2097152, 7.8e-5), "whole")
    moves(DEEPSEEK, 100, 0, 16, FAR, (427, 7870464, 0.0063103712), "latent")
    moves(replace(LLAMA, element_bytes=1), 33, 16, 16, FAR, (64, 2097152, 0.0016917216), "held")
    moves(replace(DEEPSEEK, element_bytes=1), 100, 0, 16, FAR, (427, 3935232, 0.0031621856), "bytes")
    ### BEGIN HIDDEN TESTS
    for seed in range(60):
        rng = check.rng(seed)
        layers, heads, dim, size = (int(rng.integers(1, n)) for n in (80, 17, 257, 5))
        latent = int(rng.integers(64, 700)) if seed % 3 == 0 else 0
        tokens, block = int(rng.integers(1, 9000)), int(rng.integers(1, 129))
        held = int(rng.integers(0, tokens + 1))
        link = Link(*(float(v) for v in (rng.uniform(0, 5e-5), rng.uniform(0, 8e-6), rng.uniform(1e9, 4e11))))
        one = layers * block * size * (latent if latent else heads * dim + heads * dim)
        blocks = len(range(0, tokens, block)) - len(range(block, held + 1, block))
        count = blocks * layers
        each = one / layers / link.bandwidth
        time = 0.0 if blocks == 0 else link.latency + count * (each if each > link.gap else link.gap)
        moves(
            Model("another model", layers, heads, dim, size, latent),
            tokens,
            held,
            block,
            link,
            (count, blocks * one, time),
        )
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "travel_test_edges", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("travel", "invalid lengths", part="edges", hidden="other lengths"):
    check.raises(ValueError, travel, LLAMA, 0, 0, 16, NEAR)
    check.raises(ValueError, travel, LLAMA, 100, -1, 16, NEAR)
    check.raises(ValueError, travel, LLAMA, 100, 101, 16, NEAR)
    check.accepts(travel, LLAMA, 1, 0, 16, NEAR)
    check.accepts(travel, LLAMA, 100, 100, 16, NEAR)
    ### BEGIN HIDDEN TESTS
    check.raises(ValueError, travel, DEEPSEEK, -5, 0, 64, FAR)
    check.raises(ValueError, travel, DEEPSEEK, 5, 6, 64, FAR)
    check.accepts(travel, DEEPSEEK, 5, 5, 64, FAR)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "travel",
    "Count blocks first: all of the prompt's, rounded up, less those that are held completely, rounded down.",
    "Bytes of a message: tokens of a block × numbers per token and layer × bytes per number. Messages: blocks × layers.",
    "The time of a message is `max(link.gap, size / link.bandwidth)`.",
)
with reveal("weight"):
    show.against_prediction("weight", 16.0, unit="ms", source="250 blocks × 32 layers × 2 µs, and the latency")
    show.table(
        [
            ("Llama-3-8B, blocks of 16", "524 MB", "16.0 ms", "419 ms"),
            ("Llama-3-8B, blocks of 64", "528 MB", "10.6 ms", "423 ms"),
            ("DeepSeek-V3, blocks of 64", "283 MB", "7.7 ms", "227 ms"),
        ],
        header=("4,000 tokens", "cache", "at 400 Gbit/s", "at 10 Gbit/s"),
        caption="Computing them takes Llama-3-8B 94 ms on one H100, in this lab's model",
    )
debrief(
    "travel",
    """On a fast link the number of messages counts, not the bytes: 8,000 messages of 64 KiB leave a third of the bandwidth unused.
    Engines therefore move larger blocks than their kernels use, or store all layers or heads of a block side by side. On a
    slow link only bytes count. Latent attention, 8-bit caches and prefixes that the decode GPU already holds make them fewer.
    Even so, a cache may take longer to travel than to compute.""",
    parts=("values", "edges"),
)

# %% [markdown]
# ## 2 · Send while you compute
#
# The cache of a layer is complete as soon as the layer is computed, long before the first token. So it can travel while
# the next layers are computed. On the virtual cluster (lab 08) rank 0 is the prefill GPU and rank 1 the decode GPU. The link has
# 14 µs and 50 GB/s, and sends one message after another.
#
# *Worked example.* 4 layers of 200 µs each, with caches of 4 MiB, which take 83.9 µs. If all are sent at the end,
# the last byte arrives after 4 · 200 + 4 · 83.9 + 14 = 1,149.5 µs. If each is sent as soon as it is computed, only the last one is
# still on its way after 800 µs: 800 + 83.9 + 14 = 897.9 µs. If a layer takes only 20 µs, the link is the bottleneck. It
# starts after 20 µs, and the last byte arrives after 20 + 4 · 83.9 + 14 = 369.5 µs.
#
# ### Exercise 2 (18 points)
#
# `send_layers(layers, x, to)` computes a prompt and sends its cache to rank `to`. `layers[i](x)` returns (the next
# layer's input, this layer's cache). Return the last layer's output.
#
# - Send each layer's cache once, in the order of the layers, as soon as it is computed.
# - Do not let the next layer wait for the link: `dist.isend(cache, to)` returns a handle at once.
# - After you return, the blocks are reused. So wait for all transfers first: `handle.wait()`.


# %% nbgrader={"grade": false, "grade_id": "send_layers", "locked": false, "schema_version": 3, "solution": true, "task": false}
def send_layers(layers: list, x: torch.Tensor, to: int) -> torch.Tensor:
    """Compute a prompt, and send the cache of each layer while the next ones are computed."""
    ### BEGIN SOLUTION
    handles = []
    for layer in layers:
        x, cache = layer(x)
        handles.append(dist.isend(cache, to))
    for handle in handles:
        handle.wait()
    return x
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "send_layers_test_values", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("send_layers", "every cache arrives", part="values", hidden="other numbers of layers, and other sizes"):
    for elements in ([5], [3, 8, 1, 6]):
        start = torch.tensor([2.0])
        require_caches(run_pair(send_layers, [1e-4] * len(elements), elements, start), elements, start)
    ### BEGIN HIDDEN TESTS
    for seed in range(4):
        rng = check.rng(seed)
        elements = [int(n) for n in rng.integers(1, 300, int(rng.integers(1, 12)))]
        start = torch.tensor([float(rng.integers(-50, 50))])
        require_caches(run_pair(send_layers, [1e-5] * len(elements), elements, start), elements, start)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "send_layers_test_traffic", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("send_layers", "each cache travels once", part="traffic", hidden="other sizes"):

    def require_traffic(elements, to=1):
        start = torch.tensor([1.0])
        run = run_pair(send_layers, [1e-4] * len(elements), elements, start, to)
        require_caches(run, elements, start)
        check.equal(len(run.messages), len(elements), what=f"messages for {len(elements)} layers")
        check.equal(run.bytes[0][to], 4 * sum(elements), what=f"bytes from rank 0 to rank {to}, {len(elements)} layers")
        check.equal(run.bytes[to][0], 0, what=f"bytes from rank {to} to rank 0")

    require_traffic([1000, 2000, 500])
    require_traffic([300, 200], 2)
    ### BEGIN HIDDEN TESTS
    require_traffic([777])
    require_traffic([1 + 37 * n for n in range(9)])
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "send_layers_test_time", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("send_layers", "no layer waits for the link", part="time", hidden="layers of different lengths and sizes"):

    def require_time(seconds, elements, expected):
        start = torch.tensor([1.0])
        run = run_pair(send_layers, seconds, elements, start)
        require_caches(run, elements, start)
        sent = 4 * sum(elements) / BETA + ALPHA
        case = f"{len(seconds)} layers of {seconds[0] * 1e6:g} µs"
        cause = "this is all layers and then all messages: send a cache before the next layer" * math.isclose(
            run.seconds, sum(seconds) + sent, rel_tol=1e-6
        )
        check.close(run.seconds * 1e6, expected * 1e6, rtol=1e-9, unit="µs", what=f"time, {case}", hint=cause)
        check.note(f"time, {case}", run.seconds * 1e6, expected * 1e6, "µs")

    require_time([2e-4] * 4, [2**20] * 4, 897.88608e-6)
    require_time([2e-5] * 4, [2**20] * 4, 369.54432e-6)
    require_time([2e-5] * 4, [2**20, 2**10, 2**10, 2**20], 201.936e-6)
    ### BEGIN HIDDEN TESTS
    for seed in range(4):
        rng = check.rng(seed + 9)
        count = int(rng.integers(2, 10))
        times = [float(v) * 1e-6 for v in rng.integers(5, 150, count)]
        sizes = [int(v) for v in rng.integers(1, 2**20, count)]
        require_time(times, sizes, arrives(times, sizes))
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "send_layers",
    "One loop over the layers. Each pass gives a new `x` and a cache.",
    "Keep the handles in a list, and wait for them in a second loop.",
)


def draw_layers(now):
    """What the GPU computes and the link sends until `now`, both ways."""
    fig, axes = figure(width=7.5, height=2.8)
    layer, message = 1.0, 0.6
    for row, overlapped in ((1, True), (0, False)):
        for n in range(6):
            begun = n * layer
            left = max(begun + layer, 0) if overlapped else 6 * layer + n * message
            for place, at, width, color in (
                (row + 0.2, begun, layer, palette.orange),
                (row - 0.15, left, message, palette.blue),
            ):
                if (shown := min(now - at, width)) > 0:
                    axes.barh(place, 0.94 * shown, left=at, height=0.3, color=color)
        end = 6 * layer + (message if overlapped else 6 * message)
        if now >= end:
            axes.text(end + 0.1, row - 0.15, f"all there after {end:.1f}", va="center", size=9)
    axes.text(-0.15, 1.2, "sent at once: computes", ha="right", va="center", size=9)
    axes.text(-0.15, 0.85, "link", ha="right", va="center", size=9, color=palette.blue)
    axes.text(-0.15, 0.2, "sent at the end: computes", ha="right", va="center", size=9)
    axes.text(-0.15, -0.15, "link", ha="right", va="center", size=9, color=palette.blue)
    axes.set(xlim=(-3.5, 12.9), ylim=(-0.45, 1.5), yticks=[], xlabel="time, in layers")
    axes.spines["left"].set_visible(False)
    axes.set_xticks(range(0, 13, 2))
    return fig


animate(
    draw_layers,
    [0.5 * n for n in range(1, 23)],
    seconds=0.45,
    caption="Six layers and their caches. Sent layer by layer, one message is left when the prompt is computed; sent at the end, all six are",
)
debrief(
    "send_layers",
    """With the overlap, only the last layer's message adds to the wait, as long as a layer takes longer to compute than to send. For Llama-3-8B on an H100 that holds from about 6 GB/s on: a token takes 22.5 µs to compute, and its cache has 131 kB. On a slower
    link, the transfer sets the time to the second token, and an overlap hides only the computation. A real engine does not even
    wait at the end: it keeps the blocks until the network card reports that they have been read.""",
    parts=("values", "traffic", "time"),
)

# %% [markdown]
# ## 3 · How many of each
#
# A prefill GPU computes one prompt after another: `1 / step(0, 0, prompt)` requests per second. A decode GPU gives `n`
# requests a token per step. More requests make longer steps, so the limit for the time per output token (**TPOT**) and
# the memory bound `n`. The slower pool sets the rate of both.
#
# *Worked example.* Prompts of 4,500 tokens, outputs of 120, a TPOT of 15 ms and room for 400,000 tokens. A prompt takes
# 0.105 s: 9.55 requests per second. While it decodes, a request has 4,500 + 60 keys on average. With n = 28 a
# step takes 14.76 ms, and with n = 29 it takes 15.004 ms, so n = 28. The first token comes from the prefill GPU, so 119 steps are left: 28 / (119 · 14.76 ms) =
# 15.94 requests per second. Of 8 GPUs, 5 compute prompts (47.7 per second) and 3 decode (47.8 per second): 47.7 in all.
#
# ### Exercise 3 (16 points)
#
# `balance(prompt, output, tpot, room, gpus, step) -> Split(prefill, decode, rate)`; `step(decodes, keys, prompt)` gives seconds.
#
# - `n` is the most requests with `step(n, n · (prompt + output/2), 0)` ≤ `tpot` and `n · (prompt + output)` ≤ `room`.
# - Each pool gets at least one of the `gpus`. Choose the split with the highest rate, and among equal ones the one with the
#   fewest prefill GPUs.
# - ValueError if there are fewer than 2 GPUs, if `output` < 2, or if not even one request keeps the limits.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "ratio",
    "The same 8 GPUs, but answers are 1,200 tokens long instead of 120. How many of the 8 compute prompts in the best split?",
    options=("1", "3", "5", "7"),
)


# %% nbgrader={"grade": false, "grade_id": "balance", "locked": false, "schema_version": 3, "solution": true, "task": false}
def balance(prompt: int, output: int, tpot: float, room: int, gpus: int, step) -> Split:
    """The split of the GPUs that completes the most requests per second."""
    ### BEGIN SOLUTION
    n = 0
    while step(n + 1, (n + 1) * (prompt + output / 2), 0) <= tpot and (n + 1) * (prompt + output) <= room:
        n += 1
    if gpus < 2 or output < 2 or not n:
        raise ValueError(
            f"gpus = {gpus}, output = {output}, {n} requests within {tpot} s: expected 2, 2 and 1 at least"
        )
    prefill = 1 / step(0, 0, prompt)
    decode = n / ((output - 1) * step(n, n * (prompt + output / 2), 0))
    splits = [Split(p, gpus - p, min(p * prefill, (gpus - p) * decode)) for p in range(1, gpus)]
    return max(splits, key=lambda split: (split.rate, split.decode))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "balance_test_rates", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("balance", "the rates of two GPUs", part="rates", hidden="other lengths, limits and steps"):
    splits(
        balance, (100, 2, 5.2, 1000, 2), toy, (1, 1, 1 / 12), "a prompt takes 2 + 100/10 s, and decoding is faster here"
    )
    splits(
        balance,
        (10, 21, 6.0, 1000, 2),
        toy,
        (1, 1, 3 / (20 * 5.615)),
        "n = 3; 20 steps, since the first token comes from the prefill",
    )
    splits(
        balance,
        (10, 20, 6.6, 1000, 2),
        toy,
        (1, 1, 3 / (19 * 5.6)),
        "n = 3: with 4, a step takes 2 + 4 + 4 · 20/100 = 6.8 s",
    )
    splits(balance, (10, 20, 5.6, 1000, 2), toy, (1, 1, 3 / (19 * 5.6)), "n = 3 keeps the limit exactly")
    splits(
        balance, (10, 20, 6.6, 60, 2), toy, (1, 1, 2 / (19 * 4.4)), "the room of 60 tokens is for two requests of 30"
    )
    splits(
        balance, (10, 20, 6.6, 90, 2), toy, (1, 1, 3 / (19 * 5.6)), "the room of 90 tokens is for three requests of 30"
    )
    ### BEGIN HIDDEN TESTS
    for seed in range(40):
        (prompt, output, tpot, room, gpus), step = random_case(seed, 2)

        def seconds(n, step=step, prompt=prompt, output=output):
            return step(n, n * (prompt + output / 2), 0)

        most = max(n for n in range(1, 400) if seconds(n) <= tpot and n * (prompt + output) <= room)
        rate = min(1 / step(0, 0, prompt), most / seconds(most) / (output - 1))
        splits(balance, (prompt, output, tpot, room, gpus), step, (1, 1, rate))
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "balance_test_split", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("balance", "the best split", part="split", hidden="other lengths, limits, steps and numbers of GPUs"):
    worked = (4500, 120, 0.015, 400_000, 8)
    splits(
        balance, worked, step_seconds, (5, 3, 47.732697), "5 · 9.55 against 3 · 15.94: the smaller of the two counts"
    )
    splits(balance, (4500, 120, 0.015, 400_000, 6), step_seconds, (4, 2, 31.877143), "3 · 9.55 is less than 2 · 15.94")
    splits(
        balance,
        (4500, 1200, 0.015, 400_000, 8),
        step_seconds,
        (1, 7, 9.546539),
        "both 1 : 7 and others are possible: compare the rates",
    )
    splits(balance, (100, 2, 5.2, 1000, 6), toy, (4, 2, 1 / 3), "4 · 1/12 against 2 · 1/4.01; with 5 : 1 it is 1/4.01")
    even = "both splits complete the same: fewer prefill GPUs"
    splits(
        balance, (30, 2, 5.2, 1000, 3), lambda decodes, keys, prompt: 2 + 3 * decodes + prompt / 10, (1, 2, 0.2), even
    )
    ### BEGIN HIDDEN TESTS
    for seed in range(60):
        (prompt, output, tpot, room, gpus), step = random_case(seed + 100, 2 + seed % 15)
        fitting = [
            n for n in range(1, 400) if step(n, n * (prompt + output / 2), 0) <= tpot and n * (prompt + output) <= room
        ]
        most = len(fitting)
        pair = (1 / step(0, 0, prompt), most / (step(most, most * (prompt + output / 2), 0) * (output - 1)))
        best = (0, 0, -1.0)
        for first in range(1, gpus):
            rate = min(first * pair[0], (gpus - first) * pair[1])
            if rate > best[2]:
                best = (first, gpus - first, rate)
        splits(balance, (prompt, output, tpot, room, gpus), step, best)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "balance_test_edges", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("balance", "impossible requests", part="edges", hidden="other cases"):
    check.raises(ValueError, balance, 100, 11, 5.2, 1000, 1, toy)
    check.raises(ValueError, balance, 100, 1, 5.2, 1000, 2, toy)
    check.raises(ValueError, balance, 100, 11, 3.0, 1000, 2, toy)
    check.raises(ValueError, balance, 100, 11, 5.2, 110, 2, toy)
    check.accepts(balance, 100, 11, 5.2, 111, 2, toy)
    check.accepts(balance, 10, 2, 5.2, 1000, 2, toy)
    ### BEGIN HIDDEN TESTS
    check.raises(ValueError, balance, 50, 7, 9.0, 1000, 0, toy)
    check.raises(ValueError, balance, 50, 7, 9.0, 56, 4, toy)
    check.accepts(balance, 50, 7, 9.0, 57, 4, toy)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "balance",
    "First a loop for `n`: it grows as long as one more request keeps both limits.",
    "The rate of a decode GPU: `n` requests complete in `output − 1` steps.",
    "Try every split from 1 to gpus − 1. `max` with the key `(rate, decode)` takes the fewest prefill GPUs among equals.",
)
with reveal("ratio"):
    show.against_prediction("ratio", "1", source="flow balance: a decode GPU completes a tenth as many")
myth("pd-1")
REPORTS = SERVICES[0]
shares_at_41 = {
    "whole prompts": in_time(REPORTS, Plan("whole"), 1),
    "chunks of 384": in_time(REPORTS, Plan("chunk", chunk=384), 1),
    "split 5 : 3": in_time(REPORTS, Plan("split", prefill=5), 1),
}
audit(
    "pd-1",
    round(100 * shares_at_41["split 5 : 3"]),
    f"% of 41 reports per second are in time when 8 GPUs are split 5 : 3, {shares_at_41['chunks of 384']:.0%} in chunks of 384 tokens, and {shares_at_41['whole prompts']:.0%} with whole prompts",
    "model",
    "holds",
    how="Run in virtual time. Against the best chunk nothing is gained: over three samples of requests, the highest rate at which 90% are in time is 44 per second for both. Whole prompts reach 23 per second, so against those a split nearly doubles the rate. Finding the best chunk is the difficulty: with 256 and 448 tokens it is 40 and 37 per second",
)
RATES = (20, 30, 40, 50)
shares = {
    (prefill, rate): in_time(replace(REPORTS, rate=rate), Plan("split", prefill=prefill), 1)
    for prefill in range(1, 8)
    for rate in RATES
}


def draw_ratio(prefill, rate):
    fig, axes = figure(width=8.0, height=3.0)
    places = range(1, 8)
    axes.bar(
        places,
        [100 * shares[place, rate] for place in places],
        color=[palette.blue if place == prefill else palette.grey for place in places],
    )
    share = shares[prefill, rate]
    axes.text(prefill, 100 * share + 3, f"{share:.0%}", ha="center", weight="bold")
    axes.set(ylim=(0, 119), xlabel="prefill GPUs of 8", ylabel="in time (%)", title=f"{rate} reports per second")
    axes.set_xticks(places, [f"{place} : {8 - place}" for place in places])
    return fig


explore(
    draw_ratio,
    prefill=(1, 7, 1, 5),
    rate=(20, 50, 10, 40),
    labels={"prefill": "prefill GPUs", "rate": "requests per second"},
)
debrief(
    "balance",
    """The best ratio follows from the lengths of prompts and answers, and these change over a day. Move the slider: at
    20 requests per second many ratios will do, at 40 only one or two, and every mistake on either side is expensive. Real systems
    measure both queues and turn a GPU from one kind into the other after it has finished its requests. Flow balance is where to start, but it knows no
    queues: they need spare capacity, which the simulation shows.""",
    parts=("rates", "split", "edges"),
)

# %% [markdown]
# ## 4 · Which GPU takes a prompt
#
# Prompts often begin alike: with a system prompt, or with the conversation so far. A GPU that has such a prefix in its cache
# computes only the rest. But if all prompts go where their prefix is, a queue grows there. And if the GPU is
# behind a slow link, its caches arrive late. The GPU that decodes can compute a prompt itself: slowly, since it
# decodes at the same time, but then nothing has to travel.
#
# *Worked example.* A prompt has 2,300 tokens. The first target computes 45,000 tokens/s, has 4,500 tokens queued, and has all
# but 300 of the prompt's tokens in its cache: (4,500 + 300) / 45,000 = 0.107 s. The second has an empty queue and nothing in
# its cache: 2,300 / 45,000 = 0.051 s. Either way the cache arrives 2,300 · 2.6 µs = 0.006 s later. The second is better.
#
# ### Exercise 4 (18 points)
#
# `route(prompt, targets) -> int` is the index of the `Target` that computes a prompt of `prompt` tokens. It is scored on its result:
# P95 of the time until the second token can be made, over 300 prompts (`run_router`). Grading uses other prompts.
#
# - P95 may be at most 40% of that of the shortest queue, with `"popular"` prefixes and with `"even"` ones.
# - Clear cases must be right: equal targets except for the queue, the cached tokens, the speed, or the travel.
#
# `run_router(route, 1, "popular")` returns the sorted waits, and `late(waits)` is their P95. `shortest_queue` is a route too.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "prefix",
    "Prefixes are popular, and every prompt goes to the GPU that has most of it in its cache. How long is P95 of the wait, compared with that of the shortest queue?",
    options=("less than 40%", "40% to 80%", "more than 80%"),
)


# %% nbgrader={"grade": false, "grade_id": "route", "locked": false, "schema_version": 3, "solution": true, "task": false}
def route(prompt: int, targets: list[Target]) -> int:
    """The index of the target that computes this prompt."""
    ### BEGIN SOLUTION

    def second_token(target):
        return (target.queued + prompt - target.cached) / target.speed + prompt * target.travel

    return min(range(len(targets)), key=lambda index: second_token(targets[index]))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "route_test_cases", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("route", "clear cases", part="cases", hidden="other numbers, in other orders"):
    USUAL = Target(queued=2000, cached=0, speed=45e3, travel=2.6e-6)

    def chooses(prompt, targets, expected, why):
        got = route(prompt, list(targets))
        shown = "; ".join(
            f"{t.queued} queued, {t.cached} cached, {t.speed:g} tokens/s, {t.travel:g} s/token" for t in targets
        )
        check.equal(got, expected, what=f"index for a prompt of {prompt}, targets: {shown}", hint=why)

    clear = {
        "an empty queue is better": replace(USUAL, queued=0),
        "a prompt that is in the cache is better": replace(USUAL, cached=1900),
        "a faster GPU is better": replace(USUAL, speed=90e3),
        "a cache that need not travel is better": replace(USUAL, travel=0.0),
    }
    for why, better in clear.items():
        chooses(2000, [better, USUAL], 0, why)
        chooses(2000, [USUAL, USUAL, better], 2, why)
    chooses(2300, [replace(USUAL, queued=4500, cached=2000), replace(USUAL, queued=0)], 1, "0.113 s against 0.057 s")
    chooses(300, [replace(USUAL, queued=9000), Target(0, 0, 22e3, 0.0)], 1, "0.207 s against 0.014 s")
    chooses(6000, [replace(USUAL, queued=0), Target(0, 0, 22e3, 0.0)], 0, "0.149 s against 0.273 s")
    chooses(
        4000,
        [replace(USUAL, travel=105e-6), replace(USUAL, queued=9000)],
        1,
        "0.553 s against 0.299 s: the travel counts",
    )
    arriving = "0.464 s against 0.144 s: the cache of the whole prompt travels"
    chooses(4000, [replace(USUAL, cached=4000, travel=105e-6), USUAL], 1, arriving)
    chooses(500, [USUAL], 0, "there is one target")
    ### BEGIN HIDDEN TESTS
    for seed in range(40):
        rng = check.rng(seed)
        base = Target(
            int(rng.integers(1000, 9000)), 0, float(rng.integers(20, 60)) * 1e3, float(rng.uniform(5e-6, 1e-4))
        )
        prompt, count = int(rng.integers(1000, 8000)), int(rng.integers(1, 7))
        better = (
            replace(base, queued=int(0.3 * base.queued)),
            replace(base, cached=int(0.8 * prompt)),
            replace(base, speed=2 * base.speed),
            replace(base, travel=0.0),
        )[seed % 4]
        place = int(rng.integers(0, count + 1))
        chooses(prompt, [better if n == place else base for n in range(count + 1)], place, "")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "route_test_waits", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("route", "300 prompts", part="waits", hidden="other prompts"):

    def require_waits(kind, seed, model=None):
        got, usual = late(run_router(route, seed, kind)), late(run_router(shortest_queue, seed, kind))
        check.true(
            got <= 0.4 * usual,
            f"P95 of the wait, {kind} prefixes: {got:.3f} s; expected at most 40% of {usual:.3f} s, that of the shortest queue",
        )
        if model:
            check.note(f"P95, {kind} prefixes", round(got, 3), model, "s")

    require_waits("popular", 1, 0.117)
    require_waits("popular", 2)
    require_waits("even", 1, 0.150)
    ### BEGIN HIDDEN TESTS
    for seed in (3, 4, 5):
        require_waits("popular", seed)
        require_waits("even", seed)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "route",
    "Which target can make the second token first? Add up three times: the queue, the rest of the prompt, and the travel.",
    "The rest of the prompt is `prompt - target.cached`. The cache of all of the prompt travels.",
)


def by_prefix(prompt, targets):
    """The most cached tokens; of equal ones the shortest queue."""
    return max(range(len(targets)), key=lambda index: (targets[index].cached, -targets[index].queued))


with reveal("prefix"):
    turns = cycle(range(4))
    rows = [
        (name, *(f"{late(run_router(rule, 1, kind)):.2f} s" for kind in ("popular", "even")))
        for name, rule in (
            ("in turn", lambda prompt, targets: next(turns)),
            ("shortest queue", shortest_queue),
            ("longest prefix", by_prefix),
        )
    ]
    show.against_prediction("prefix", "40% to 80%", source="300 prompts in virtual time, popular prefixes")
    show.table(rows, header=("P95 of the wait", "popular prefixes", "even prefixes"))
myth("pd-3")
per_token = {
    name: 1e6 * (1 / speed + way)
    for name, speed, way in (("here", 22e3, 0), ("near", 45e3, 2.6e-6), ("far", 45e3, 105e-6))
}
audit(
    "pd-3",
    round(per_token["here"]),
    f"µs per token of a prompt on the decode GPU; {per_token['near']:.0f} on a prefill GPU with its travel at 400 Gbit/s, and {per_token['far']:.0f} at 10 Gbit/s",
    "model",
    "corrected",
    how="With empty queues all three times are proportional to the prompt, so its length decides nothing: at 400 Gbit/s no prompt is faster here, and at 10 Gbit/s every one is. The queues, the link and, as the claim says, the cached tokens decide. A local prompt also lengthens the steps of other requests. That is not counted here, and is a reason to compute only short ones locally",
)
debrief(
    "route",
    """The shortest queue ignores what is in the caches, and the longest prefix ignores queues: popular prefixes then pile up on one
    GPU. A router that adds up seconds weighs both, and it lets a second GPU compute a popular prefix exactly when the queue at the first costs
    more than that. Routers in practice score the same three things, often as a weighted sum that has to be
    tuned. Seconds need no weights, but they need a model of the speed.""",
    parts=("cases", "waits"),
)

# %% [markdown]
# ## 5 · What to keep, and where
#
# A cached block saves its computation (10 ms here, for a block of several hundred tokens). The GPU's memory is
# soon full. Behind it are cheaper **tiers**: the host's memory, local disks, a store that all machines share. Loading a block from the host takes 2 ms.
# Which block leaves when a tier is full? Usually the one that was used least recently (**LRU**). But a long document that is
# read once is recent when it is read, and pushes out conversations that will go on.
#
# *Worked example.* Room for two blocks. Block A was used at 1, 5 and 8 s, B at 9 s for the first time, and C comes at 10 s. LRU drops A. If
# B is from a document, A was the better one to keep.
#
# ### Exercise 5 (16 points)
#
# `keep(blocks, now) -> array` returns the worth of each block of a full tier. The fields of `Blocks` (`first`, `last`, `uses`, `depth`) are NumPy arrays
# with an element per block. Blocks with the smallest values move down: from the GPU (room for 120) to the host (240), and from
# there they are dropped. `run_tiers(keep, prompts_of("documents", 1))` returns the seconds that are spent on loading blocks and
# on computing again those that were cached once, and how many blocks it found on the GPU, on the host, and nowhere.
# `oldest_first` is LRU.
#
# - `"documents"` (a third of the prompts are read once): at most 70% of the seconds of LRU.
# - `"chat"` (nearly all conversations go on): at most 110%, by a rule that takes at most 90% for `"documents"`.


# %% nbgrader={"grade": false, "grade_id": "keep", "locked": false, "schema_version": 3, "solution": true, "task": false}
def keep(blocks: Blocks, now: float) -> np.ndarray:
    """The worth of each block: those with the smallest values leave."""
    ### BEGIN SOLUTION
    return blocks.last + 60 * (blocks.uses > 1)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "keep_test_documents", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("keep", "documents that are read once", part="documents", hidden="other prompts"):
    require_tiers(keep, "documents", 0.7, 1, 0.53)
    require_tiers(keep, "documents", 0.7, 2)
    require_tiers(keep, "documents", 0.7, 3)
    ### BEGIN HIDDEN TESTS
    for seed in (4, 5, 6):
        require_tiers(keep, "documents", 0.7, seed)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "keep_test_chat", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("keep", "conversations that go on", part="chat", hidden="other prompts"):
    require_tiers(keep, "documents", 0.9, 1)
    require_tiers(keep, "chat", 1.1, 1, 0.78)
    require_tiers(keep, "chat", 1.1, 3)
    require_tiers(keep, "chat", 1.1, 5)
    ### BEGIN HIDDEN TESTS
    for seed in (2, 4, 6):
        require_tiers(keep, "chat", 1.1, seed)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "keep",
    "What tells a block of a document from one of a conversation? It was used once.",
    "The number of uses alone is not enough: blocks of a conversation that has ended keep their number. Mix both.",
    "Try `blocks.last` plus a bonus in seconds for blocks that were used more than once, or a count that fades with age.",
)
spent = {
    name: [run_tiers(rule, prompts_of(kind, 1)) for kind in ("documents", "chat")]
    for name, rule in (
        ("LRU", oldest_first),
        ("most uses", lambda blocks, now: blocks.uses),
        ("first come, first gone", lambda blocks, now: blocks.first),
    )
}
show.table(
    [(name, *(f"{seconds:.1f} s" for seconds, _ in both)) for name, both in spent.items()],
    header=("kept", "documents", "chat"),
    caption="Seconds spent on loading and on computing again",
)
debrief(
    "keep",
    """Counting uses protects conversations from documents, and fails for chat: a conversation that has ended keeps its count for ever.
    Recency forgets, counts remember, and a bounded bonus does both. Databases met the same problem decades ago (2Q, ARC, and
    segmented LRU are their answers). A further gain has to come from other knowledge: which conversation will go on, and
    what a block costs to compute again, which grows with its depth in the prompt because of attention.""",
    parts=("documents", "chat"),
)

# %% [markdown]
# ## 6 · You decide
#
# Four services run on Llama-3-8B (`SERVICES`). Each has limits for the time to the first token (**TTFT**) and the mean time
# between tokens (TPOT):
#
# | | GPUs | requests/s | prompt | output | TTFT | TPOT | between GPUs |
# |---|---|---|---|---|---|---|---|
# | reports | 8 | 41 | 3,000–6,000 | 80–160 | 1 s | 15 ms | 400 Gbit/s |
# | branch office | 8 | 45 | 3,000–6,000 | 80–160 | 1 s | 25 ms | 10 Gbit/s |
# | agents | 8 | 88 | 200–800 | 300–600 | 1 s | 14 ms | 400 Gbit/s |
# | code | 4 | 76 | 1,000–2,000 | 20–60 | 0.3 s | 13 ms | 400 Gbit/s |
#
# There are three ways to run them. **Whole** prompts: each GPU computes a prompt in a step of its own, and its other requests
# wait. **Chunks**: each step takes up to `chunk` tokens of prompts beside the answers (lab 16). **Split**: `prefill` of the
# GPUs compute prompts only.
#
# *Worked example.* `in_time(SERVICES[0], Plan("chunk", chunk=512), 1)` is the share of the first 960 reports that are in
# time if each step takes 512 tokens of prompts: 59%. With `chunk=384` it is 99%.
#
# ### Exercise 6 (18 points)
#
# `choose(service) -> Plan` returns a plan with which at least 90% of the requests keep both limits. Each service has points of its own;
# checks take the seeds 1, 2, 3 and 6, and grading others. You may reason, look the plan up by `service.name`, or search with `in_time`.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "gap",
    "One GPU of `reports` computes whole prompts, for 2.5 requests per second. How long does a reader wait for the next token, at most?",
    options=("15 ms", "50 ms", "more than 0.1 s"),
)


# %% nbgrader={"grade": false, "grade_id": "choose", "locked": false, "schema_version": 3, "solution": true, "task": false}
def choose(service: Service) -> Plan:
    """The way to run this service."""
    ### BEGIN SOLUTION
    prompt, output = sum(service.prompt) / 2, sum(service.output) / 2
    if KV / service.bandwidth > 22.5e-6:  # a cache travels for longer than it takes to compute it
        return Plan("chunk", chunk=512)
    if prompt < 2 * output:  # few prompts: their GPUs would be idle
        return Plan("chunk", chunk=128)
    n = 1
    while step_seconds(n + 1, (n + 1) * (prompt + output / 2)) <= service.tpot:
        n += 1
    decode = n / ((output - 1) * step_seconds(n, n * (prompt + output / 2)))
    rates = {p: min(p / step_seconds(0, 0, prompt), (service.gpus - p) * decode) for p in range(1, service.gpus)}
    return Plan("split", prefill=max(rates, key=rates.get))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "choose_test_reports", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose", "reports: 90% are in time", part="reports", hidden="other requests"):
    require_plan(choose, "reports", [1, 2, 3, 6])
    ### BEGIN HIDDEN TESTS
    require_plan(choose, "reports", [4, 7])
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "choose_test_branch", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose", "branch office: 90% are in time", part="branch", hidden="other requests"):
    require_plan(choose, "branch office", [1, 2, 3, 6])
    ### BEGIN HIDDEN TESTS
    require_plan(choose, "branch office", [4, 7])
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "choose_test_agents", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose", "agents: 90% are in time", part="agents", hidden="other requests"):
    require_plan(choose, "agents", [1, 2, 3, 6])
    ### BEGIN HIDDEN TESTS
    require_plan(choose, "agents", [4, 7])
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "choose_test_code", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose", "code: 90% are in time", part="code", hidden="other requests"):
    require_plan(choose, "code", [1, 2, 3, 6])
    ### BEGIN HIDDEN TESTS
    require_plan(choose, "code", [4, 7])
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "choose",
    "Print `in_time(service, plan, seed)` with the seeds 1, 2, 3 and 6, for chunks of 128, 256, 384 and 512, and for each number of prefill GPUs.",
    "Compare a token's travel, KV / bandwidth, with the 22.5 µs that it takes to compute: is a split possible at all?",
    "The ratio of a split follows from flow balance, as in section 3.",
)


def steps_of(plan):
    """Steps of one GPU of the reports at half of the load, and the longest time between two tokens of a request."""
    work = requests_of(replace(REPORTS, gpus=1, rate=2.5), 3)[:60]
    firsts, lasts, steps = run_gpu([(at, prompt, 0, output) for at, prompt, output in work], plan.chunk)
    ends = np.array([ended for _, ended, decodes, _ in steps if decodes])
    waits = (
        np.diff([first, *ends[(ends > first) & (ends <= last)]]).max()
        for first, last in zip(firsts, lasts, strict=True)
    )
    return steps, max(waits)


both = {"whole prompts": steps_of(Plan("whole")), "chunks of 384": steps_of(Plan("chunk", chunk=384))}
with reveal("gap"):
    show.against_prediction(
        "gap", "more than 0.1 s", source=f"{both['whole prompts'][1] * 1000:.0f} ms in virtual time"
    )
    plot, axes = figure(width=7.5, height=2.6)
    for row, (name, (steps, longest)) in enumerate(both.items()):
        for begun, ended, decodes, tokens in steps:
            if 4.0 < begun < 6.0:
                color = palette.orange if tokens > 1 and not decodes else palette.sky if tokens else palette.green
                axes.barh(-row, ended - begun, left=begun, height=0.5, color=color, edgecolor="none")
        axes.text(3.98, -row, f"{name}\nlongest wait {longest * 1000:.0f} ms", ha="right", va="center", size=9)
    axes.text(4.0, 0.5, "green: answers only · orange: a prompt, everybody waits · blue: both", size=9)
    axes.set(xlim=(3.3, 6.0), ylim=(-1.5, 0.8), yticks=[], xlabel="seconds")
    axes.spines["left"].set_visible(False)
    axes.set_xticks([4.0, 4.5, 5.0, 5.5, 6.0])
    show.figure(
        plot,
        "Steps of one GPU with whole prompts and with chunks: whole prompts leave gaps of more than a tenth of a second",
    )
myth("pd-2")
CODE = SERVICES[3]
code_shares = {
    name: sum(in_time(CODE, plan, seed) for seed in (1, 2, 3)) / 3
    for name, plan in (("split 3 : 1", Plan("split", prefill=3)), ("chunks of 352", Plan("chunk", chunk=352)))
}
audit(
    "pd-2",
    round(100 * code_shares["split 3 : 1"]),
    f"% of the code completions are in time when 4 GPUs are split 3 : 1, and {code_shares['chunks of 352']:.0%} in chunks of 352, the best chunk; prompts are 37.5 times as long as outputs",
    "model",
    "corrected",
    how="Run in virtual time, on a dense model of 8 billion parameters. The split completes 82 requests per second with 90% in time over three samples, and the best chunk 74. For the reports, where prompts are 37.5 times as long as well, it is 44 against 44, so the ratio of lengths alone decides nothing. Whole prompts lose clearly in both, 30 and 23 per second",
)
debrief(
    "choose",
    """Interference has two cures. Chunks fill the idle arithmetic of decode steps with prompts, which is efficient. But the chunk has to fit
    the TPOT: if it is too small, prompts queue, and if it is too large, tokens are late. A split needs no chunk size, but it needs a fast link and
    the right ratio. For the reports both work. The code completions need short steps *and* many prompts, so a split wins. Agents
    write nearly as much as they read, so GPUs for prompts would be idle. In the branch office a cache takes nearly five times as
    long to travel as to compute.

    In large models there are further reasons for a split that this lab leaves out: each pool can have its own parallelism
    (lab 11), and experts balance better if all GPUs are in the same phase.""",
    parts=("reports", "branch", "agents", "code"),
)

# %% [markdown]
# ## Your router in a real service
#
# Two processes of the course's engine on this machine: one computes prompts, and one decodes. The keys and values go from one to the
# other through a socket, layer by layer. `route` chooses between the prefill process and the decode process itself, and
# the tokens must be those of a single engine (about 20 seconds).

# %% tags=["demo"] jupyter={"source_hidden": true}
if pieces := together("route"):
    from threeloops.lab.drawings.product.disaggregated import serve_really

    show.table(
        serve_really(pieces.route, Target),
        header=("prompt", "computed by", "first token", "the other tokens", "equal to one engine"),
        caption="The course's tiny model on this CPU, two processes",
    )

# %% [markdown]
# ## In practice
#
# | here | Dynamo | llm-d | SGLang | vLLM |
# |---|---|---|---|---|
# | two kinds of GPUs | `--disaggregation-mode` | two Deployments with the label `llm-d.ai/role` | `--disaggregation-mode prefill` | `--kv-transfer-config` with `kv_role` |
# | the link | NIXL | NIXL | `--disaggregation-transfer-backend` | `NixlConnector` |
# | layer by layer | | | | `save_kv_layer` of a connector |
# | the router | `--router-mode kv` | the endpoint picker (EPP) and its scorers | `sglang_router` with `--pd-disaggregation` | |
# | tiers | KV block manager | | `--enable-hierarchical-cache` | `OffloadingConnector` |
# | the ratio | Planner | | | |
#
# ## What to remember
#
# - A cache weighs 2 · layers · KV heads · head dimension · bytes per token. Compare its travel with the time to compute it.
# - Send a layer while the next is computed, in messages that are not too small.
# - The ratio of the pools follows from the lengths of prompts and answers, and changes with them.
# - A router adds up seconds: queue, rest of the prompt, travel.
# - Chunks of the right size do as well as a split in many services. Measure both, under your limits.
#
# ## Reflection
#
# A team reports that splitting its 8 GPUs into 4 : 4 halved the time between tokens, but now first tokens are late. What do
# you look at, and what do you propose? A paragraph is enough.

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# I would look at the queue of each pool and at the lengths of prompts and answers. If prompts wait while the decode GPUs have free seats, the
# ratio is wrong: flow balance says how many prefill GPUs these lengths need, perhaps 5 or 6. If prompts do not wait, I would
# look at the link: how long a cache travels, whether it leaves layer by layer, and how large its messages are. Then I would compare
# with chunked prompts on all 8 GPUs under the same limits, because a well-chosen chunk may do as well without a link.

# %% tags=["demo"] jupyter={"source_hidden": true}
term("disaggregated serving")
calibration()
