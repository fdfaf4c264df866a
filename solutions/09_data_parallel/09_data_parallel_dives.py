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
#     title: When is N times the GPUs N times the speed? Deep dives
#     minutes: 60
# ---

# %% [markdown]
# # When is N times the GPUs N times the speed? Deep dives
#
# These sections are complete and ungraded. They judge seven claims about data parallelism, and can be read in any order:
# how much overlap hides, what `nn.DataParallel` costs, learning rates for large batches, clipping, seeds, slow ranks, and a
# sample program.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] jupyter={"source_hidden": true} nbgrader={"grade": false, "grade_id": "setup_dives", "locked": true, "schema_version": 3, "solution": false, "task": false}
import os

import torch
import torch.distributed as dist
from threeloops.lab import animate, audit, calibration, explore, figure, myth, palette, predict, reveal, show, term
from threeloops.training.cluster import Cluster, SlowRank, advance_to, charge, compute, now, pcie_only, uniform
from threeloops.training.cluster.pictures import gantt, link_matrix
from threeloops.training.data_parallel import (
    DDP,
    StragglerDetector,
    batch_weights,
    clip_grad_norm,
    expected_slowest,
    gather_seconds,
    overlapped_step,
    proportional_batches,
    seed_rank,
)

LAYERS, WIDTH, FORWARD, BACKWARD = 8, 256, 0.1e-3, 0.2e-3


class TimedLinear(torch.nn.Linear):
    def forward(self, x):
        return charge(super().forward(x), FORWARD, BACKWARD)


def timed_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(*[TimedLinear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])


# %% [markdown]
# ## How much does overlap hide?
#
# The hidden share depends on the link, and there is no typical value. The next cell runs one training step of 2.4 ms of
# computation with 2 MiB of gradients in 4 buckets, on links from 0.25 to 64 GB/s.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("ddp-1")
myth("ddp-7")

# %% tags=["demo"] jupyter={"source_hidden": true}


def ddp_step():
    ddp = DDP(timed_model(), bucket_cap_mb=0.5, first_bucket_mb=0.5)
    advance_to(1.0)
    ddp(torch.ones(1, WIDTH)).sum().backward()
    return now() - 1.0


links, shares = [0.25, 0.5, 1, 2, 4, 8, 16, 64], []
for link in links:
    run = Cluster(uniform(4, 5e-6, link * 1e9)).run(ddp_step)
    exposed = max(run.results) - LAYERS * (FORWARD + BACKWARD)
    communication = sum(s.end - s.start for s in run.spans if s.rank == 0 and s.what == "all_reduce" and s.start >= 1.0)
    shares.append(1 - exposed / communication)
with reveal("ddp-1"):
    plot, axes = figure(width=8, height=3)
    axes.fill_between([links[0], links[-1]], 50, 80, color=palette.sky, alpha=0.3, lw=0)
    axes.plot(links, [100 * share for share in shares], marker="o", color=palette.blue)
    axes.text(links[0], 82, "the claim: 50–80%", color=palette.ink)
    axes.set(xscale="log", xticks=links, xticklabels=links, ylim=(0, 105), xlabel="link (GB/s)", ylabel="hidden (%)")
    axes.set_title("Share of the communication that overlap hides: 4 ranks, 4 buckets")
    show.figure(plot)
audit(
    "ddp-1",
    round(100 * min(shares)),
    f"% on the slowest link, {100 * max(shares):.0f}% at most",
    "model",
    "corrected",
    how="our DDP on the virtual cluster, links from 0.25 to 64 GB/s. On a slow link no more than backward · (b − 1)/b can be hidden; on a fast one all but the last of b buckets, (b − 1)/b. With 4 buckets that is 75%, and any range can be had by choosing link and buckets",
)
gains = [18 / overlapped_step(11, 7, hidden, 8).seconds for hidden in (0.5, 0.8)]
audit(
    "ddp-7",
    round(gains[1], 2),
    f"× at 80% hidden, {gains[0]:.2f}× at 50%",
    "model",
    "holds",
    how="10 + 7 + 1 = 18 s without overlap; with a share h of the 7 s hidden it is 18 − 7h. The arithmetic holds, as long as the optimizer waits for the last gradient and is not used to hide anything",
)

# %% [markdown]
# ## What was wrong with `nn.DataParallel`?
#
# `torch.nn.DataParallel` is one process with a thread per GPU. In each step GPU 0 sends the weights and the inputs to all
# others, and collects their outputs and gradients. All threads share one Python interpreter. With NCCL the transfers are
# pipelined; without it GPU 0 talks to each GPU in turn, so everything passes through its link, and the time grows with
# N. A ring's time hardly grows. The next cell runs both, talking in turn and a ring, with 4 MiB of weights on 8 GPUs
# behind PCIe switches, and shows who sends how much.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "dp",
    "8 ranks, each gets 4 MiB from rank 0 and sends 4 MiB back: how many times as long as a ring all-reduce of 4 MiB?",
    unit="×",
)

# %% tags=["demo"] jupyter={"source_hidden": true}


def through_rank_0():
    x, rank, size = torch.ones(2**20), dist.get_rank(), dist.get_world_size()
    if rank == 0:
        for work in [dist.isend(x, other) for other in range(1, size)]:
            work.wait()
        dist.barrier()  # here they compute
        gradient = torch.empty_like(x)
        for other in range(1, size):
            dist.recv(gradient, other)
            x += gradient
    else:
        dist.recv(x, 0)
        dist.barrier()
        dist.send(x, 0)


def through_the_ring():
    dist.all_reduce(torch.ones(2**20))


with reveal("dp"):
    node = pcie_only("L40S", 8)  # each GPU has its own PCIe lanes, and two groups of four share a switch
    central, ring = Cluster(node).run(through_rank_0), Cluster(node).run(through_the_ring)
    show.against_prediction(
        "dp", round(central.seconds / ring.seconds, 1), unit="×", source="virtual cluster, 8 × L40S on PCIe"
    )
    print("Rank 0 sends 28 MiB and then receives as many; in the ring each rank sends 7 MiB.")
    show.figure(link_matrix(central), "who sends how much through rank 0")
    show.figure(link_matrix(ring), "who sends how much in a ring")

# %% [markdown]
# ## A batch N times as large: which learning rate?
#
# For SGD there is an argument (Goyal et al. 2017, arXiv 1706.02677): N small steps with rate r move about as far as one step
# on the N-fold batch with rate N · r, as long as the gradient hardly changes in between. At the start it changes quickly,
# hence a warm-up. For Adam theory gives √N (Malladi et al. 2022, arXiv 2205.10287): if noise dominates, the gradient of
# an N times larger batch is √N smaller. Adam divides by that size, so the part of its step that is not noise already
# grows by √N, and the rate supplies the other √N. The next cell trains a small network on the same number of samples
# with batches of 16 and 128.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("ddp-4")

# %% tags=["demo"] jupyter={"source_hidden": true}


def trained(kind, batch, rate, warmup=0, samples=16384):
    """Loss on fresh samples after training on `samples` of them."""
    torch.set_num_threads(1)  # the network is tiny
    generator = torch.Generator().manual_seed(3)
    teacher, student = (
        torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)) for _ in range(2)
    )
    for number, net in enumerate((teacher, student)):
        for p in net.parameters():
            p.data = torch.randn(p.shape, generator=generator) * (0.5 if number == 0 else 0.3)
    optimizer = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}[kind](student.parameters(), lr=rate)
    for step in range(samples // batch):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / (warmup + 1))
        x = torch.randn(batch, 16, generator=generator)
        y = teacher(x).detach() + 0.1 * torch.randn(batch, 1, generator=generator)
        loss = (student(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x = torch.randn(4096, 16, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        return float((student(x) - teacher(x)).square().mean())


plans = [
    ("SGD", 16, 0.02, 0), ("SGD", 128, 0.02, 0), ("SGD", 128, 0.16, 0), ("SGD", 128, 0.16, 16),
    ("Adam", 16, 0.01, 0), ("Adam", 128, 0.01, 0), ("Adam", 128, 0.028, 16), ("Adam", 128, 0.08, 16),
]  # fmt: skip
losses = {plan: trained(*plan) for plan in plans}
with reveal("ddp-4"):
    show.table(
        [(kind, batch, rate, warmup, f"{loss:.4f}") for (kind, batch, rate, warmup), loss in losses.items()],
        header=("optimizer", "batch", "rate", "warm-up steps", "loss"),
        caption="the same 16,384 samples; lower is better",
    )
same, kept, scaled = (losses[plans[i]] for i in (0, 1, 3))
audit(
    "ddp-4",
    round(scaled / same, 2),
    f"× the loss of the small batch with SGD at 8 times the rate; {kept / same:.2f}× with the rate unchanged",
    "CPU",
    "corrected",
    how=f"a small network on the same samples, batches of 16 and 128. With SGD the linear rule brings the large batch near the small one. With Adam it leaves {losses[plans[7]] / losses[plans[4]]:.1f} times the loss of the small batch, and √8 instead of 8 leaves {losses[plans[6]] / losses[plans[4]]:.1f} times: here the larger rate is the better one, because 128 steps with the large batch are too few to converge. One small network does not settle the rule for Adam. It shows that the rule depends on the optimizer and on how far training has come, and the claim names neither",
)

# %% [markdown]
# ## Clipping: who knows the norm?
#
# After DDP every rank holds the same averaged gradient, so `torch.nn.utils.clip_grad_norm_` finds the same norm everywhere,
# without a message. If gradients are *sharded* (FSDP, tensor parallelism), a rank has only its part. FSDP2 keeps the parts as
# DTensors, for which torch's function does reduce the norm; it cannot know that plain tensors are parts. Below, two
# ranks hold the gradients 3 and 4, whose joint norm is 5.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("ddp-8")

# %% tags=["demo"] jupyter={"source_hidden": true}


def norms(sharded):
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.tensor([3.0 + dist.get_rank()])
    if sharded:
        norm = clip_grad_norm([parameter], 1.0, sharded=True)
    else:
        norm = torch.nn.utils.clip_grad_norm_([parameter], 1.0)
    return float(norm), float(parameter.grad)


plain, reduced = (Cluster(2).run(norms, sharded) for sharded in (False, True))
with reveal("ddp-8"):
    for name, run in (("torch's clip_grad_norm_", plain), ("with one all-reduce", reduced)):
        for rank, (norm, clipped) in enumerate(run.results):
            print(
                f"{name}, rank {rank}: norm {norm:.3g}, clipped gradient {clipped:.3f}; {sum(run.bytes[rank])} bytes sent"
            )
audit(
    "ddp-8",
    sum(map(sum, plain.bytes)),
    "bytes",
    "model",
    "corrected",
    how="two ranks with the shards 3 and 4 of a gradient as plain tensors: torch's function sends nothing, finds the norms 3 and 4 instead of 5, and clips both to 1, which changes the direction. Only DTensors have their norms reduced",
)

# %% [markdown]
# ## Seeds: what must be equal, and what must not
#
# The permutation of the data set must be equal on all ranks, and so should the initialisation (DDP's broadcast makes
# the weights equal anyway). Dropout and augmentation must differ, or all ranks drop the same units for their different
# samples. `seed_rank(seed)` gives the shared stream, and `seed_rank(seed, rank)` a stream of its own to each rank. With
# `seed + rank` instead, rank 1 of run 0 repeats rank 0 of run 1.
#
# Equal seeds do not make a run repeatable on their own: sums of floats depend on their order, and on a GPU atomics make that order vary.
# `torch.use_deterministic_algorithms(True)` picks kernels with a fixed order.


# %% tags=["demo"]
def masks():
    seed_rank(0)
    weights = torch.randn(2)
    seed_rank(0, dist.get_rank())
    return weights.tolist(), torch.nn.functional.dropout(torch.ones(8), 0.5).bool().int().tolist()


for rank, (weights, mask) in enumerate(Cluster(3).run(masks).results):
    print(f"rank {rank}: weights {weights[0]:+.3f} {weights[1]:+.3f}, dropout keeps {mask}")
x = torch.randn(10000, generator=torch.Generator().manual_seed(0))
print(
    "sums of the same 10,000 floats in three orders:",
    *(float(part.cumsum(0)[-1]) for part in (x, x.flip(0), x.sort().values)),
)

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("ddp-5")
audit(
    "ddp-5",
    None,
    "",
    "model",
    "needs a GPU",
    how="on a GPU the price depends on which kernels have a deterministic form: those with atomics (index_add, scatter, some convolutions) are replaced by slower ones, and most matrix multiplications are deterministic anyway. One percentage for all models cannot be right, but its size must be measured there",
)

# %% [markdown]
# ## Slow ranks
#
# In synchronous training the slowest rank sets the pace. If step times vary by chance, some rank is always unlucky: with
# normal times of deviation σ, the slowest of 8 takes 1.42 σ more than the mean, and that of 1,024 takes 3.2 σ more.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("ddp-6")


def draw_slowest(deviation_percent):
    counts = [2**power for power in range(13)]
    plot, axes = figure(width=8, height=3)
    values = [expected_slowest(100, deviation_percent, ranks) for ranks in counts]
    axes.plot(counts, values, marker="o", color=palette.blue)
    axes.axhline(110, color=palette.vermillion, ls="--")
    axes.text(1, 110.5, "10% slow", color=palette.vermillion)
    axes.set(
        xscale="log",
        xticks=counts[::2],
        xticklabels=counts[::2],
        ylim=(98, 145),
        xlabel="ranks",
        ylabel="step (% of the mean)",
    )
    axes.set_title(f"Expected step of equal ranks, each with a deviation of {deviation_percent}%")
    return plot


with reveal("ddp-6"):
    explore(draw_slowest, deviation_percent=[3, 1, 2, 5, 10])


def slow_training(steps):
    """Which ranks are flagged after each step, and when the step ends, with a rank that is 1.3 times as slow."""
    detector, seen = StragglerDetector(dist.get_world_size(), factor=1.1, patience=3), []
    for _ in range(steps):
        began = now()
        compute(10e-3, "forward and backward")
        flagged = detector.update(gather_seconds(now() - began))
        dist.all_reduce(torch.ones(2**16))
        seen.append((now() - began, flagged))
    return seen


slow = Cluster(4, [SlowRank(2, 1.3)]).run(slow_training, 4)
with reveal("ddp-6"):
    show.table(
        [
            (step + 1, f"{1e3 * seconds:.2f} ms", flagged or "none")
            for step, (seconds, flagged) in enumerate(slow.results[0])
        ],
        header=("step", "time on rank 0", "flagged"),
        caption="Rank 2 is 1.3 times as slow: every rank takes its 13 ms, and after three steps it is flagged",
    )
    animate(
        lambda frame: gantt(slow, until=slow.seconds * (frame + 1) / 6, most_arrows=20),
        range(6),
        seconds=0.7,
        caption="The fast ranks wait in the collective, so only a rank's own compute time tells who is slow",
    )
audit(
    "ddp-6",
    round(expected_slowest(100, 3, 1024), 1),
    "% of the mean step, expected for 1,024 equal ranks with a deviation of 3%",
    "model",
    "corrected",
    how="the first half holds: a synchronous step takes the maximum over the ranks. But with a deviation of 3% the slowest of 1,024 equal ranks is expected to be 10% slow in every step, another one each time. A threshold needs patience as well: slow in several steps in a row",
)

# %% [markdown]
# What if a slow GPU cannot be replaced? Give it fewer samples. Below, the batch of 64 is shared in proportion to speed. DDP
# averages over ranks, not over samples, so each rank's loss is multiplied by N · batch ÷ global batch, because
# otherwise samples in small batches would count more.

# %% tags=["demo"]
speeds = [100, 100, 77, 100]  # samples per second
batches = proportional_batches(speeds, 64)
print("batches", batches, "weights", [round(weight, 3) for weight in batch_weights(batches)])
print(f"step: {max(16 / speed for speed in speeds):.3f} s with 16 each,", end=" ")
print(f"{max(batch / speed for batch, speed in zip(batches, speeds, strict=True)):.3f} s with these")

# %% [markdown]
# ## A sample program
#
# One of the tutorials from which this course takes its claims shows a DDP sample that calls `dist.init_process_group("nccl")` in a script started with plain
# `python`, and multiplies Adam's learning rate by the number of GPUs. The next cell starts a process group that way, with
# gloo.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("code-1")
kept = {name: os.environ.pop(name, None) for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")}
needed = []
for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", None)):
    try:
        dist.init_process_group("gloo")
    except ValueError as error:
        needed.append(str(error).splitlines()[0])
    if value is not None:
        os.environ[name] = value
for name, value in kept.items():
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
with reveal("code-1"):
    print("\n".join(needed))
audit(
    "code-1",
    len(needed),
    "variables are missing",
    "CPU",
    "corrected",
    how="init_process_group reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and raises for the first that is not set. torchrun sets them; plain python does not. And Adam's rate times N is no rule, see above",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
term("straggler")
calibration()
