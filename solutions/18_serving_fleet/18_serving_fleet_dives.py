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
#     title: How many replicas, and when? Deep dives
#     minutes: 40
# ---

# %% [markdown]
# # How many replicas, and when? Deep dives
#
# These sections are complete and ungraded, and can be read in any order: how fast a fleet may shrink, which replica
# gets a request, prefill and decode on separate GPUs, and the files that run a fleet on Kubernetes, on Slurm, and under Prometheus.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] jupyter={"source_hidden": true} nbgrader={"grade": false, "grade_id": "setup_dives", "locked": true, "schema_version": 3, "solution": false, "task": false}
import shutil
import subprocess
from dataclasses import replace
from importlib.resources import as_file, files

import numpy as np
import yaml
from threeloops.hardware import accelerator
from threeloops.lab import calibration, figure, palette, predict, progress, reveal, show, term
from threeloops.models.gpt_config import GPTConfig
from threeloops.product import disaggregated
from threeloops.product.batching import CHUNKED, RooflineCost
from threeloops.product.disaggregated import CacheShape, Deployment, Handover, Link, Pool
from threeloops.product.fleet import (
    EngineModel,
    Fleet,
    least_outstanding,
    prefix_aware,
    round_robin,
    simulate,
    two_choices,
)
from threeloops.product.loadgen import poisson, trace, uniform

LLAMA = GPTConfig(128256, 32, 32, 8, 4096, 14336, 8192, tied_embeddings=False)
COST = RooflineCost(LLAMA, accelerator("H100"))
DEPLOY = files("threeloops.product.deploy")


def percentile(values, percent):
    return float(np.percentile(values, percent))


# %% [markdown]
# ## How many per minute?
#
# A window says *whether* a fleet may shrink. A rate says how fast: at most so many replicas may be added or removed per *period*.
# The two limits are separate: an added replica does not reduce how many may be removed, or the other way round.
#
# *Worked example.* Nine replicas run and 3 are wanted. Two may be removed per minute, and one was removed 30 s ago, so one more may go:
# 8 stay.


# %% tags=["demo"]
def limited(wanted, current, changes, now, period, most_added, most_removed):
    """How many replicas there are from now on. `changes`: (second, difference)."""
    recent = [difference for second, difference in changes if now - second < period]
    added = sum(difference for difference in recent if difference > 0)
    removed = -sum(difference for difference in recent if difference < 0)
    if wanted > current:
        return min(wanted, current + max(0, most_added - added))
    return max(wanted, current - max(0, most_removed - removed))


print(limited(3, 9, [(570, -1)], 600, 60, 4, 2))
predict(
    "dip",
    "Thirty replicas run. For six minutes only 6 are wanted, then 30 again, and a new one loads for 4 minutes. At most two are "
    "removed per minute. How many of the 30 are still there when demand returns?",
    unit="replicas",
)


# %% tags=["demo"] jupyter={"source_hidden": true}
def dip(most_removed):
    """Ready replicas every 15 s: demand needs 30, from second 120 to 480 only 6."""
    ready, coming, changes, line = 30, [], [], []
    for now in range(0, 1200, 15):
        ready += sum(moment <= now for moment in coming)
        coming = [moment for moment in coming if moment > now]
        wanted = 6 if 120 <= now < 480 else 30
        change = limited(wanted, ready + len(coming), changes, now, 60, 100, most_removed) - ready - len(coming)
        if change:
            changes.append((now, change))
        if change > 0:
            coming += [now + 240] * change
        ready += min(0, change)
        line.append((now, ready))
    return line


with reveal("dip"):
    slow, fast = dip(2), dip(100)
    show.against_prediction("dip", dict(slow)[465], unit="replicas", source="virtual time")
    plot, axes = figure(width=8.5, height=2.8)
    needed = [6 if 120 <= now < 480 else 30 for now, _ in slow]
    axes.fill_between([now for now, _ in slow], needed, step="post", color=palette.sky, alpha=0.12, lw=0)
    axes.text(20, 3, "needed", color=palette.blue, weight="bold")
    for line, color, words, place in (
        (slow, palette.green, "two per minute", (500, 19)),
        (fast, palette.vermillion, "all at once", (500, 8)),
    ):
        axes.step([now for now, _ in line], [ready for _, ready in line], where="post", color=color)
        axes.text(*place, words, color=color, weight="bold")
    axes.set(xlim=(0, 1190), ylim=(0, 33), xlabel="seconds", ylabel="replicas ready")
    show.figure(plot, "Ready replicas when demand falls for six minutes, with and without a limit on removals")

# %% [markdown]
# Without a limit, 24 replicas are missing for the four minutes in which they load again; with it, half of them never left. A window of
# more than six minutes would have kept all. Kubernetes has both, and takes the stricter.
#
# ## Which replica gets the request?
#
# A router in front of the replicas may look at three things:
#
# - **nothing**: *round robin* takes one replica after another. Every replica gets as many requests, but not as much work,
#   because answers differ in length;
# - **what is outstanding**: *least outstanding* takes the replica with the fewest unanswered requests. NGINX calls it
#   `least_conn`. *Two choices* draws two replicas at random and takes the better one, which is nearly as good and needs
#   no complete picture;
# - **the prompt**: a *prefix-aware* router sends equal beginnings to the same replica, which has their keys and values in
#   its cache (lab 16). If one beginning is popular, its replica is overloaded, so the router needs a bound: no replica
#   gets more than 1.25 times the mean, and the excess goes to the next one in a fixed order.
#
# In every case the router skips replicas that are not ready or are draining. The next cell replays one trace in virtual
# time: four H100s, and prompts of which each begins with one of twelve instructions of 2,000 tokens. The cache of a replica
# has room for five of them. The replay takes about 10 seconds.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "routing",
    "Four replicas, twelve instructions of 2,000 tokens, a cache with room for about five. By what factor is the median TTFT "
    "under a prefix-aware router shorter than under round robin?",
    unit="×",
)
CACHE = EngineModel(COST, replace(CHUNKED, max_running=32, token_budget=1024), blocks=900)
ROUTERS = {
    "round robin": round_robin,
    "two choices": two_choices,
    "least outstanding": least_outstanding,
    "prefix-aware, bound 1.25": prefix_aware(1.25),
    "prefix-aware, no bound": prefix_aware(1e9),
}


def instructed(requests=500, rate=90.0, seed=2):
    return trace(
        poisson(rate, seed), requests, uniform(50, 150), uniform(20, 60), prefixes=12, prefix_length=2000, seed=seed
    )


routed = {}
for name in progress(list(ROUTERS), "routers"):
    routed[name] = simulate(instructed(), Fleet(CACHE, replicas=4, router=ROUTERS[name]), seed=1)

# %% tags=["demo"] jupyter={"source_hidden": true}
with reveal("routing"):
    median = {name: percentile([each.ttft for each in run.answered], 50) for name, run in routed.items()}
    show.against_prediction(
        "routing",
        round(median["round robin"] / median["prefix-aware, bound 1.25"], 1),
        unit="×",
        source="the course's fleet in virtual time",
    )
    rows = []
    for name, run in routed.items():
        ttft = [each.ttft for each in run.answered]
        share = np.unique([each.replica for each in run.answered], return_counts=True)[1].max() / len(run.answered)
        busy = run.busy_seconds / run.replica_seconds
        rows.append(
            (
                name,
                f"{1e3 * percentile(ttft, 50):.0f} ms",
                f"{1e3 * percentile(ttft, 99):.0f} ms",
                f"{share:.0%}",
                f"{busy:.0%}",
            )
        )
    show.table(
        rows,
        header=("router", "TTFT, median", "TTFT, P99", "requests on the fullest", "GPUs busy"),
        caption="500 requests at 90 per second, four modelled H100s",
    )

# %% [markdown]
# Looking at the load shortens the longest waits. Looking at the prompt saves most of the prefill, and that is
# worth more. The bound costs few hits. Here it is hardly needed, because all instructions are equally popular; with one
# that half of the users share, the router without a bound would send half of all requests to one replica.
#
# A router cannot see a replica's cache. It guesses from what it has sent, which is right as long as all requests pass
# through it and no replica restarts. When the number of replicas changes, it should not have to
# guess anew for all prompts. So such routers use *rendezvous* hashing: when a replica is added or removed, only the keys
# that it gets or had move.

# %% [markdown]
# ## Prefill and decode on separate GPUs
#
# Prefill is limited by arithmetic and decode by memory bandwidth (lab 16), and they disturb each other when they share a
# GPU: chunks of prompts make the steps longer in which others decode. **Disaggregation** (DistServe and Splitwise, 2024)
# gives them GPUs of their own. A *prefill pool* computes prompts one at a time, and the keys and values of each then
# move over a link to a GPU of the *decode pool*, which never sees a prompt.
#
# The gaps become short and even. The price:
#
# - the keys and values have to move: 131,072 bytes per token for Llama-3-8B, so 0.5 GB for 4,000 tokens. That is 10 ms at
#   50 GB/s and 0.4 s at 1.25 GB/s (10 Gbit/s), and prompts share the link;
# - the pools have fixed sizes, and the load has to fit their ratio. Otherwise one waits for the other;
# - each GPU holds the weights for one kind of work only, so at a low load half of them are idle.
#
# The library simulates this (`threeloops.product.disaggregated`): every GPU is the engine of lab 16 in virtual time, and
# each end of a link sends or receives one prompt's cache at a time.


# %% tags=["demo"]
def served(requests, prefill_gpus, decode_gpus, link=50e9, **limits):
    """(TTFT, mean gap) of each request in seconds. Without prefill GPUs, the others do both. `link`: bytes per second."""
    both = replace(CHUNKED, max_running=64, prefix_cache=False, **limits)
    one_prompt = replace(both, max_running=1, chunked=False)
    handover = Handover(Link(0.0, link), CacheShape.of(LLAMA), "whole")
    pools = Pool(prefill_gpus, one_prompt, 40_000), Pool(decode_gpus, both, 40_000)
    run = disaggregated.simulate(requests, Deployment(COST, handover, *pools))
    times = [(request.arrival, request.token_times) for request in run.requests]
    return [(tokens[0] - arrival, (tokens[-1] - tokens[0]) / (len(tokens) - 1)) for arrival, tokens in times]


LOADS = {
    "long prompts, short answers": lambda: trace(poisson(22.0, 1), 200, uniform(3000, 6000), uniform(60, 140), seed=1),
    "short prompts, long answers": lambda: trace(poisson(100.0, 2), 250, uniform(100, 300), uniform(200, 400), seed=2),
}
WAYS = {
    "together, whole prompts": lambda load: served(load, 0, 4, chunked=False, token_budget=6000),
    "together, chunks of 2,048": lambda load: served(load, 0, 4, token_budget=2048),
    "together, chunks of 512": lambda load: served(load, 0, 4, token_budget=512),
    "2 + 2 GPUs, 50 GB/s": lambda load: served(load, 2, 2),
    "3 + 1 GPUs, 50 GB/s": lambda load: served(load, 3, 1),
    "1 + 3 GPUs, 50 GB/s": lambda load: served(load, 1, 3),
    "2 + 2 GPUs, 12.5 GB/s": lambda load: served(load, 2, 2, 12.5e9),
}
predict(
    "link",
    "Prompts of 4,500 tokens, answers of 100. With a link of 50 GB/s the median of the mean gap is 5.9 ms. What is it with 12.5 GB/s?",
    unit="ms",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
measured = {}
for load, way in progress([(load, way) for load in LOADS for way in WAYS], "fleets"):
    measured[load, way] = np.array(WAYS[way](LOADS[load]()))
LIMITS = {"long prompts, short answers": (0.4, 6.2e-3), "short prompts, long answers": (0.1, 6.2e-3)}
with reveal("link"):
    slow = measured["long prompts, short answers", "2 + 2 GPUs, 12.5 GB/s"]
    show.against_prediction("link", round(1e3 * percentile(slow[:, 1], 50), 1), unit="ms", source="virtual time")
    for load, (ttft, gap) in LIMITS.items():
        rows = []
        for way in WAYS:
            of_request = measured[load, way]
            good = np.mean((of_request[:, 0] <= ttft) & (of_request[:, 1] <= gap))
            first, mean = (percentile(column, 90) for column in of_request.T)
            rows.append((way, f"{first:.3f} s", f"{1e3 * mean:.1f} ms", f"{good:.0%}"))
        show.table(
            rows,
            header=("four H100s", "TTFT, P90", "mean gap, P90", f"within {ttft:g} s and {1e3 * gap:g} ms"),
            caption=load,
        )

# %% [markdown]
# For long prompts and a strict limit on the gaps, separate pools win: no decoding request ever waits for a prompt. Small
# chunks come close, because at the rates of the data sheet a chunk of 512 tokens hardly makes a step longer. Real
# kernels stay below these rates, so expect a larger difference; this was not measured on a GPU.
#
# For short prompts the same two pools lose: two GPUs compute prompts that take next to no time, and the other two decode
# for all. With 1 + 3 GPUs this load is served well, but then long prompts wait for seconds. So the ratio belongs to the
# load, and it has to change when the load does. With a slow link every token pays its share of the move: 0.6 GB take
# 48 ms at 12.5 GB/s, which is 0.5 ms for each of 100 tokens. At 1.25 GB/s the queue would only grow: 22 prompts per second
# bring 13 GB per second, and two links carry 2.5.
#
# vLLM 0.33 has separate pools with `--kv-transfer-config`, SGLang 0.5.23 with `--disaggregation-mode prefill` or `decode`.

# %% [markdown]
# ## The files that run a fleet
#
# `threeloops.product.deploy` has what an operator needs to run the service elsewhere. Some numbers in these files depend
# on numbers in other files. The next cell reads the files and checks five such relations:
#
# - **Startup**: period · (failures − 1) has to cover the slowest load, with a margin of a half.
# - **Drain**: Kubernetes sends SIGTERM after `preStop`, and kills the container `terminationGracePeriodSeconds` after
#   the beginning of `preStop`. So this time has to cover the pause, the drain of the service, and its end.
# - **Window**: a scale-down should wait longer than a load takes.
# - **One target**: the HPA and KEDA scale on the same numbers, so a change from one to the other changes nothing.
# - **Disruptions**: a PodDisruptionBudget must allow at least one pod to be evicted, or no node can ever be emptied.

# %% tags=["demo"] jupyter={"source_hidden": true}


def read(name):
    return yaml.safe_load((DEPLOY / name).read_text())


deployment = read("kubernetes/base/deployment.yaml")
pod = deployment["spec"]["template"]["spec"]
container = pod["containers"][0]
autoscaler = read("kubernetes/with_hpa/hpa.yaml")["spec"]
keda = read("kubernetes/with_keda/scaledobject.yaml")["spec"]
budget = read("kubernetes/base/poddisruptionbudget.yaml")["spec"]
load = int(deployment["metadata"]["annotations"]["threeloops/slowest-load-seconds"])
startup = container["startupProbe"]
pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
window = autoscaler["behavior"]["scaleDown"]["stabilizationWindowSeconds"]
hpa_targets = sorted(int(metric["pods"]["target"]["averageValue"]) for metric in autoscaler["metrics"])
keda_targets = sorted(int(trigger["metadata"]["threshold"]) for trigger in keda["triggers"])
show.table(
    [
        ("startup probe", f"{startup['periodSeconds']} s · ({startup['failureThreshold']} − 1)", f"1.5 · {load} s"),
        (
            "grace, from the start of preStop",
            f"{pod['terminationGracePeriodSeconds']} s",
            f"pause of {pause} s, then the drain",
        ),
        ("window down", f"{window} s", f"a load of {load} s"),
        ("targets of the HPA (waiting, running)", str(hpa_targets), f"{keda_targets} for KEDA"),
        ("replicas that may be disrupted", str(budget["maxUnavailable"]), f"at least {autoscaler['minReplicas']} run"),
    ],
    header=("relation", "the files say", "to be compared with"),
)

# %% [markdown]
# A schema finds what such a table does not: misspelt fields, a number where text is needed, a field that a version of
# Kubernetes does not have. The table has the verdict of each tool that is installed here, and names those that are missing.
#
# The **Slurm** script is one replica as one job: it takes a free port, waits for `/ready`, and announces itself in a
# folder. **Prometheus** reads that folder, scrapes `/metrics` of each replica, and evaluates the alerts, which come with
# unit tests (`alerts_test.yml`): for each alert a series that makes it fire, and one that does not. **Grafana** draws
# the same metrics.

# %% tags=["demo"] jupyter={"source_hidden": true}


def verdict(command):
    """Whether a tool accepts its input, with the last line that it prints, or that it is missing."""
    if shutil.which(command[0]) is None:
        return f"SKIPPED: {command[0]} is not installed here"
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return ("accepted" if done.returncode == 0 else "refused") + (f": {lines[-1][:70]}" if lines else "")


def validated(manifests):
    """Validate the manifests against Kubernetes' own schemas, and return the verdict."""
    try:
        import kubernetes_validate
    except ImportError:
        return "SKIPPED: kubernetes-validate is not installed here"
    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.33", strict=True)
    return f"accepted: {len(manifests)} manifests, version 1.33, strict"


kubernetes = ["base/deployment", "base/service", "base/poddisruptionbudget", "base/networkpolicy", "with_hpa/hpa"]
with as_file(DEPLOY) as folder:
    show.table(
        [
            ("Kubernetes' schemas", validated([read(f"kubernetes/{name}.yaml") for name in kubernetes])),
            ("bash -n slurm/serve.sbatch", verdict(["bash", "-n", f"{folder}/slurm/serve.sbatch"])),
            ("promtool check rules", verdict(["promtool", "check", "rules", f"{folder}/prometheus/alerts.yml"])),
            ("promtool test rules", verdict(["promtool", "test", "rules", f"{folder}/prometheus/alerts_test.yml"])),
        ],
        header=("tool", "verdict"),
    )
rules = read("prometheus/alerts.yml")["groups"][0]["rules"]
show.table(
    [
        (rule["alert"], rule["labels"]["severity"], rule.get("for", "at once"), rule["annotations"]["action"])
        for rule in rules
    ],
    header=("alert", "severity", "for", "what to do"),
)
term("prefill and decode pools")
calibration()
