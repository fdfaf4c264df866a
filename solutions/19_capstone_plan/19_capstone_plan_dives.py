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
#     title: Can you plan all of it? Deep dives
#     minutes: 35
# ---

# %% [markdown]
# # Can you plan all of it? Deep dives
#
# These sections are complete and ungraded, and can be read in any order: how many GPUs serve a 70B model, a fleet for a
# bursty day, the same job on several accelerators, and what a plan depends on most.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] jupyter={"source_hidden": true} nbgrader={"grade": false, "grade_id": "setup_dives", "locked": true, "schema_version": 3, "solution": false, "task": false}
import numpy as np
from threeloops.hardware import accelerator
from threeloops.lab import audit, calibration, figure, myth, palette, predict, reveal, show, term
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import RooflineCost
from threeloops.product.decode import bytes_per_token
from threeloops.product.fleet import Fleet, Price, bursty_day, cost_of, shared_model, simulate
from threeloops.product.loadgen import SLO, uniform
from threeloops.training.planning import LLAMA_70B

SEVENTY = GPTConfig(
    LLAMA_70B.vocabulary,
    80,
    LLAMA_70B.heads,
    LLAMA_70B.kv_heads,
    LLAMA_70B.width,
    LLAMA_70B.hidden,
    131072,
    tied_embeddings=False,
)

# %% [markdown]
# ## Two GPUs or four?
#
# One of the texts that this course audits says in one place that a 70B model is served on two H100s, and in another on
# four. Both count the weights: 140 GB in 16 bits. A server also keeps keys and values for each token of each request
# that runs (lab 15), and what is left for them decides how many requests run together.

# %% tags=["demo"]
myth("plan-2")
predict(
    "requests_on_two",
    "70B in 16 bits on two H100s of 80 GiB, 90% of the memory usable. How many requests of 4,096 tokens fit beside the weights?",
    unit="requests",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
H100 = accelerator("H100")
WEIGHTS, TOKEN, LENGTH = 2 * LLAMA_70B.parameters, bytes_per_token(SEVENTY), 4096
rows, fits = [], {}
for gpus in (1, 2, 4, 8):
    room = 0.9 * gpus * H100.memory_bytes - WEIGHTS
    fits[gpus] = max(0, int(room // (TOKEN * LENGTH)))
    read = (WEIGHTS + fits[gpus] * LENGTH * TOKEN) / (gpus * H100.memory_bandwidth)  # a step reads all of it once
    speed = f"{fits[gpus] / read:,.0f}" if fits[gpus] else "—"
    per_gpu = f"{fits[gpus] / read / gpus:,.0f}" if fits[gpus] else "—"
    rows.append((gpus, f"{room / 1e9:,.1f} GB" if room > 0 else "does not fit", fits[gpus], speed, per_gpu))
with reveal("requests_on_two"):
    show.against_prediction("requests_on_two", fits[2], "requests", source="model: weights and cache")
    show.table(
        rows,
        header=("H100s", "left for the cache", "requests of 4,096 tokens", "tokens/s, all of them", "per GPU"),
        caption="A step reads weights and cache once; links between the GPUs are left out, so this is an upper bound",
    )
audit(
    "plan-2",
    fits[2],
    "requests of 4,096 tokens on two H100s",
    "model",
    "corrected",
    f"weights are {WEIGHTS / 1e9:.0f} GB, so two GPUs hold them, with room for {fits[2]} requests of 4,096 tokens; four have room for "
    f"{fits[4]}. The model runs on two, but serves few requests there",
)

# %% [markdown]
# Both statements describe something true. The weights fit on two, and with so little left for the cache each step reads
# 141 GB for a handful of tokens. On four, the same read serves many times as many requests, so a GPU earns more tokens
# per second although twice as many are paid for. So throughput depends on the
# memory that is left for the cache.
#
# ## A fleet for a bursty day
#
# Lab 18 scaled a fleet by the minute. A plan asks something coarser first: with a fixed number of replicas all day,
# which share of the requests is served in time, and what does a million tokens cost?

# %% tags=["demo"]
predict(
    "best_fleet",
    "Replicas of four H100s serve a bursty day with a quiet night and bursts. With ever more replicas, the cost of a million "
    "tokens that were served within the objective …",
    options=("falls all the time", "rises all the time", "falls first and then rises"),
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from dataclasses import replace

FOUR = replace(
    H100, memory_bandwidth=4 * H100.memory_bandwidth, rates={name: 4 * rate for name, rate in H100.rates.items()}
)
MODEL = shared_model(RooflineCost(SEVENTY, FOUR, reached=0.6, overhead=2e-3), seats=64, prompt=400, output=200)
DAY = bursty_day(peak=40, seconds=300, seed=3)  # a day, told in five minutes
ARRIVALS = DAY.arrivals(uniform(200, 600), uniform(100, 300), seed=4)
OBJECTIVE, PRICE = SLO(ttft=1.0, tpot=0.05), Price(4 * 2.5, source="scenario of lab 19: 2.5 per GPU-hour", date="2026")
runs = {}
for replicas in range(1, 7):
    run = simulate(ARRIVALS, Fleet(MODEL, replicas), seed=5)
    runs[replicas] = cost_of(run, PRICE, OBJECTIVE)
with reveal("best_fleet"):
    show.against_prediction("best_fleet", "falls first and then rises", source="model: lab 18")
    plot, (left, right) = figure(columns=2, width=9.5, height=3.0)
    numbers = list(runs)
    left.plot(numbers, [100 * each.attainment for each in runs.values()], "o-", color=palette.green)
    left.axhline(90, color=palette.grey, ls=":")
    left.set(xlabel="replicas", ylabel="requests within the objective, %", ylim=(0, 105))
    costs = [each.per_million_within_slo for each in runs.values()]
    right.plot(numbers, costs, "o-", color=palette.blue)
    best = int(np.argmin(costs))
    right.text(numbers[best], costs[best] * 1.25, f"{numbers[best]} replicas", ha="center", va="bottom")
    right.set(xlabel="replicas", ylabel="per million tokens in time", yscale="log")
    show.figure(plot, "Requests within the objective, and the cost per million tokens in time, for 1 to 6 replicas")

# %% [markdown]
# With too few replicas nearly everything is late, and what is late earns nothing. With too many, seats stand idle at
# night. The best number for a constant fleet depends on the day's shape, and the space between the curve and a fleet
# that follows the demand is what an autoscaler can earn (lab 18).

# %% [markdown]
# ## The same job on four accelerators
#
# Which accelerator is the right one? The data sheet's FLOP/s do not say: a faster one costs more per hour, may need no
# recomputation because it has more memory, and loses more time to links of the same speed. The library plans the whole
# job on each candidate and compares the bills.

# %% tags=["demo"]
predict(
    "cheapest_accelerator",
    "A 70B model, 10¹² tokens, 512 GPUs, within 60 days. An A100 costs 2.79 USD per hour, an H100 3.99, an H200 4.50, a B200 6.69. "
    "Which makes the cheapest run?",
    options=("A100 SXM 80GB", "H100 SXM", "H200 SXM", "B200"),
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.capstone import make_plan, read_scenario

PLAN = make_plan(read_scenario("70b_pretraining"))
feasible = [option for option in PLAN.options if option.cost is not None]
with reveal("cheapest_accelerator"):
    show.against_prediction("cheapest_accelerator", feasible[0].accelerator, source="model: the library's plan")
    show.table(
        [(each.accelerator, f"{each.days:.1f}", f"{each.cost:,.0f}", each.note) for each in feasible],
        header=("accelerator", "days", "USD", "layout"),
        caption="Rented or owned, whichever is cheaper for it; prices with source and date are in threeloops.capstone",
    )

# %% [markdown]
# The dearest per hour is the cheapest per token, as long as its kernels reach the same share of its peak. That is an
# assumption (`efficiency` in the scenario's `[cluster]`), and new hardware often starts below it. So ask whether the decision
# would change if kernels reached less, as the last section does.
#
# ## What does the plan depend on?
#
# A plan is an argument, and a board attacks its weakest premise. Change one input at a time, plan again, and see what
# changes: only the bill, or a decision?

# %% tags=["demo"]
predict(
    "most_sensitive",
    "Which of these changes raises the bill of that plan most?",
    options=("the network between nodes is half as fast", "nodes fail twice as often", "kernels reach 20% less"),
)

# %% tags=["demo"] jupyter={"source_hidden": true}
changes = [each for each in PLAN.sensitivity if each.cost is not None]
total = PLAN["total_cost"]
with reveal("most_sensitive"):
    asked = {
        "bandwidth between nodes halves": "the network between nodes is half as fast",
        "time between failures halves": "nodes fail twice as often",
        "kernels reach 20% less": "kernels reach 20% less",
    }
    most = max((each for each in changes if each.change in asked), key=lambda change: change.cost)
    show.against_prediction("most_sensitive", asked[most.change], source="model: the library's plan")
    plot, axes = figure(width=9.0, height=3.0)
    for place, each in enumerate(sorted(changes, key=lambda change: abs(change.cost - total))):
        share = 100 * (each.cost / total - 1)
        axes.barh(place, share, color=palette.vermillion if share > 0 else palette.green)
        axes.text(
            share + (0.4 if share >= 0 else -0.4),
            place,
            f"{share:+.1f}%",
            va="center",
            ha="left" if share >= 0 else "right",
            size=9,
        )
    axes.set_yticks(
        range(len(changes)), [each.change for each in sorted(changes, key=lambda change: abs(change.cost - total))]
    )
    axes.axvline(0, color=palette.grey, lw=0.8)
    axes.set(xlabel="change of the bill, %", xlim=(-36, 36))
    show.figure(plot, "How much each change of an input changes the bill")
    show.table(
        [(each.change, "; ".join(each.decisions) or "no decision changes") for each in changes],
        header=("change", "what is decided differently"),
    )
term("goodput")
calibration()
