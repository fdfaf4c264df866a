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
#     title: What does a failure cost? Deep dives
#     minutes: 75
# ---

# %% [markdown]
# # What does a failure cost? Deep dives
#
# These sections are complete and ungraded, and can be read in any order: a worker of torchrun that is killed for real, an end that
# is announced, sharded states and the memory of a peer, groups that leave and come back, regions that meet rarely, how many spares to pay for, silent corruption, a canary, and failures
# that do not come at a constant rate.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] jupyter={"source_hidden": true} nbgrader={"grade": false, "grade_id": "setup_dives", "locked": true, "schema_version": 3, "solution": false, "task": false}
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib.resources import files
from pathlib import Path

import torch
import torch.distributed as dist
from threeloops.lab import audit, calibration, explore, figure, myth, palette, predict, reveal, show, term
from threeloops.training.cluster import Cluster, RankDies, RankLost, compute, uniform
from threeloops.training.cluster.pictures import gantt
from threeloops.training.data_parallel import DiLoCo
from threeloops.training.elastic import flip_bit
from threeloops.training.elastic.detection import compare, cross_check, environment, odd_ranks
from threeloops.training.elastic.goodput import (
    MEASURED,
    RSC1_JOBS,
    RSC1_PER_NODE_DAY,
    Account,
    best_interval,
    cluster_mtbf,
    failures_per_node_day,
    simulate,
    spares_needed,
    useful_share,
)
from threeloops.training.elastic.goodput import Job as SimulatedJob
from threeloops.training.elastic.recovery import (
    GuardedOptimizer,
    Members,
    PeerMemory,
    ReplicaGroups,
    recovery_seconds,
    run_with_restarts,
    train_through_losses,
)

HOUR, YEAR = 3600.0, 365 * 86400.0

# %% [markdown]
# ## A worker is killed
#
# torchrun starts the workers of a node and watches them. When one ends with an error, or is killed, it ends the others and starts all
# of them again, at most `--max-restarts` times. They then know only what they have saved.
#
# `threeloops.training.elastic.demo` trains a small GPT with the course's checkpoints. It writes each worker's process number and each step's loss
# to a folder. The next cell starts two workers under torchrun, kills one with SIGKILL once step 7 is done, and waits for the end.
# It takes about 20 seconds.

# %% tags=["demo"]
predict(
    "again",
    "12 steps, a save after every 5, and a worker is killed after step 7 (steps count from 0). From which step does the job go on?",
    unit="(step)",
)

# %% tags=["demo"] jupyter={"source_hidden": true}


def logged(folder):
    path = folder / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def killed_under_torchrun(folder, steps=12, kill_after=7):
    """The log of a job of two workers, of which one is killed."""
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3"]
    command += ["-m", "threeloops.training.elastic.demo", str(folder), "--steps", str(steps), "--step-seconds", "0.1"]
    environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    agent = subprocess.Popen(
        [sys.executable, "-m", *command], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 120
        while agent.poll() is None and time.monotonic() < deadline:
            if any(each["step"] == kill_after for each in logged(folder)):
                os.kill(int((folder / "rank 1").read_text()), signal.SIGKILL)
                break
            time.sleep(0.05)
        agent.wait(120)
    finally:
        if agent.poll() is None:
            agent.kill()
    return logged(folder)


with tempfile.TemporaryDirectory() as place:
    log = killed_under_torchrun(Path(place))
first, second = ([each for each in log if each["restarts"] == n] for n in (0, 1))
with reveal("again"):
    show.against_prediction(
        "again", second[0]["step"] if second else -1, unit="(step)", source="measured here: real processes"
    )
    show.table(
        [
            (name, f"{part[0]['step']} to {part[-1]['step']}", f"{part[-1]['loss']:.6f}")
            for name, part in (("before the kill", first), ("after the restart", second))
            if part
        ],
        header=("", "steps", "last loss"),
        caption="Two workers under torchrun, a save after every 5 steps, one worker killed",
    )
    twice = {each["step"]: each["loss"] for each in first}
    same = all(each["loss"] == twice[each["step"]] for each in second if each["step"] in twice)
    print("Steps that were taken twice have the same losses, to the last bit:", same)

# %% [markdown]
# With several nodes there is one torchrun per node, and they meet at one address: `--nnodes 6:8 --rdzv-backend c10d
# --rdzv-endpoint host:port`. If a node is gone for good, the others start again without it, as long as 6 are left.
# (Not if it is the node that hosts the endpoint: the rendezvous is lost with it.) The number of ranks is then
# different, so a program must cut its data and its checkpoint anew, as this demo does.

# %% [markdown]
# ## An end that is announced
#
# A spot machine that is taken back, a time limit, a job of higher priority: such ends are announced. Slurm sends a
# SIGTERM. A cloud tells the machine (AWS two minutes before the end, Google Cloud and Azure 30 seconds), where a
# program must watch for it and send the SIGTERM. The time is enough to finish a step and save, if all ranks stop after
# the *same* step. The signal reaches them at different times, so they have to agree, with one all-reduce per step
# (`Grace.agreed`).
#
# By default Slurm signals the job's steps and not the batch script. With `--signal=B:TERM@120` only the script gets
# it, 120 s before the time limit; it passes it to the tasks and can put the job back into the queue. This is the
# course's script. Exit status 75 means "all is saved, start me again".

# %% tags=["demo"]
script = (files("threeloops.training.elastic") / "requeue.sh").read_text().splitlines()
print("\n".join(line for line in script if not line.startswith("# ") and line != "#"))

# %% [markdown]
# ## A part is gone
#
# With sharded states (ZeRO-1, lab 10) a lost rank takes its part of the optimizer's state along. So each rank also
# keeps a **copy** of the part of the rank before it, and rank 0 keeps that of the last rank. Parts and copies here are all
# of the same step. Then no single loss destroys anything, and nothing has to be read from storage.
#
# Afterwards the state is cut into new parts: of E elements, place p of N ranks has those from p · E // N up to, but
# not including, (p + 1) · E // N. A rank already has many elements of its new part, in its old part or in its copy.
#
# *Example.* 12 elements, 4 ranks, rank 1 is lost.
#
# | rank | its part | its copy | its new part | comes from elsewhere |
# |---|---|---|---|---|
# | 0 | 0–2 | 9–11 | 0–3 | 3 |
# | 2 | 6–8 | 3–5 | 4–7 | none |
# | 3 | 9–11 | 6–8 | 8–11 | none |
#
# Rank 2 has element 3 in its copy. So one move is enough: rank 2 sends it to rank 0.

# %% tags=["demo"]
predict("moved", "1,200 elements on 8 ranks, and rank 3 is lost. How many elements have to travel?", unit="elements")


def share_state(elements, ranks, lost):
    """The pieces that have to travel when one rank's part is gone: (source, target, start, stop)."""
    left = [rank for rank in range(ranks) if rank != lost]
    moves = []
    for place, target in enumerate(left):
        start, stop = place * elements // len(left), (place + 1) * elements // len(left)
        for owner in range(ranks):
            keeper = (owner + 1) % ranks
            low = max(start, owner * elements // ranks)
            high = min(stop, (owner + 1) * elements // ranks)
            if low < high and target not in (owner, keeper):
                moves.append((keeper if owner == lost else owner, target, low, high))
    return moves


# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.lab.drawings import draw_new_parts

print("12 elements, 4 ranks, rank 1 is lost:", share_state(12, 4, 1))


def travelling(elements, ranks, lost):
    return sum(stop - start for _, _, start, stop in share_state(elements, ranks, lost))


with reveal("moved"):
    show.against_prediction("moved", travelling(1200, 8, 3), unit="elements", source="counted")
    explore(
        lambda ranks, lost: draw_new_parts(240, ranks, min(lost, ranks - 1)),
        labels={"lost": "rank that is lost"},
        ranks=(2, 12, 1, 8),
        lost=(0, 11, 1, 3),
    )
    show.table(
        [(n, f"{travelling(6720, n, n // 2) / 6720:.1%}", f"{1 / n:.1%}") for n in (4, 8, 16, 64)],
        header=("ranks", "share of the state that travels", "share that was lost"),
        caption="The rank in the middle is lost",
    )

# %% [markdown]
# New parts are longer than old ones, so all borders shift, most of all beside the lost rank. Ranks after it need elements
# that lie before their own, and these are in their copies. Ranks before it need elements that lie after their own, so
# only these travel. If rank 0 is lost, nothing travels.
#
# Each save costs one message of a part's size, so it can be made after every few steps. After a loss all ranks go back
# to that step, and the copies have to be made again. Until then a second loss destroys something. Nor do the copies survive
# the loss of two neighbours at a time. In a ring, N pairs of ranks are neighbours. The GEMINI paper (Wang et al., SOSP 2023)
# places copies within groups instead: in groups of two, only N/2 pairs of losses destroy something. Put the members of a
# group on different nodes, and save to storage as well, less often.

# %% [markdown]
# ## Shards, and the memory of a peer
#
# Here is the whole recovery: each of four ranks has a part of a
# state, and after every second step it sends a copy to the next rank. Rank 2 dies. `train_through_losses` makes a
# group of those that are left, gathers all parts, and goes on from the last copies. No file is read.

# %% tags=["demo"]
predict(
    "copies",
    "Steps of 0.25 s, copies after every second step, and rank 2 dies at 1.4 s, in its 6th step. How many steps are taken twice?",
    unit="steps",
)

# %% tags=["demo"] jupyter={"source_hidden": true}


class Parts:
    """A state of 12 numbers, each rank with its part. A step adds 1 to all of them."""

    def __init__(self, members):
        self.members = members
        self.values = torch.zeros(12).tensor_split(members.size)[members.place].clone()
        self.taken = taken

    def step(self, number):
        compute(0.25, f"step {number}")
        one = torch.tensor(1.0 / self.members.size)
        dist.all_reduce(one, group=self.members.group)
        self.values += one.round()
        self.taken.append(number)

    def state(self):
        return self.values

    def load(self, parts):
        self.values = torch.cat(list(parts)).tensor_split(self.members.size)[self.members.place].clone()


taken = []


def survives():
    end, members = train_through_losses(Parts, 10, PeerMemory().of, every=2)
    return members.ranks, end.values.tolist(), list(taken)


run = Cluster(uniform(4, 1 / 1024, 1e9), [RankDies(2, 1.4)], timeout=2.0).run(survives)
ranks, values, steps_taken = run.results[0]
with reveal("copies"):
    show.against_prediction(
        "copies", len(steps_taken) - len(set(steps_taken)), unit="steps", source="counted on the virtual cluster"
    )
    print(f"ranks {ranks} are left; rank 0 took the steps {steps_taken} and has the values {values}")
    show.figure(gantt(run), "four ranks, one of which dies; three go on after the timeout")

# %% [markdown]
# The step that rank 2 never finished is not among those that were taken, so it is not taken twice. With a copy after every step, no finished step would be lost.
#
# What does the same death cost if all ranks start again? `run_with_restarts` does in virtual time what torchrun does: ranks that wait
# for rank 2 give up after 2 s, all are ended, and 4 s later three new ones begin. They know what was saved, here the number of steps.

# %% tags=["demo"]


def starts_again(saved):
    done = int(saved.read_text()) if saved.exists() else 0
    for number in range(done, 10):
        compute(0.25, f"step {number}")
        dist.barrier()
        if number % 2 == 1 and dist.get_rank() == 0:
            saved.write_text(str(number + 1))
    return done


with tempfile.TemporaryDirectory() as place:
    _, second = run_with_restarts(
        starts_again,
        Path(place) / "saved",
        machines=[uniform(4, 1 / 1024, 1e9), uniform(3, 1 / 1024, 1e9)],
        deaths=[RankDies(2, 1.4)],
        detect=2.0,
        restart=4.0,
    )
print(f"three ranks go on in the same processes: {run.seconds:.2f} s for 10 steps")
print(f"three new ranks go on from step {second.run.results[0]}: {second.end:.2f} s")

# %% [markdown]
# ## Groups that leave and come back
#
# If the model is trained in several copies, a survivor already has all that is needed. **torchft** builds on this. A *replica
# group* holds one copy, cut over its ranks. Before each step a server says which groups send heartbeats, and the
# gradients are averaged over those. If a group dies, the step in flight does not count; the others take the next one
# without it. A new group gets the weights from one that trains, and joins.
#
# `ReplicaGroups` does the same on the virtual cluster, with a timeout in place of heartbeats. Here four groups have two
# ranks each. Group 2, a machine, dies 1.4 s after the start. In the third run a
# new group 4, which needs 4 s to start, gets the state before step 12.

# %% tags=["demo"]
predict(
    "groups",
    "20 steps of 0.26 s. Group 2 dies in the sixth, and ranks that wait for it give up after 2 s. By how many seconds is the job longer?",
    unit="s",
)


# %% tags=["demo"]
def gradient_of(weights, rank, number):
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(1000 * rank + number), dtype=torch.float64)
    return inputs.T @ (inputs @ weights - inputs.sum(1)) / len(inputs)


def train_in_groups(steps=20, joins=None):
    """SGD by ranks that each hold half of the weights. Group 4 joins before step `joins`, if at all."""
    replicas = ReplicaGroups(2, present=(0, 1, 2, 3))
    part, number, taken = torch.zeros(3, dtype=torch.float64), 0, []
    if replicas.number == 4:
        if joins is None:
            return None
        compute(4.0, "start")
        replicas.present = (0, 1, 3)  # torchft's server tells a new group who is there
        state = torch.empty(4, dtype=torch.float64)
        replicas.join(4, state)
        part, number = state[:3].clone(), int(state[3])
    while number < steps:
        if number == joins and 4 not in replicas.present:
            replicas.join(4, torch.cat([part, torch.tensor([float(number)])]))
        compute(0.25, f"step {number}")
        whole, mine = torch.empty(6, dtype=torch.float64), torch.empty(3, dtype=torch.float64)
        dist.all_gather_into_tensor(whole, part, group=replicas.group)
        dist.reduce_scatter_tensor(mine, gradient_of(whole, dist.get_rank(), number) / 2, group=replicas.group)
        if replicas.average(mine):  # otherwise the step is taken again, by the groups that are left
            part -= 0.1 * mine
            taken.append(replicas.present)
            number += 1
    return part, taken


def alone(taken):
    """Weights of one process that sees, in each step, the examples of the groups that were there."""
    weights = torch.zeros(6, dtype=torch.float64)
    for number, groups in enumerate(taken):
        ranks = [2 * group + place for group in groups for place in (0, 1)]
        weights = weights - 0.1 * sum(gradient_of(weights, rank, number) for rank in ranks) / len(ranks)
    return weights


# %% tags=["demo"] jupyter={"source_hidden": true}
DEATH, TIMEOUT, NEW_START = 1.4, 2.0, 4.0
dies = [RankDies(4, DEATH), RankDies(5, DEATH)]
machines = uniform(10, 1 / 1024, 1e6)
runs = {
    "nobody dies": Cluster(machines, timeout=TIMEOUT).run(train_in_groups),
    "group 2 dies, the others go on": Cluster(machines, dies, timeout=TIMEOUT).run(train_in_groups),
    "group 4 joins before step 12": Cluster(machines, dies, timeout=TIMEOUT).run(train_in_groups, 20, 12),
}
calm = runs["nobody dies"].seconds
with reveal("groups"):
    longer = runs["group 2 dies, the others go on"].seconds - calm
    show.against_prediction("groups", round(longer, 2), unit="s", source="counted on the virtual cluster")
    rows = []
    for name, run in runs.items():
        taken = run.results[0][1]
        apart = float((torch.cat([run.results[0][0], run.results[1][0]]) - alone(taken)).abs().max())
        assert apart < 1e-12
        rows.append((name, f"{run.seconds:.2f} s", f"{16 * sum(map(len, taken)):,}", f"{apart:.0e}" if apart else "0"))
    saved = 4 * calm / 20  # the last save is that after step 4, of every fourth
    restarted = calm + recovery_seconds(DEATH, saved, detect=TIMEOUT, restart=NEW_START, load=0)
    rows.append(("all start again, with saves every 4 steps", f"{restarted:.2f} s", "1,280", "—"))
    show.table(
        rows,
        header=("20 steps", "virtual time", "examples used", "weights differ from one process by"),
        caption=f"Restart: {TIMEOUT:.0f} s until it is noticed, {NEW_START:.0f} s to start, saving and loading are free",
    )
    term("replica group")

# %% [markdown]
# A death costs the survivors the step in flight and the time until it is noticed. They repeat no finished step and load no
# file. From then on a step has three quarters of the examples, so it is not the same step of SGD: the batch is a quarter smaller,
# and the learning rate has not changed. torchft's other mode, `FIXED_WITH_SPARES`, always averages over the same number of
# groups and lets the rest contribute zeros, so all steps are alike, and the spares are paid for. The examples of a dead group
# are skipped: the documentation of torchft's `DistributedSampler` calls it lossy.
#
# The group is also the unit of loss: one broken GPU takes its group along, so large groups lose more at once, and
# the model must fit into a group. Joining costs the transfer of one state, part by part from rank to rank, of which the others
# notice only what delays the giver.

# %% [markdown]
# ## Regions that meet rarely
#
# Between data centers, links are slow, so an all-reduce per step is out of the question. **DiLoCo**
# ([2023](https://arxiv.org/abs/2311.08105)) lets each region take H steps alone, with AdamW. Then the regions average how far
# they have moved. This mean is the gradient Δ of one outer step, SGD with Nesterov momentum from the weights where all of
# them began:
#
# > v ← 0.9 v + Δ,  weights ← weights − 0.7 (Δ + 0.9 v)
#
# *Worked example.* Two regions begin at the weight 1. One ends at 0.8, the other at 0.6. They have moved by 0.2 and 0.4, so Δ
# = 0.3. In the first outer step v = 0.3, and the new weight is 1 − 0.7 · (0.3 + 0.27) = 0.601. Plain averaging would
# give 0.7.
#
# Here one rank stands for each of three regions, 50 ms apart. If a region is gone, the all-reduce raises an error,
# nothing has changed, and the others repeat it without that region.

# %% tags=["demo"]
myth("ft-5")
predict(
    "region",
    "The regions exchange after every 10 steps, and region 2 dies in its 38th. How many of its finished steps are lost?",
    unit="steps",
)


# %% tags=["demo"]
def examples(count, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 16, generator=generator)
    products = (inputs[:, :8] * inputs[:, 8:]).sum(1, keepdim=True)
    return inputs, products.sin() + inputs[:, :4].sum(1, keepdim=True)


def in_regions(steps, every, done, **outer_settings):
    """Train one region's replica. `every` is 0 for an all-reduce of the gradients in each step."""
    members = Members()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    outer = DiLoCo(model.parameters(), **outer_settings) if every else None
    for number in range(steps):
        inputs, targets = examples(64, seed=1000 * dist.get_rank() + number)
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        compute(0.1, f"step {number}")
        if outer is None:
            flat = torch.cat([p.grad.flatten() for p in model.parameters()]) / members.size
            dist.all_reduce(flat)
            for p, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True):
                p.grad = part.view(p.shape)
        optimizer.step()
        done.append(number)
        while outer is not None and (number + 1) % every == 0:
            try:
                outer.step(members.group)
                break
            except RankLost as lost:
                members = members.without(*lost.ranks)
    inputs, targets = examples(2048, seed=999_999)
    with torch.no_grad():
        loss = (model(inputs) - targets).square().mean()
    return float(loss), members.ranks, sum(p.numel() for p in model.parameters())


# %% tags=["demo"] jupyter={"source_hidden": true}
STEPS, EVERY, FAR = 240, 10, uniform(3, 0.05, 1e6)
ways = {
    "gradients in every step": (0, {}, ()),
    "weights averaged, every 10 steps": (EVERY, {"rate": 1.0, "momentum": 0.0}, ()),
    "DiLoCo, every 10 steps": (EVERY, {}, ()),
    "DiLoCo, sent in BF16": (EVERY, {"send_dtype": torch.bfloat16}, ()),
    "DiLoCo, region 2 dies": (EVERY, {}, (RankDies(2, 4.4),)),
}
runs = {
    name: Cluster(FAR, list(deaths), timeout=5.0).run(partial(in_regions, **settings), STEPS, every, [])
    for name, (every, settings, deaths) in ways.items()
}
sent = {name: sum(map(sum, run.bytes)) for name, run in runs.items()}
elements = runs["gradients in every step"].results[0][2]
ring = (
    2 * 2 * elements * 4
)  # N ranks send 2 (N − 1) chunks of 1/N of the elements each, in all 2 (N − 1) times the model
exchanges = STEPS // EVERY
every_step, rarely = sent["gradients in every step"], sent["DiLoCo, every 10 steps"]
assert every_step == STEPS * ring
assert rarely == sent["weights averaged, every 10 steps"] == exchanges * ring
assert sent["DiLoCo, sent in BF16"] * 2 == exchanges * ring
lost_run = runs["DiLoCo, region 2 dies"]
finished = sum(
    span.what.startswith("step") and span.end < lost_run.died[2] for span in lost_run.spans if span.rank == 2
)
with reveal("region"):
    show.against_prediction("region", finished % EVERY, unit="steps", source="counted on the virtual cluster")
    show.table(
        [
            (name, f"{sent[name]:,}", f"{run.seconds:.1f} s", f"{run.results[0][0]:.3f}", len(run.results[0][1]))
            for name, run in runs.items()
        ],
        header=(
            f"{STEPS} steps in 3 regions",
            "bytes between regions",
            "virtual time",
            "loss on unseen data",
            "regions left",
        ),
        caption=f"{elements:,} weights; bytes equal the closed form 2 (N − 1) · elements · size per exchange",
    )
audit(
    "ft-5",
    every_step / rarely,
    f"times fewer bytes, {EVERY} steps between exchanges",
    "CPU",
    "holds",
    how=f"counted on the virtual cluster: an exchange is one all-reduce of the model, whether it carries gradients or how far the weights have moved. So the factor is the number of inner steps, {EVERY} here and 500 in the paper. Rounding what is sent to BF16 doubles it",
)

# %% [markdown]
# An outer step costs what an all-reduce of the gradients costs, once in H steps. AdamW's moments, twice the size of the
# model, never travel. Momentum makes the regions go further than they moved: a movement that lasts is multiplied by up
# to 0.7 / (1 − 0.9) = 7. That needs many outer steps to settle, which is why a short run like this one gains nothing over
# plain averaging.
#
# The lost region takes along what it did since the last exchange, at most H steps of one region, and the others wait once
# for the timeout. They neither go back nor restart, because each has a full replica. From then on the mean has two parts
# instead of three, so fewer examples enter each outer step.

# %% [markdown]
# ## What to pay for
#
# A job that needs all its nodes waits when one of them is in repair, unless a **hot spare** takes its place at once. But spares
# cost as much as nodes that work.
#
# A job's mean time between failures M is `node_mtbf / nodes`. With s spares, the chance that a failed node finds none is
# `no_spare(s, repair, M)`. Then s + 1 nodes are in repair, and the job waits for the first of them to return: repair/(s + 1)
# seconds on average. So
#
# - mean recovery: R = restart + no_spare · repair/(s + 1);
# - useful work per node that is paid for: useful_share(interval, save, R, M) · nodes/(nodes + s).
#
# *Example.* 100 nodes, M = 20 hours, saves of 60 s, a restart of 600 s, a repair of 10 hours; save every 40 minutes. With 1 spare,
# 39% of failures find none and wait for 5 hours, so R = 7,682 s. 0.862 of the time is useful, and 0.853 per node. With 2
# spares 9% wait for 3.3 hours, and it is 0.919 per node. With 3 it is 0.922, and with 4 it is 0.914.

# %% tags=["demo"]
predict(
    "spares",
    "Llama 3's 16,384 GPUs had an interruption every 3.1 hours. If each takes a node away for a day, how many hot spares are needed so that 99% of failures find one?",
    unit="spares",
)


def no_spare(spares, repair, mtbf):
    """The chance that a failed node finds no spare: `spares` or more nodes are in repair (Poisson, mean repair/mtbf)."""
    mean = repair / mtbf
    return max(0.0, 1 - sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(spares)))


def worth(nodes, spares, mtbf, save, restart, repair, interval):
    """Useful work per node that is paid for."""
    recovery = restart + no_spare(spares, repair, mtbf) * repair / (spares + 1)
    return useful_share(interval, save, recovery, mtbf) * nodes / (nodes + spares)


# %% tags=["demo"] jupyter={"source_hidden": true}
with reveal("spares"):
    llama3 = MEASURED[0].days * 24 * HOUR / MEASURED[0].failures
    show.against_prediction(
        "spares", spares_needed(llama3, 24 * HOUR), unit="spares", source="model: repairs under way are Poisson"
    )
    plot, axes = figure(width=8.5, height=3.0)
    for repair, colour in ((1, palette.green), (10, palette.blue), (24, palette.vermillion)):
        shares = [100 * worth(100, s, 20 * HOUR, 60, 600, repair * HOUR, 2400) for s in range(11)]
        best = max(range(11), key=shares.__getitem__)
        axes.plot(range(11), shares, color=colour, marker=".")
        axes.plot([best], [shares[best]], "o", color=colour)
        axes.annotate(
            f"repairs of {repair} h: best with {best} spare{'s' * (best > 1)}",
            (0.5, (shares[0] + shares[1]) / 2),
            (12, -14),
            textcoords="offset points",
        )
    axes.set(xlabel="hot spares beside 100 nodes", ylabel="useful work per node paid for (%)", ylim=(20, 100))
    show.figure(
        plot, "100 nodes, a failure every 20 hours: useful work per node that is paid for, with 0 to 10 hot spares"
    )

# %% [markdown]
# The first spares are worth a lot, since a job that waits for a repair has all its nodes idle. One spare costs only 1/nodes
# of the job. So large jobs should have spares, and a job of a few nodes that rarely fails need not. The best interval is the
# same for every R, because the factor e^(R/M) does not depend on it: the two choices can be made one after the other.

# %% [markdown]
# ## Silent corruption
#
# A GPU or CPU that computes something wrong usually says nothing. After an all-reduce, all replicas have the same bits, so a checksum of 8
# bytes per rank in one all-gather finds a replica that differs: `odd_ranks`. But an error *before* the all-reduce spreads to
# all replicas alike. To find it, let two ranks compute the same microbatch now and then: `cross_check`.
#
# In the next cell one bit of one weight flips on rank 1 of 4. Then rank 2 miscalculates the gradient of a microbatch.

# %% tags=["demo"]
predict(
    "odd",
    "Rank 2 miscalculates its gradient before the all-reduce. After the optimizer's step, which ranks does a checksum over replicas "
    "name?",
    options=("rank 2", "ranks 0, 1 and 3", "none"),
)

# %% tags=["demo"] jupyter={"source_hidden": true}


def checked():
    rank = dist.get_rank()
    weights = torch.linspace(-1, 1, 1000)
    healthy = odd_ranks([weights])
    if rank == 1:
        flip_bit(weights, element=500, bit=3)
    flipped = odd_ranks([weights])

    weights = torch.linspace(-1, 1, 1000)
    gradient = torch.full((1000,), 0.1)
    if rank == 2:
        gradient[7] *= 1.001
    dist.all_reduce(gradient)
    weights -= 0.01 * gradient
    spread = odd_ranks([weights])

    def compute_gradient(microbatch):
        found = torch.full((1000,), float(microbatch))
        if rank == 2:
            found[7] *= 1.001
        return [found]

    return healthy, flipped, spread, cross_check(compute_gradient, mine=rank + 1, before=(rank - 1) % 4 + 1)


run = Cluster(4).run(checked)
healthy, flipped, spread, crossed = run.results[0]
with reveal("odd"):
    show.against_prediction(
        "odd", "none" if not spread else f"rank {spread[0]}", source="run on the virtual cluster: 4 ranks"
    )
    show.table(
        [
            ("healthy replicas, checksums", healthy),
            ("a bit of a weight flips on rank 1, checksums", flipped),
            ("rank 2's gradient is wrong before the all-reduce, checksums", spread),
            ("the same, two ranks compute each microbatch", crossed),
        ],
        header=("", "ranks named"),
        caption="Four ranks, 1,000 weights",
    )

# %% [markdown]
# Checksums cost one read of the weights and one small message. A cross-check costs a microbatch. Llama 3's report names silent corruption as
# the cause of 6 of its 419 interruptions; those that nobody noticed are not in the count.
#
# A gradient that is not finite costs less if the job skips its batch, on all ranks or on none. `GuardedOptimizer` puts this into the two
# calls that every training loop has: `zero_grad` begins to ask which step the others are at, and `step` asks for their votes.

# %% tags=["demo"]


def guarded():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = GuardedOptimizer(torch.optim.SGD([weight], lr=0.1), Members(), lambda: [weight.grad])
    for number in range(4):
        optimizer.zero_grad()
        gradient = torch.full((2,), torch.inf if number == 2 and dist.get_rank() == 1 else 1.0)
        dist.all_reduce(gradient)
        weight.grad = gradient / dist.get_world_size()
        optimizer.step()
    return weight.tolist(), optimizer.skipped


weights, skipped = Cluster(4).run(guarded).results[0]
for number, verdict in skipped:
    print(f"step {number} was skipped: ranks {verdict.not_finite} hold a gradient that is not finite")
print("three steps of 0.1 were taken:", [round(weight, 3) for weight in weights])

# %% [markdown]
# Rank 1 made the infinity, and the all-reduce gave it to every rank. So the vote names all of them. To find the one that made it, look
# at gradients before the all-reduce.

# %% [markdown]
# ## A canary
#
# A **canary** is a short run whose losses are known. Let a machine repeat this run before it gets a job. A
# deterministic program gives the same losses, bit for bit, on the same kind of machine with the same versions. So a
# difference means that the machine, the versions or the program has changed. The versions are stored beside the losses;
# if they are the same, suspect the machine or the program.

# %% tags=["demo"]


def first_losses(steps=5, slip=0.0):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        x = torch.randn(32, 16, dtype=torch.float64)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if len(losses) == 2:
            model[0].weight.grad[3, 3] += slip  # a machine that miscalculates once
        optimizer.step()
        losses.append(loss.item())
    return losses


stored = first_losses()
print("the same machine:", compare(stored, first_losses(), environment()) or "no difference")
print("one that miscalculates:", compare(stored, first_losses(slip=1e-9), environment()))
print("another version:", compare(stored, first_losses(slip=1e-9), environment() | {"torch": "2.0.0"}))

# %% [markdown]
# ## What others have measured
#
# Is the rate of one cluster a guide for another? Llama 3's report gives 419 unexpected interruptions in 54 days on
# 2,048 nodes. The table takes this rate per node and day, and says what it predicts for other runs and clusters. For
# RSC-1, only the hours of 1,024 GPUs are measured; its authors projected the others.

# %% tags=["demo"]
predict(
    "opt",
    "OPT-175B had about 105 restarts in 60 days on 124 nodes. How many does the rate of Llama 3, from two years later, predict?",
    unit="restarts",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
RATE = failures_per_node_day(MEASURED[0])
with reveal("opt"):
    show.against_prediction(
        "opt", round(MEASURED[1].predicted(RATE)), unit="restarts", source="model: the same rate per node-day"
    )
    rows = [(each.source, each.what, f"{each.predicted(RATE):.1f}", f"{each.failures:g}") for each in MEASURED]
    for gpus, hours in RSC1_JOBS.items():
        predicted = cluster_mtbf(86400 / RATE, gpus // 8) / HOUR
        how = "measured" if gpus == min(RSC1_JOBS) else "projected"
        rows.append(("rsc1", f"hours between failures, {gpus:,} GPUs, {how}", f"{predicted:.2f}", f"{hours:g}"))
    show.table(
        rows,
        header=("source", "what", "at Llama 3's rate", "published"),
        caption=f"Llama 3: {1e3 * RATE:.2f} failures per 1,000 node-days; Meta's RSC-1: {1e3 * RSC1_PER_NODE_DAY:.2f}. "
        "Sources are named in threeloops.training.elastic.goodput.published",
    )

# %% [markdown]
# Clusters differ by factors, and so do ways of counting: OPT's number holds restarts of any kind. Measure your own rate before you fine-tune
# an interval.

# %% [markdown]
# ## Early deaths, and saves in the background
#
# The closed form assumes a constant rate of failures. New machines fail more often, which a Weibull distribution with a shape below 1
# describes. It also assumes that a save stops the job until it is safe. An asynchronous save stops it only for a copy (lab 13), and the
# checkpoint becomes usable some time later. The library's simulator models both.

# %% tags=["demo"]
predict(
    "background",
    "2,048 nodes at Llama 3's rate: a failure every 3.1 hours, 10 minutes to restart. Saves stop the job for 2 s instead of 30 s, but are usable only 3 minutes later; each job saves at its best interval. How many "
    "percentage points more of the time are useful?",
    unit="points",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
NODE, MTBF = 86400 / RATE, 86400 / RATE / 2048
cases = {
    "blocking saves of 30 s": SimulatedJob(2048, NODE, best_interval(30, MTBF), save=30, restart=600),
    "background: 2 s, usable after 180 s": SimulatedJob(
        2048, NODE, best_interval(2, MTBF), save=2, restart=600, flush=180
    ),
    "blocking, every 5 minutes": SimulatedJob(2048, NODE, 300, save=30, restart=600),
    "blocking, many early deaths (shape 0.7)": SimulatedJob(
        2048, NODE, best_interval(30, MTBF), save=30, restart=600, shape=0.7
    ),
    "blocking, 8 spares, repairs of a day": SimulatedJob(
        2048, NODE, best_interval(30, MTBF), save=30, restart=600, spares=8, repair=86400
    ),
    "blocking, 16 spares, repairs of a day": SimulatedJob(
        2048, NODE, best_interval(30, MTBF), save=30, restart=600, spares=16, repair=86400
    ),
}
accounts = {name: sum((simulate(job, YEAR / 4, seed) for seed in range(2)), Account()) for name, job in cases.items()}
shares = {name: 100 * account.useful_share for name, account in accounts.items()}
names = list(cases)
with reveal("background"):
    show.against_prediction(
        "background",
        round(shares[names[1]] - shares[names[0]], 1),
        unit="points",
        source="simulated: two times three months",
    )
    plot, axes = figure(width=9.5, height=3.4)
    kinds = {
        "useful": palette.green,
        "lost": palette.vermillion,
        "save": palette.orange,
        "restart": palette.grey,
        "idle": palette.sky,
    }
    for row, account in enumerate(accounts.values()):
        place = 0.0
        for kind, colour in kinds.items():
            share = 100 * getattr(account, kind) / account.seconds
            axes.barh(row, share, left=place, color=colour, height=0.7, label=kind if row == 0 else None)
            place += share
        axes.text(101, row, f"{100 * account.useful_share:.1f}%", va="center")
    axes.set_yticks(range(len(cases)), cases)
    axes.set(xlim=(0, 108), ylim=(len(cases) - 0.5, -0.6), xlabel="share of the time (%)")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=5)
    axes.grid(visible=False)
    show.figure(plot, "where the time goes in six ways to run the same job")
    closed = 100 * useful_share(best_interval(30, MTBF), 30, 600, MTBF)
    print(f"The closed form says {closed:.1f}% for the first, where the simulation has {shares[names[0]]:.1f}%.")

# %% [markdown]
# With a shape below 1, failures are most frequent at the start and become rarer, so over the first three months there
# are more of them than the mean suggests. And when spares run out, the job is idle: that is the wait that the model of
# spares put into R.

# %% tags=["demo"] jupyter={"source_hidden": true}
term("silent data corruption")
term("canary")
calibration()
