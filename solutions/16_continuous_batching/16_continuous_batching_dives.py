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
#     title: Which requests run next? Deep dives
#     minutes: 50
# ---

# %% [markdown]
# # Which requests run next? Deep dives
#
# These sections are complete and ungraded, and can be read in any order: priorities that age, fair shares between
# clients, the highest rate that a policy can serve, speculation in a batch, an asynchronous front end with
# cancellation, the same scheduler on this machine, and what serving systems call all this.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] jupyter={"source_hidden": true} nbgrader={"grade": false, "grade_id": "setup_dives", "locked": true, "schema_version": 3, "solution": false, "task": false}
import threading
from dataclasses import replace

import numpy as np
import torch
from threeloops.hardware import accelerator
from threeloops.inner.costs import Work
from threeloops.inner.roofline import Roofline
from threeloops.lab import calibration, figure, palette, predict, progress, reveal, show, term
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import (
    CHUNKED,
    POLICIES,
    AsyncEngine,
    Engine,
    RooflineCost,
    SimulatedExecutor,
    StepShape,
    by_priority,
    fit,
)
from threeloops.product.decode import BlockManager, ModelRunner
from threeloops.product.decode.speculative import expected_tokens
from threeloops.product.loadgen import SLO, measure, mixture, poisson, replay, trace, uniform
from threeloops.product.request import Request, Sampling
from threeloops.simulation.clock import VirtualClock

BLOCK = 16
LLAMA = GPTConfig(128256, 32, 32, 8, 4096, 14336, 8192, tied_embeddings=False)
COST = RooflineCost(LLAMA, accelerator("H100"))


def on_h100(policy, arrivals, blocks=8192, cost=COST):
    """A replay by the course's engine, with Llama-3-8B on an H100 in virtual time."""
    clock = VirtualClock()
    return replay(Engine(SimulatedExecutor(clock, cost), BlockManager(blocks, BLOCK), policy, clock), arrivals)


def first_token(request):
    """Seconds from the arrival to the first token."""
    return request.token_times[0] - request.arrival


# %% [markdown]
# ## Priorities that age
#
# A service has urgent requests (priority 0) and background work (priority 1). If urgent requests always go first, and
# there are enough of them to fill the GPU, the background work never runs: it *starves*.
#
# **Aging** prevents that: every few seconds of waiting improve a request's priority by one. All requests age alike, so
# the order of two of them never changes. It is the order of `priority + arrival / aging`: an urgent request overtakes a
# background request only if it arrives less than `aging` seconds later. So the queue never has to be sorted again, and
# two requests cannot preempt each other in turns.
#
# In the next cell, 300 requests arrive within 10 seconds, more than four seats can serve. A tenth of them are
# background work.

# %% tags=["demo"]
predict(
    "aging",
    "By what factor does an aging of 2 s shorten the longest TTFT of the background work, compared with no aging?",
    unit="×",
)


def with_priorities(aging):
    made = trace(poisson(30.0, 1), 300, uniform(50, 200), uniform(20, 60), seed=1)
    made = [replace(arrival, priority=int(place % 10 == 0)) for place, arrival in enumerate(made)]
    return on_h100(replace(CHUNKED, max_running=4, order=by_priority(aging)), made).requests


# %% tags=["demo"] jupyter={"source_hidden": true}
waits = {aging: with_priorities(aging) for aging in (1e9, 5.0, 2.0, 0.001)}


def of_priority(requests, priority):
    return [first_token(request) for request in requests if request.priority == priority]


with reveal("aging"):
    longest = {aging: max(of_priority(requests, 1)) for aging, requests in waits.items()}
    show.against_prediction("aging", round(longest[1e9] / longest[2.0], 1), unit="×", source="virtual time")
    show.table(
        [
            (
                name,
                f"{np.median(of_priority(waits[aging], 0)):.2f} s",
                f"{max(of_priority(waits[aging], 0)):.2f} s",
                f"{np.median(of_priority(waits[aging], 1)):.2f} s",
                f"{max(of_priority(waits[aging], 1)):.2f} s",
            )
            for name, aging in (
                ("none (10⁹ s)", 1e9),
                ("5 s", 5.0),
                ("2 s", 2.0),
                ("at once (1 ms): first come, first served", 0.001),
            )
        ],
        header=("aging", "urgent: median TTFT", "longest", "background: median TTFT", "longest"),
        caption="300 requests at 30 per second, 4 seats",
    )

# %% [markdown]
# ## Fair shares between clients
#
# First come, first served is unfair between *clients*: a client that sends ten times as many requests gets ten times as
# much service. The **virtual token counter** (Sheng et al., 2024) counts the tokens that each client was served, those
# of answers twice, and admits the client with the smallest count. A client cannot save up service by staying away: when
# it returns, its count starts no lower than the smallest among the clients that wait.
#
# One client sends 270 requests in 10 seconds, the other 30. The table compares how long each waits.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "fair",
    "How many times as long is the median TTFT of the modest client under first come, first served as with fair shares?",
    axis=(1, 10_000),
)


def two_clients(fair):
    made = trace(poisson(30.0, 2), 300, uniform(50, 200), uniform(20, 60), seed=2)
    made = [replace(each, client="modest" if place % 10 == 0 else "greedy") for place, each in enumerate(made)]
    return on_h100(replace(CHUNKED, max_running=4, fair=fair), made).requests


def median_wait(requests, client):
    return float(np.median([first_token(request) for request in requests if request.client == client]))


runs = {fair: two_clients(fair) for fair in (False, True)}
with reveal("fair"):
    show.against_prediction(
        "fair",
        round(median_wait(runs[False], "modest") / median_wait(runs[True], "modest"), 1),
        unit="×",
        source="virtual time",
    )
    show.table(
        [
            (name, f"{median_wait(runs[fair], 'modest'):.3f} s", f"{median_wait(runs[fair], 'greedy'):.2f} s")
            for name, fair in (("the oldest request", False), ("the least served client", True))
        ],
        header=("admitted first", "modest client: median TTFT", "greedy client: median TTFT"),
        caption="30 and 270 requests in 10 seconds, 4 seats",
    )

# %% [markdown]
# ## The highest rate
#
# Goodput at one rate says little. DistServe (Zhong et al., 2024) therefore defines goodput as the *highest rate* per
# GPU at which, say, 90% of the requests still meet the SLO. To find it, one trace is compressed in time (`highest_rate`
# searches by bisection).
#
# The SLO here is a TTFT of at most 0.5 s and a TPOT of at most 8 ms, for a mix of short chats and long prompts. The
# cell takes about 10 seconds.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "worst",
    "At one request per second, which policy meets the SLO least often?",
    options=("static", "dynamic", "continuous", "chunked"),
)
MIX = trace(poisson(1.0, 3), 60, mixture((0.8, uniform(50, 300)), (0.2, uniform(1000, 4000))), uniform(40, 120), seed=3)
GOAL = SLO(ttft=0.5, tpot=0.008)
RATES = (1, 2, 4, 8, 16, 32)


def attainment(policy, rate):
    """The share of requests that meet the SLO if they arrive at `rate` per second."""
    compressed = [replace(arrival, at=arrival.at / rate) for arrival in MIX]
    return measure(on_h100(policy, compressed).requests, GOAL).attainment


shares = {}
for name, policy in progress(POLICIES.items(), "policies", total=4):
    limits = replace(policy, max_running=16, token_budget=384, prefix_cache=False)
    shares[name] = [100 * attainment(limits, rate) for rate in RATES]
with reveal("worst"):
    worst = min(shares, key=lambda name: shares[name][0])
    show.against_prediction("worst", worst, source="virtual time")
    plot, axes = figure(width=8.5, height=2.8)
    for (name, percent), color in zip(
        shares.items(), (palette.grey, palette.blue, palette.orange, palette.green), strict=True
    ):
        axes.plot(RATES, percent, color=color, marker="o", ms=3, label=name)
    axes.axhline(90, color=palette.grey, ls="--", lw=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(RATES, [str(rate) for rate in RATES])
    axes.set(xlabel="requests per second", ylabel="meet the SLO (%)", ylim=(-4, 108))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    show.figure(plot, "The share of requests that meet the SLO against the rate, for four policies")

# %% [markdown]
# A static batch waits until it is full. That takes longest at a low rate, so static batching is the worst policy there.
# Dynamic batching avoids this wait: it starts an incomplete batch after a maximum delay.
#
# ## Speculation in a batch
#
# In lab 15 a draft guesses tokens, and the target model checks all of them in one step. For one request this is nearly
# free, because the weights are read anyway and most of the arithmetic is idle. A larger batch uses the same idle
# arithmetic, so the two compete.
#
# With 4 guesses and an acceptance rate of 0.7, a step gives a request 2.8 tokens instead of 1. The figure shows what is
# left of that in larger batches, for a draft that costs nothing (such as a lookup in the prompt).

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "speculation",
    "4 guesses, acceptance rate 0.7, a draft that costs nothing, contexts of 500 tokens, an H100: from how many decoding "
    "requests on does speculation make the batch slower?",
    axis=(1, 10_000),
)


def step_seconds(requests, tokens, context=500):
    """Every request has `tokens` tokens in the step, and all of them need logits."""
    work = COST.work(StepShape(((context, tokens, True),) * requests))
    more_logits = 2 * LLAMA.vocabulary_size * LLAMA.width * requests * (tokens - 1)
    return Roofline(accelerator("H100"), "bf16").time_floor(Work(work.bytes, work.flops + more_logits))


def gain(requests, guesses, acceptance=0.7):
    """Tokens per second with speculation over those without it."""
    return expected_tokens(acceptance, guesses) * step_seconds(requests, 1) / step_seconds(requests, 1 + guesses)


batches = [round(2 ** (k / 4)) for k in range(41)]
with reveal("speculation"):
    slower = next(n for n in range(1, 5000) if gain(n, 4) < 1)
    show.against_prediction("speculation", slower, unit="requests", source="model: roofline of an H100")
    plot, axes = figure(width=8.5, height=2.8)
    for guesses, color in ((2, palette.blue), (4, palette.green), (8, palette.vermillion)):
        gains = [gain(n, guesses) for n in batches]
        axes.plot(batches, gains, color=color)
        axes.annotate(f"{guesses} guesses ", (1, gains[0]), ha="right", va="center", color=color)
    axes.axhline(1, color=palette.grey, ls="--", lw=1)
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.45, 1100)
    axes.set_xticks([2**k for k in range(11)], [str(2**k) for k in range(11)])
    axes.set(xlabel="decoding requests in the step", ylabel="speed-up by speculation")
    show.figure(plot, "Speed-up by speculation against the size of the batch, for 2, 4 and 8 guesses")

# %% [markdown]
# So engines turn speculation off, or guess fewer tokens, when the batch is large. The course's scheduler gives guesses
# only what is left of the token budget once every decoding request has its token.
#
# ## An asynchronous front end
#
# A service streams tokens as they come, and must cope with users who leave. `AsyncEngine` runs the engine in a thread.
# Each request is an asynchronous generator, and when its reader goes away, the request is cancelled: its seat and
# blocks are free in the next step.
#
# The cell serves four requests with a tiny untrained GPT. The second reader leaves after three tokens.

# %% tags=["demo"]
predict(
    "cancelled",
    "Four requests of 12 tokens each, and one reader leaves after 3 tokens. How many tokens do the other three get in all?",
)


def tiny_model():
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny(max_sequence=256)).eval()


async def read(front, number, most):
    found = []
    stream = front.generate(Request(f"r{number}", (1, 2, 3 + number), Sampling(max_tokens=12)))
    async for token in stream:
        found.append(token)
        if len(found) == most:
            await stream.aclose()
            break
    return found


# %% tags=["demo"] jupyter={"source_hidden": true}
import asyncio


async def four_readers():
    blocks = BlockManager(64, BLOCK)
    async with AsyncEngine(Engine(ModelRunner(tiny_model(), 64, BLOCK), blocks, CHUNKED)) as front:
        readers = (read(front, number, 3 if number == 1 else 99) for number in range(4))
        found = await asyncio.gather(*readers)
        await front.drain()
    return found, blocks.free


outcome = {}
runner = threading.Thread(target=lambda: outcome.update(found=asyncio.run(four_readers())))
runner.start()  # a thread of its own, because the notebook has an event loop already
runner.join()
answers, free = outcome["found"]
with reveal("cancelled"):
    show.against_prediction(
        "cancelled", sum(len(a) for place, a in enumerate(answers) if place != 1), source="counted here"
    )
    show.table(
        [(f"r{place}", len(answer)) for place, answer in enumerate(answers)],
        header=("request", "tokens read"),
        caption=f"After the last request, {free} of 64 blocks are free",
    )

# %% [markdown]
# ## The same scheduler on this machine
#
# The next cell compares a prediction with the course's engine, which serves a tiny GPT on this CPU. One trace teaches
# what a step costs here, and how such steps spread; a second is predicted, then measured. This takes about 10 seconds.


# %% tags=["demo"] jupyter={"source_hidden": true}
def tiny_model():
    """Return a tiny GPT without training, because only its speed matters, and a trained one takes as long per step."""
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny(max_sequence=512)).eval()


SMALL = replace(CHUNKED, max_running=16, token_budget=64, prefix_cache=False)


def on_this_machine(requests):
    return replay(Engine(ModelRunner(tiny_model(), 512, BLOCK), BlockManager(512, BLOCK), SMALL), requests)


def short_chats(rate, seed, requests=40):
    return trace(poisson(rate, seed), requests, uniform(10, 120), uniform(10, 40), seed=seed)


threads = torch.get_num_threads()
torch.set_num_threads(1)  # a matrix of this size is too small to share, and the machine may be busy
on_this_machine(short_chats(1000.0, 1, 10))
learned = on_this_machine(short_chats(40.0, 8))
fitted = fit([step.shape for step in learned.steps], [step.seconds for step in learned.steps])
predicted = measure(on_h100(SMALL, short_chats(30.0, 9), 512, fitted.sampled(seed=0)).requests)
real = measure(on_this_machine(short_chats(30.0, 9)).requests)
torch.set_num_threads(threads)
show.table(
    [
        (
            name,
            f"{m.throughput:,.0f}",
            f"{1e3 * m.ttft.p50:.1f} ms",
            f"{1e3 * m.tpot.p50:.2f} ms",
            f"{1e3 * m.itl.p99:.1f} ms",
        )
        for name, m in (("predicted in virtual time", predicted), ("measured on this machine", real))
    ],
    header=("40 requests at 30 per second", "tokens/s", "TTFT, median", "TPOT, median", "ITL, P99"),
    caption="The same scheduler on two clocks. Steps in virtual time spread as the recorded ones did, but without pauses",
)
show.busy_notice()

# %% [markdown]
# ## What serving systems call it
#
# | here | vLLM 0.33 | SGLang 0.5.23 | TensorRT-LLM | TGI | Triton Inference Server |
# |---|---|---|---|---|---|
# | static, dynamic | — | — | `STATIC_BATCH` (legacy) | — | `dynamic_batching` with `max_queue_delay_microseconds` |
# | continuous | always | always | in-flight batching | always | by its backend (TensorRT-LLM, vLLM) |
# | reserve for the whole answer | — | a share of it: `--schedule-conservativeness` | `GUARANTEED_NO_EVICT` (default) | `--max-batch-total-tokens` | — |
# | blocks as needed, preempt | always (recompute) | always ("retract") | `MAX_UTILIZATION` | — | — |
# | seats | `--max-num-seqs` | `--max-running-requests` | `max_batch_size` | `--max-batch-size` | `max_batch_size` |
# | budget | `--max-num-batched-tokens` | `--chunked-prefill-size` with `--enable-mixed-chunk` | `max_num_tokens` | `--max-batch-prefill-tokens` | — |
# | chunks | on by default | `--chunked-prefill-size -1` turns it off | `enable_chunked_prefill` | on by default since version 3 | — |
# | prefix cache | hash of blocks | radix tree | `enable_block_reuse` | on by default since version 3 | — |
#
# By default SGLang computes the chunks of prompts in steps of their own, and `--chunked-prefill-size` is the size of a
# chunk. Only `--enable-mixed-chunk` puts chunks and decoding requests into one step.
#
# Names change between versions; look them up for yours. Two systems that look alike in this table still differ in
# speed, because the cost of a step depends on kernels and on the host's work between steps.
#
# Our model leaves out that host work, sampling, tokenisation and the network, and assumes kernels that reach the data
# sheet's rates. `RooflineCost(reached=0.7, overhead=2e-3)` puts rough numbers on some of it.

# %% tags=["demo"] jupyter={"source_hidden": true}
term("time to first token")
term("preemption")
calibration()
