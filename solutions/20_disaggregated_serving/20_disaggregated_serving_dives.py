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
#     title: When is it worth moving the cache? Deep dives
#     minutes: 40
# ---

# %% [markdown]
# # When is it worth moving the cache? Deep dives
#
# These sections are complete and ungraded, and can be read in any order: a day whose lengths change, a store that many
# machines share, measurements that NVIDIA published, and machines that fail in the middle of a transfer.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] jupyter={"source_hidden": true} nbgrader={"grade": false, "grade_id": "setup_dives", "locked": true, "schema_version": 3, "solution": false, "task": false}
from dataclasses import replace

import numpy as np
from threeloops.hardware.measured import MEASURED_BY
from threeloops.hardware.measured import measured as published
from threeloops.lab import calibration, figure, palette, predict, progress, reveal, show, term
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import CHUNKED, StepShape, block_keys
from threeloops.product.batching.simulated import LatentKernelCost
from threeloops.product.disaggregated import (
    CacheShape,
    Deployment,
    Handover,
    Link,
    MachineFailure,
    Pool,
    RoleChanges,
    Tier,
    TieredCache,
    by_reuse_and_cost,
    lru,
    simulate,
)
from threeloops.product.loadgen import Arrival, poisson, requests_of, trace, uniform

LLAMA = GPTConfig(128256, 32, 32, 8, 4096, 14336, 8192, tied_embeddings=False)
SHAPE = CacheShape.of(LLAMA)
HANDOVER = Handover(Link(latency=10e-6, bandwidth=50e9), SHAPE, "layers")
POLICY = replace(CHUNKED, max_running=64, prefix_cache=False)
BLOCKS = 24_000  # of 16 tokens: 50 GB of a GPU's memory


def step_seconds(step):
    """Seconds of one step of Llama-3-8B on an H100, with the five constants of the lab."""
    keys = [start + 1 for start, count, _ in step.chunks if count == 1]
    tokens = sum(count for _, count, _ in step.chunks)
    return 3.5e-3 + max(4.5e-3, 22.5e-6 * tokens) + 42e-9 * sum(keys) + 50e-6 * len(keys)


def deployment(prefill, decode, **other):
    """A deployment of Llama-3-8B on so many H100s of each kind, over 400 Gbit/s unless `handover` says otherwise."""
    pools = Pool(prefill, replace(POLICY, token_budget=8192), BLOCKS), Pool(decode, POLICY, BLOCKS)
    return Deployment(step_seconds, other.pop("handover", HANDOVER), *pools, **other)


# %% [markdown]
# ## A day whose lengths change
#
# The best ratio of prefill to decode GPUs follows from the lengths of prompts and answers (section 3 of the lab). These
# change over a day. Here a day of 12 seconds has two parts, and four H100s serve it. In the first part people summarise
# reports: 16 requests per second, with prompts of 4,500 tokens and answers of 100. In the second they chat: 44 requests per second, with prompts of 500
# tokens and answers of 300.
#
# A *rule for roles* looks at both pools four times per second. If one is above its high mark while the other is
# below its low mark, a GPU of the idle pool finishes its requests and changes its role, which takes half a second here. Between the marks
# nothing changes, so that GPUs do not go back and forth. The cell simulates five such days, in about 6 seconds.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "day",
    "Four GPUs. Which fixed split keeps 90% of the requests in time in both parts of the day?",
    options=("1 : 3", "2 : 2", "3 : 1", "none"),
)
REPORTS = trace(poisson(16.0, 1), 96, uniform(3000, 6000), uniform(60, 140), seed=1)
NOON = REPORTS[-1].at
DAY = REPORTS + [
    Arrival(NOON + chat.at, tuple((number + 10**6, tokens) for number, tokens in chat.prompt), chat.max_tokens)
    for chat in trace(poisson(44.0, 2), 270, uniform(200, 800), uniform(200, 400), seed=2)
]
RULE = RoleChanges(prefill=(0.1, 0.4), decode=(0.3, 0.5), period=0.25, pause=1.0, seconds=0.5)
WAYS = {
    "1 : 3": deployment(1, 3),
    "2 : 2": deployment(2, 2),
    "3 : 1": deployment(3, 1),
    "roles change, from 2 : 2": deployment(2, 2, roles=RULE),
    "each GPU does both, chunks of 512": deployment(0, 4),
}
days = {way: simulate(DAY, WAYS[way]) for way in progress(list(WAYS), "days")}


def in_time(run):
    """The share of the requests with a first token within 1 s and 15 ms per further token, before and after noon."""
    parts = [], []
    for request in run.requests:
        times = request.token_times
        is_good = times[0] - request.arrival <= 1 and (times[-1] - times[0]) / (len(times) - 1) <= 0.015
        parts[request.arrival > NOON].append(is_good)
    return [float(np.mean(part)) for part in parts]


# %% tags=["demo"] jupyter={"source_hidden": true}
with reveal("day"):
    shares = {way: in_time(run) for way, run in days.items()}
    good = [way for way in ("1 : 3", "2 : 2", "3 : 1") if min(shares[way]) >= 0.9]
    show.against_prediction("day", good[0] if good else "none", source="virtual time")
    show.table(
        [(way, f"{before:.0%}", f"{after:.0%}") for way, (before, after) in shares.items()],
        header=("prefill : decode", "reports", "chat"),
        caption="Requests in time: a first token within 1 s, then 15 ms per token",
    )
    plot, axes = figure(width=8.0, height=2.4)
    lives = days["roles change, from 2 : 2"].machines
    end = max(arrival.at for arrival in DAY)
    for row, life in enumerate(lives):
        moments = [moment for moment, _ in life.roles] + [end]
        for (begun, role), ended in zip(life.roles, moments[1:], strict=True):
            color = {"prefill": palette.orange, "decode": palette.green}.get(role)
            if color and begun < end:
                axes.barh(-row, min(ended, end) - begun, left=begun, height=0.6, color=color)
        axes.text(-0.2, -row, f"GPU {row}", ha="right", va="center")
    axes.axvline(NOON, color=palette.ink, lw=1)
    axes.text(NOON - 0.1, 0.55, "reports", ha="right", color=palette.ink)
    axes.text(NOON + 0.1, 0.55, "chat", color=palette.ink)
    axes.text(0, 0.55, "orange: prompts · green: answers", color=palette.ink)
    axes.set(xlim=(-1.4, end), ylim=(-3.5, 1.1), yticks=[], xlabel="seconds")
    axes.spines["left"].set_visible(False)
    show.figure(plot, "The role of each of four GPUs over the day, with the rule that changes roles")

# %% [markdown]
# With 1 : 3 the chats are late too, because the queue of reports is still there. The rule serves both parts. A GPU
# that changes its role keeps its weights, since both kinds need the same ones, but it has to finish the answers
# that it has begun. So the rule follows changes over minutes; a burst of a second is over before a GPU is free.
# Compare the last row before you build such a rule: GPUs that do both kinds of work have no roles to change.
#
# ## A store that many machines share
#
# Section 5 of the lab has two tiers. Many services add a third: a *remote store* that all machines share, and that holds much more. A block
# from there travels over the network. It is worth loading only if that is faster than computing it again.
#
# The next cell uses the library's `TieredCache`. Half of the prompts begin with one of 16 instructions of 2,000 tokens, and half are
# documents that come once. The GPU has room for 1,000 blocks of 16 tokens, the host for 3,000, and the store for 30,000.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "store",
    "Least recently used blocks leave first. With a remote store at 20 Gbit/s behind the host's memory, more blocks are found. Do prompts take less time?",
    options=("yes, less than half", "yes, a little less", "no, more"),
)
BLOCK_BYTES = 16 * SHAPE.token_bytes
BLOCK_SECONDS = 16 * step_seconds(StepShape(((0, 2048, True),))) / 2048
NEAR = (Tier("GPU", 1000), Tier("host", 3000, 20e-6, 50e9))
TIERS = {
    "no store": NEAR,
    "100 Gbit/s": (*NEAR, Tier("store", 30_000, 1e-3, 12.5e9)),
    "20 Gbit/s": (*NEAR, Tier("store", 30_000, 1e-3, 2.5e9)),
}
shared = trace(poisson(1, 1), 200, uniform(50, 150), uniform(1, 2), prefixes=16, prefix_length=2000, seed=1)
documents = trace(poisson(1, 2), 200, uniform(1500, 3000), uniform(1, 2), seed=2)
documents = [Arrival(one.at, tuple((number + 10**6, tokens) for number, tokens in one.prompt), 1) for one in documents]
PROMPTS = [
    block_keys(request, 16, len(request.prompt))
    for request in requests_of(sorted(shared + documents, key=lambda one: one.at), 256)
]


def play(tiers, eviction):
    """The share of blocks found, and the mean seconds that a prompt takes to load them and to compute the others."""
    cache = TieredCache(tiers, BLOCK_BYTES, eviction)
    seconds = 0.0
    for keys in PROMPTS:
        hits = cache.use(keys, BLOCK_SECONDS)
        seconds += hits.seconds + hits.missing * BLOCK_SECONDS
    return cache.hit_rate, seconds / len(PROMPTS)


RULES = {"LRU": lru, "reuse and cost": by_reuse_and_cost}
played = {(store, rule): play(TIERS[store], RULES[rule]) for store in TIERS for rule in RULES}

# %% tags=["demo"] jupyter={"source_hidden": true}
with reveal("store"):
    ratio = played["20 Gbit/s", "LRU"][1] / played["no store", "LRU"][1]
    answer = "no, more" if ratio > 1 else "yes, a little less" if ratio > 0.5 else "yes, less than half"
    show.against_prediction("store", answer, source=f"{ratio:.2f} times the time without a store, in the model")
    usual = played["no store", "LRU"][1]
    show.table(
        [
            (store, rule, f"{share:.0%}", f"{1e3 * seconds:.1f} ms", f"{seconds / usual:.2f}")
            for (store, rule), (share, seconds) in played.items()
        ],
        header=("store", "rule", "found", "per prompt", "ratio"),
        caption="400 prompts: loading what is found, and computing the rest; ratio to LRU without a store",
    )
    print(f"A block of 16 tokens takes {1e3 * BLOCK_SECONDS:.2f} ms to compute.")
    print(
        f"From the store it takes {BLOCK_BYTES / 12.5e6:.2f} ms at 100 Gbit/s, and {BLOCK_BYTES / 2.5e6:.2f} ms at 20 Gbit/s."
    )

# %% [markdown]
# Both stores have the same hit rate, and one of them makes prompts slower than no store at all. So judge a cache by the seconds
# that it saves. Loading a block is faster than computing it from about 5 GB/s on,
# close to the bound for a transfer in section 2 of the lab. The library's simulation compares the two for each prompt, and computes whatever
# the store would bring later (`Deployment(store=…)`).
#
# The rule matters as much as the store. By reuse and cost, instructions stay near, so without any store it
# is as fast as LRU with the fast one. Everything
# fits in the store, so behind it the rule changes only how near a block is, not whether it is found.
#
# ## What NVIDIA measured
#
# All times so far come from models. NVIDIA published measurements of DeepSeek-V3 in 8 bits, with prompts and answers on the same GPUs and
# on separate ones. The next cell takes those on H200s with TensorRT-LLM, prompts of 8,192 tokens and answers of 1,024. Each point
# states its batch, its workers, and the times to the first and per further token. The tokens per second and GPU follow from
# these.
#
# The workers differ in one more way. Some are *tensor parallel*: 8 GPUs compute each request together. In others attention
# is *data parallel*: each GPU serves requests of its own, and only the experts are shared (lab 11).

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "published",
    "On the same 8 GPUs, a token takes 36 ms, and each GPU makes 109 tokens per second. A split with 8 + 8 GPUs also takes 36 ms per token. How many tokens per second does each of its GPUs make?",
    unit="tokens/s",
)
TABLE = published("disaggregated").where(device="H200 SXM", backend="trtllm", gemm_quant_mode="fp8", isl=8192, osl=1024)


def points(mode, decode_tp):
    """(ms per token, tokens per second and GPU, batch) of the published points, sorted."""
    rows = TABLE.where(mode=mode, decode_tp=decode_tp)
    gpus = rows["prefill_workers"] * rows["prefill_tp"] * rows["prefill_dp"]
    gpus = gpus + rows["decode_workers"] * rows["decode_tp"] * rows["decode_dp"]
    requests = rows["decode_batch"] * rows["decode_workers"] * rows["decode_dp"]
    seconds = (rows["silicon_ttft_ms"] + rows["osl"] * rows["silicon_tpot_ms"]) / 1e3
    rates = requests * rows["osl"] / seconds / gpus
    return sorted(zip(rows["silicon_tpot_ms"], rates, rows["decode_batch"], strict=True))


SETS = {
    "same GPUs, tensor parallel": (points("agg", 8), palette.green),
    "split, tensor parallel": (points("disagg", 8), palette.blue),
    "split, data parallel": (points("disagg", 1), palette.orange),
}

# %% tags=["demo"] jupyter={"source_hidden": true}
with reveal("published"):
    split = min(SETS["split, data parallel"][0], key=lambda point: abs(point[0] - 36))
    show.against_prediction("published", round(split[1]), unit="tokens/s", source=MEASURED_BY)
    plot, axes = figure(width=8.0, height=3.4)
    for name, (found, color) in SETS.items():
        axes.plot([ms for ms, _, _ in found], [rate for _, rate, _ in found], "o-", color=color)
        place = (11, 118) if color == palette.blue else (found[-1][0] + 0.8, found[-1][1])
        axes.text(*place, name, color=color, va="center", weight="bold")
    axes.set(xlim=(10, 90), ylim=(0, 280), xlabel="ms per token", ylabel="tokens/s per GPU")
    show.figure(plot, f"DeepSeek-V3 on H200s, 8,192 tokens of prompt and 1,024 of answer: {MEASURED_BY}")
    tensor = LatentKernelCost(ranks=8, groups=1, expert_ranks=1, skew=1.01)
    data = LatentKernelCost(ranks=1, groups=8, expert_ranks=8, skew=1.01)
    rows = []
    for name, cost in (("split, tensor parallel", tensor), ("split, data parallel", data)):
        for ms, _, batch in sorted({(round(ms, 1), 0, batch) for ms, _, batch in SETS[name][0]}):
            model = 1e3 * float(cost.even(batch, 8192 + 512))
            rows.append(
                (name.split(", ")[1], f"{batch:.0f}", f"{ms:.1f} ms", f"{model:.1f} ms", f"{model / ms - 1:+.0%}")
            )
    show.table(
        rows,
        header=("split, answers are", "batch", "measured", "our model", "error"),
        caption=f"Time per token, {MEASURED_BY}, and of our kernel model. One constant of the model, the experts' skew, was "
        "chosen on half of all such points",
    )
    together = np.array(SETS["same GPUs, tensor parallel"][0])
    for name in ("split, tensor parallel", "split, data parallel"):
        gains = [rate / np.interp(ms, together[:, 0], together[:, 1]) for ms, rate, _ in SETS[name][0] if 15 < ms < 48]
        print(f"{name}: {min(gains):.2f} to {max(gains):.2f} times the tokens of the same GPUs at equal ms per token")

# %% [markdown]
# Where all answers are tensor parallel, the split gains a little at each speed. The large gain comes
# with data parallel attention, and these points cannot tell how much of it is due to the split: none of them has
# data parallel attention on the same GPUs for prompts and answers. So when you read that disaggregation gave 1.7 times the throughput, ask for
# the parallelism on both sides.
#
# ## A machine fails in the middle of a transfer
#
# While a cache travels, its request depends on two machines. In the simulation, a cache whose decode machine fails is sent to another one,
# because the prefill machine still has it. If the prefill machine fails, the request begins again elsewhere, and the token that its
# reader already has becomes part of the prompt. The next cell runs six H100s (3 : 3) on links of 40 Gbit/s. It picks one request, and lets one
# of its two machines fail half-way through the transfer.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "failure",
    "Half-way through a transfer one of the two machines fails. Which failure makes the reader of this request wait longer for the second token?",
    options=("that of the prefill machine", "that of the decode machine", "both the same"),
)
SLOW = replace(HANDOVER, link=Link(latency=10e-6, bandwidth=5e9), way="whole")
LOAD = trace(poisson(6.0, 3), 40, uniform(3000, 6000), uniform(60, 140), seed=3)
usual = simulate(LOAD, deployment(3, 3, handover=SLOW))
VICTIM = max(range(10, 30), key=lambda number: usual.journeys[number].exposed)
journey = usual.journeys[VICTIM]
HALF_WAY = (journey.computed + journey.arrived) / 2
runs = {"no failure": usual}
for role, machine in (("prefill", journey.prefill), ("decode", journey.decode)):
    failure = MachineFailure(HALF_WAY, role, int(machine.split("-")[1]))
    runs[f"the {role} machine fails"] = simulate(LOAD, deployment(3, 3, handover=SLOW, failures=(failure,)))

# %% tags=["demo"] jupyter={"source_hidden": true}
with reveal("failure"):
    delays = {}
    rows = []
    for name, run in runs.items():
        way = run.journeys[VICTIM]
        first, second = way.request.token_times[:2]
        delays[name] = second - first
        again = sum(other.tries > 1 for other in run.journeys)
        whole = sum(len(request.output) == request.sampling.max_tokens for request in run.requests)
        rows.append(
            (
                name,
                f"{1e3 * (second - first):.0f} ms",
                f"{1e3 * (way.request.token_times[-1] - first):.0f} ms",
                f"{way.tries}",
                f"{way.bytes / 1e6:.0f} MB",
                f"{again}",
                f"{whole} of {len(LOAD)}",
            )
        )
    prefill, decode = delays["the prefill machine fails"], delays["the decode machine fails"]
    longer = "that of the prefill machine" if prefill > decode else "that of the decode machine"
    show.against_prediction(
        "failure", longer, source=f"{prefill * 1e3:.0f} against {decode * 1e3:.0f} ms, virtual time"
    )
    show.table(
        rows,
        header=("", "to 2nd token", "to last token", "tries", "sent", "begun again", "complete"),
        caption="One request, from its first token on; and of all 40, those that were begun again and those that are complete",
    )

# %% [markdown]
# After a failure of the prefill machine the prompt is computed again, and that gives the second token at once; only the third
# waits for a transfer. After a failure of the decode machine no prompt of this request is computed again, but its cache travels twice, which
# takes
# longer on this link. By the last token, the failure of the prefill machine has cost more. The sender does not even notice at once: the first message occupies its link to the end. At 400 Gbit/s the
# transfers would be ten times as short, and computing the prompt again would be the longer of the two.
#
# A decode machine also takes the caches of its other requests with it, and these begin again from their prompts. Still, all 40
# answers are complete. That needs a sender that frees no block before the transfer has ended, as in exercise 2.

# %% tags=["demo"] jupyter={"source_hidden": true}
term("disaggregated serving")
calibration()
