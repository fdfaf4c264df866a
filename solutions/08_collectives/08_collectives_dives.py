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
#     title: How do many GPUs sum their gradients? Deep dives
#     minutes: 75
# ---

# %% [markdown]
# # How do many GPUs sum their gradients? Deep dives
#
# These sections are complete and ungraded, and can be read in any order. They show the other algorithms that libraries
# use, when each is the fastest, and what happens if a buffer changes too early. The last section judges eight claims.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] jupyter={"source_hidden": true} nbgrader={"grade": false, "grade_id": "setup_dives", "locked": true, "schema_version": 3, "solution": false, "task": false}
import torch
import torch.distributed as dist
from threeloops.hardware import accelerator
from threeloops.hardware.measured import MEASURED_BY
from threeloops.lab import animate, audit, calibration, explore, figure, myth, palette, predict, reveal, show, term
from threeloops.lab.drawings.measured.links import nccl
from threeloops.training.cluster import Cluster, ClusterError, fabric, one_node, uniform
from threeloops.training.cluster.pictures import gantt, link_matrix
from threeloops.training.collectives import (
    ALL_REDUCES,
    Link,
    TorchPeers,
    best_algorithm,
    fastest,
    hierarchical_all_reduce,
    one_shot_all_reduce,
    one_shot_all_reduce_cost,
    predicted_seconds,
    ring_all_reduce,
    ring_all_reduce_cost,
    two_shot_all_reduce,
    two_shot_all_reduce_cost,
)
from threeloops.units import readable_bytes

NETWORK = Link(latency=14e-6, bandwidth=50e9)
NVLINK = Link(latency=3.4e-6, bandwidth=450e9)
COLOURS = dict(
    zip(ALL_REDUCES, (palette.blue, palette.green, palette.orange, palette.purple, palette.grey), strict=True)
)


def reduce_with(name, n):
    """The all-reduce `name` of n ones, on every rank; what a rank has afterwards in its first place."""
    x = torch.ones(n)
    ALL_REDUCES[name].run(TorchPeers(), x, "sum")
    return x[:1].tolist()


def run_all_reduce(name, ranks, n):
    return Cluster(uniform(ranks, NETWORK.latency, NETWORK.bandwidth)).run(reduce_with, name, n)


# %% [markdown]
# ## Trees
#
# A **binomial tree** sums towards rank 0: first every odd rank sends to the even rank before it, then the ranks 2, 6, … to
# 0, 4, …, and so on. After log₂N steps rank 0 has the sum, and the tree sends it back the same way. A tree pays 2·log₂N
# latencies where a ring pays 2(N − 1), but each message holds the whole tensor. The animation shows 8 ranks with 1 MB each.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "tree",
    "8 ranks, 1 MB each, α = 14 µs, β = 50 GB/s, so a message of 1 MB takes 34 µs. How many µs does the tree all-reduce take?",
    unit="µs",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
tree = run_all_reduce("tree", 8, 250_000)
show.against_prediction("tree", round(tree.seconds * 1e6, 1), unit="µs", source="run on the virtual cluster")
with reveal("tree"):
    animate(
        lambda part: gantt(tree, until=tree.seconds * part / 6),
        range(1, 7),
        seconds=1.0,
        caption="A tree of eight ranks: three steps to rank 0, three steps back.",
    )
    print("Three steps to rank 0 and three steps back, 34 µs each. A ring takes 14 steps of 16.5 µs: 231 µs.")

# %% [markdown]
# ## Halving and doubling
#
# Recursive doubling exchanges whole tensors in log₂N steps. Rabenseifner's algorithm saves bytes: in its first step a pair
# exchanges *halves*, and each rank goes on with the half that it has summed. Then come quarters, and so on: a
# reduce-scatter in log₂N steps. An all-gather goes the same way back. It sends the bytes of a ring with 2·log₂N latencies
# ([Thakur, Rabenseifner and Gropp 2005](https://doi.org/10.1177/1094342005051521)). The table runs all five algorithms on
# the virtual cluster, on 8 ranks that have a link of their own to each other rank, and compares with the closed forms.

# %% tags=["demo"] jupyter={"source_hidden": true}
rows = []
for name in ALL_REDUCES:
    for n in (1000, 250_000):
        run, cost = run_all_reduce(name, 8, n), ALL_REDUCES[name].cost(n, 4, 8, NETWORK)
        assert [result[0] for result in run.results] == [8.0] * 8
        assert tuple(map(sum, run.bytes)) == cost.bytes and abs(run.seconds / cost.seconds - 1) < 1e-12
        rows.append((name, f"{4 * n:,}", f"{max(cost.bytes):,}", max(cost.messages), f"{run.seconds * 1e6:,.2f}"))
show.table(
    rows,
    header=("algorithm", "bytes of the tensor", "most bytes sent by a rank", "most messages", "µs"),
    caption="Bytes, messages and seconds of the runs equal the closed forms.",
)

# %% [markdown]
# Why does anybody use a ring, then? Because of where the messages go. In a ring each rank sends to one neighbour, so the
# ring can be laid along the fastest links of a machine. In halving-doubling a rank exchanges with log₂N others. Those in
# other nodes are reached over links that the ranks of a node share, and in the usual order they get the largest messages.
#
# ## Which one, by size and by number of ranks
#
# This is the choice of exercise 4, for many sizes at once. It includes trees and halving-doubling, and leaves out the sum
# through rank 0. If N is not a power of two, recursive doubling first adds the tensors of the surplus ranks to those of
# other ranks, as MPICH does. Move α and β.

# %% tags=["demo"] jupyter={"source_hidden": true}
SIZES = [2**k for k in range(6, 31)]
RANKS = [2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256, 512]


def draw_choice(alpha_us, beta_gbs):
    chosen = fastest(SIZES, RANKS, Link(alpha_us * 1e-6, beta_gbs * 1e9))
    fig, axes = figure(width=9.5, height=4.0)
    for row, names in enumerate(chosen):
        for column, name in enumerate(names):
            axes.barh([row], [1], left=column, height=1.0, color=COLOURS[name], alpha=0.75, edgecolor="none")
    for name in sorted({name for names in chosen for name in names}):
        axes.barh([0], [0], color=COLOURS[name], alpha=0.75, label=name)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, fontsize=9)
    axes.set_xticks(range(0, 25, 4), ["64 B", "1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB", "1 GiB"])
    axes.set_yticks(range(len(RANKS)), RANKS)
    axes.set(xlabel="size of the tensor", ylabel="ranks", xlim=(0, len(SIZES)))
    axes.grid(visible=False)
    return fig


explore(draw_choice, alpha_us=(1, 50, 1, 14), beta_gbs=(1, 450, 1, 50))

# %% [markdown]
# For a power of two the model never picks the ring: with a private link for every pair, halving-doubling has fewer
# latencies and the same bytes. Rings win for large tensors where N is not a power of two, and where links are shared.
#
# ## What NCCL chooses
#
# NCCL has rings, double binary trees, and NVLink SHARP, in which the switch adds. Per algorithm it keeps a latency and a
# bandwidth, and takes the lowest sum (`src/graph/tuning.cc`). It cuts tensors into small pieces and sends piece after
# piece, so that in a *pipelined* tree a rank sends about one tensor up and one down, and pays 2·log₂N latencies once. Two
# trees in which the leaves of one are the inner nodes of the other use all links ([Sanders, Speck and Träff
# 2009](https://doi.org/10.1016/j.parco.2009.09.001)). The figure shows the **bus bandwidth** as `nccl-tests` defines it,
# 2(N − 1)/N · size / time, by a simple model of both. In this model the tree is ahead up to some size, which grows with
# N²: 2.6 GB for 64 ranks, and beyond the end of the axis for 256. NCCL changes to rings earlier, because it assumes a
# lower bandwidth for trees.

# %% tags=["demo"] jupyter={"source_hidden": true}


def bus_bandwidth(size, ranks, seconds):
    return 2 * (ranks - 1) / ranks * size / seconds


def draw_bus(ranks):
    fig, axes = figure(width=9.5, height=3.6)
    sizes = [2**k for k in range(10, 33)]
    depth = (ranks - 1).bit_length()
    models = {
        "ring": lambda size: 2 * (ranks - 1) * (NETWORK.latency + size / ranks / NETWORK.bandwidth),
        "double tree, pipelined": lambda size: 2 * depth * NETWORK.latency + 2 * size / NETWORK.bandwidth,
    }
    for (name, model), colour in zip(models.items(), (palette.blue, palette.orange), strict=True):
        axes.plot(sizes, [bus_bandwidth(s, ranks, model(s)) / 1e9 for s in sizes], color=colour, label=name)
    axes.axhline(NETWORK.bandwidth / 1e9, color=palette.grey, lw=1)
    axes.text(sizes[0], 50.8, "the port: 50 GB/s", fontsize=9)
    axes.set_xscale("log", base=2)
    axes.set_xticks([2**k for k in range(10, 33, 4)], ["1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB", "1 GiB"])
    axes.set(xlabel="size of the tensor", ylabel="bus bandwidth, GB/s (model)", title=f"{ranks} ranks", ylim=(0, 56))
    axes.legend(loc="lower right")
    return fig


explore(draw_bus, ranks=[8, 16, 64, 256, 1024])

# %% [markdown]
# ## All-to-all
#
# In a mixture of experts each rank has tokens for the experts on every other rank. **All-to-all** gives block j of rank i
# to rank j. Nothing is added, so nothing can be shared on the way: each rank sends N − 1 blocks. The order matters. If all
# ranks begin with rank 0, its port in is the bottleneck; in step k of the pairwise order each rank sends to the rank k
# places after it, and all ports are busy.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "all_to_all",
    "8 GPUs behind NVSwitch, blocks of 1 MB. All ranks send to rank 0 first, then to rank 1, and so on. How many times longer than in the pairwise order?",
    unit="×",
)


# %% tags=["demo"]
def exchange(n, order):
    """A block of n elements from each rank to each other one, in this order of targets."""
    rank, size, block = dist.get_rank(), dist.get_world_size(), torch.zeros(n)
    received = [dist.irecv(torch.zeros(n), other) for other in range(size) if other != rank]
    for step in range(size):
        to = (rank + step) % size if order == "pairwise" else step
        if to != rank:
            dist.send(block, to)
    for handle in received:
        handle.wait()


good, bad = (
    Cluster(one_node("H100 SXM", 8)).run(exchange, 250_000, order)
    for order in ("pairwise", "everybody to rank 0 first")
)
show.against_prediction(
    "all_to_all", round(bad.seconds / good.seconds, 2), unit="×", source="run on the virtual cluster"
)
with reveal("all_to_all"):
    print(f"pairwise: {good.seconds * 1e6:.1f} µs; everybody to rank 0 first: {bad.seconds * 1e6:.1f} µs")
    show.figure(link_matrix(good), "every rank sends the same to every other rank, in both orders")
    show.figure(gantt(bad), "messages to the same rank wait for each other")

# %% [markdown]
# ## One shot or two: all-reduce behind a switch
#
# A decode step on 8 GPUs all-reduces a few kilobytes after each layer, and 14 latencies of a ring would be most of its time. Behind
# a switch every GPU can reach every other one directly, so engines skip the ring:
#
# - **One shot**: everybody sends its whole tensor to everybody, and each adds them up. One latency, (N − 1)·s bytes.
# - **Two shots**: rank i gets chunk i of all, adds it up, and sends the sum to all. Two latencies, 2(N − 1)/N·s bytes.
#
# On GPUs the kernels read the memory of the others (*symmetric memory*: each buffer has the same address everywhere).
# The bytes through each port are the same. Two shots have the bytes of a ring with 2 latencies instead of 2(N − 1).

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "shots",
    "8 H100, α = 3.4 µs, 450 GB/s per GPU into the switch. Up to which size of the tensor is one shot faster than two?",
    unit="kB",
)


# %% tags=["demo"]
SHOTS = {
    "one shot": (one_shot_all_reduce, one_shot_all_reduce_cost),
    "two shots": (two_shot_all_reduce, two_shot_all_reduce_cost),
    "ring": (ring_all_reduce, ring_all_reduce_cost),
}


def reduce_behind_a_switch(name, n):
    x = torch.ones(n)
    SHOTS[name][0](TorchPeers(), x)
    return float(x[0])


def equal_size(ranks, port):
    """α + (N − 1)s/β = 2α + 2(N − 1)/N · s/β, solved for s."""
    return port.latency * port.bandwidth * ranks / ((ranks - 1) * (ranks - 2))


# %% tags=["demo"] jupyter={"source_hidden": true}
show.against_prediction("shots", round(equal_size(8, NVLINK) / 1e3), unit="kB", source="closed form")
with reveal("shots"):
    rows = []
    for n in (2048, 40_000, 262_144, 4_194_304):
        times = {}
        for name in SHOTS:
            run = Cluster(one_node("H100 SXM", 8)).run(reduce_behind_a_switch, name, n)
            assert set(run.results) == {8.0}
            times[name] = run.seconds * 1e6
        best = min(times, key=times.get)
        rows.append((f"{4 * n / 1e3:,.0f}", *(f"{times[name]:,.2f}" for name in SHOTS), best))
    show.table(
        rows,
        header=("kB", "one shot (µs)", "two shots (µs)", "ring (µs)", "first"),
        caption="8 × H100 behind NVSwitch, on the virtual cluster",
    )
    term("one-shot all-reduce")

# %% [markdown]
# vLLM takes one shot below 256 KiB for up to 8 GPUs, below 512 KiB for up to 4, and always for 2
# (`csrc/custom_all_reduce.cuh`). The closed form gives 291 kB for 8, 1.0 MB for 4, and no limit for 2: the same order, and within a
# factor of two, from one α and one β.
#
# **NVLink SHARP** (NVLS in NCCL) goes further: the switch adds. A GPU then sends its tensor once and receives the sum once, whatever
# N is. NVIDIA's tables do not say which all-reduces used it, but the times do. A ring's all-reduce is a reduce-scatter and an
# all-gather over the same links. So its bus bandwidth (size ÷ time · 2(N − 1)/N) should be about that of an all-gather
# (size ÷ time · (N − 1)/N), and never more than the link's.

# %% tags=["demo"] jupyter={"source_hidden": true}
rows = []
for device in ("A100 SXM 80GB", "H100 SXM", "H200 SXM", "B200"):
    gather, reduce = (nccl(device, operation) for operation in ("all_gather", "all_reduce"))
    size = max(set(gather.sizes) & set(reduce.sizes))
    buses = 7 / 8 * size / gather.at(size), 2 * 7 / 8 * size / reduce.at(size)
    link = accelerator(device).link_bandwidth
    rows.append(
        (
            reduce.source.split(",")[0],
            *(f"{bus / 1e9:.0f}" for bus in buses),
            f"{buses[1] / buses[0]:.2f}",
            f"{link / 1e9:.0f}",
        )
    )
show.table(
    rows,
    header=("", "all-gather (GB/s)", "all-reduce (GB/s)", "ratio", "link (GB/s)"),
    caption=f"Bus bandwidth at {readable_bytes(size)}, NCCL 2.27.3 (A100) and 2.29.2, {MEASURED_BY}",
)
term("NVLS")

# %% [markdown]
# The switches of the A100 cannot add, and its two numbers agree within a tenth. On the H100 and the H200 an all-reduce has a
# third more than an all-gather, and on the H200 more than the link has, which no ring can. There the switch added. The
# B200's numbers fit both. For small tensors the times do not tell, so how long NVLS takes to start was not measured.
#
# ## Seventy-two GPUs behind one switch
#
# In an NVL72 rack 72 GPUs share one NVLink domain. As nine nodes of eight they would be joined by a network. The table
# has one all-reduce of 72 GPUs on each. On the nodes it is a hierarchy as in exercise 6, but in two shots inside a node,
# and with the fastest of the algorithms above between nodes, through a port of 50 GB/s per GPU. Both columns are closed
# forms with α as NCCL assumes it; **not measured**.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict("rack", "An all-reduce of 64 KiB over 72 GPUs: how many times faster in the rack than on nine nodes?", unit="×")

# %% tags=["demo"] jupyter={"source_hidden": true}
RACK = Link(NVLINK.latency, accelerator("GB200").link_bandwidth)


def on_72(size):
    """Seconds on nine nodes, and in the rack in one shot and in two."""
    n = size // 4
    across = predicted_seconds(size // 8, 9, NETWORK)
    return (
        two_shot_all_reduce_cost(n, 4, 8, NVLINK).seconds + across[best_algorithm(size // 8, 9, NETWORK)],
        one_shot_all_reduce_cost(n, 4, 72, RACK).seconds,
        two_shot_all_reduce_cost(n, 4, 72, RACK).seconds,
    )


nodes, one, two = on_72(2**16)
show.against_prediction("rack", round(nodes / min(one, two), 1), unit="×", source="closed form")
with reveal("rack"):
    rows = []
    for name, size in (("8 KiB", 2**13), ("64 KiB", 2**16), ("1 MiB", 2**20), ("64 MiB", 2**26), ("1 GiB", 2**30)):
        seconds = on_72(size)
        rows.append((name, *(f"{1e6 * t:,.1f}" for t in seconds), f"{seconds[0] / min(seconds[1:]):.1f}"))
    show.table(
        rows,
        header=("tensor", "9 nodes × 8 H100 (µs)", "NVL72, one shot (µs)", "NVL72, two shots (µs)", "times faster"),
        caption=f"72 GPUs; the rack has {RACK.bandwidth / 1e9:.0f} GB/s per GPU and direction",
    )

# %% [markdown]
# For small tensors the rack saves steps. For large ones it saves the network: on nine nodes each GPU sends an eighth of the
# tensor twice through a port of 50 GB/s, and in the rack it sends all of it twice, but through a port of 900 GB/s. That is
# why tensor and expert parallelism, which exchange small tensors often, spread over the rack and not over nodes.
#
# ## A buffer that changes too early
#
# `isend` returns before the tensor has been read. On a GPU the copy runs on another stream. If you write into the tensor
# before `wait()`, the receiver may get the old values, the new ones, or a mixture. The virtual cluster compares the tensor
# with what it held when `isend` was called, so the mistake shows every time.

# %% tags=["demo"]


def reuse(wait_first):
    x, got = torch.full((3,), 7.0), torch.zeros(3)
    if dist.get_rank() == 0:
        sent = dist.isend(x, 1)
        if wait_first:
            sent.wait()
        x.zero_()  # the buffer is used for something else
        sent.wait()
    else:
        dist.recv(got, 0)
    return got.tolist()


for wait_first in (True, False):
    try:
        print(f"wait first: {wait_first}, received:", Cluster(2).run(reuse, wait_first).results[1])
    except ClusterError as error:
        print(f"wait first: {wait_first}:\n{error}")

# %% [markdown]
# ## One network port for a whole node
#
# The hierarchy of exercise 6 relies on a network port for each GPU. Cheaper machines have one for all. Then the four shards
# of a node share it: the bytes through that port are the same as if one GPU sent a whole tensor.


# %% tags=["demo"] jupyter={"source_hidden": true}
def hierarchical(n):
    hierarchical_all_reduce(TorchPeers(), torch.ones(n), 4)


rows = []
for nics in (4, 2, 1):
    run = Cluster(fabric(2, 4, nics=nics)).run(hierarchical, 2**22)
    rows.append((nics, f"{run.seconds * 1e6:,.0f}"))
show.table(rows, header=("ports per node", "µs for 16 MiB per rank, 2 nodes of 4"))

# %% [markdown]
# ## Eight claims

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("coll-1")

# %% tags=["demo"] jupyter={"source_hidden": true}
sent = {ranks: max(ALL_REDUCES["ring"].cost(2**20, 4, ranks, NETWORK).bytes) for ranks in (2, 16)}
audit(
    "coll-1",
    sent[16] / sent[2],
    "× the bytes per rank, N = 16 against N = 2",
    "model",
    "corrected",
    how="2(N − 1)/N is right, but it is not independent of N: it is 1.0 for N = 2, 1.75 for N = 8, and always less than 2. The bytes level off, and the latency does not: 2(N − 1)α grows with each rank, so a ring over many ranks is slow for small tensors",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("coll-2")

# %% tags=["demo"] jupyter={"source_hidden": true}
audit(
    "coll-2",
    sum(ALL_REDUCES["naive"].cost(2**20, 4, 8, NETWORK).bytes) / 2**22,
    "× the size, for N = 8",
    "model",
    "corrected",
    how="N − 1 tensors go to rank 0 and N − 1 come back, so 2(N − 1) = 14 and not 16. All of them pass rank 0's two ports, which is what makes it slow; any other rank sends and receives one tensor",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("coll-3")

# %% tags=["demo"] jupyter={"source_hidden": true}
h100 = accelerator("H100 SXM")
audit(
    "coll-3",
    h100.link_bandwidth / NETWORK.bandwidth,
    "×, per direction",
    "published",
    "corrected",
    how="the 900 GB/s of an H100's NVLink count both directions, 450 GB/s each. A port of 400 Gbit/s InfiniBand carries 50 GB/s each way. 900/50 compares two directions with one, so the factor is 9",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("coll-7")

# %% tags=["demo"] jupyter={"source_hidden": true}
audit(
    "coll-7",
    h100.link_bandwidth / NETWORK.bandwidth,
    "×, per direction: less than one order of magnitude",
    "published",
    "corrected",
    how="450 GB/s per direction over NVLink and 50 GB/s over a port of 400 Gbit/s. Three orders of magnitude would be a network of 0.45 GB/s, less than an Ethernet port of 10 Gbit/s",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("coll-4")

# %% tags=["demo"] jupyter={"source_hidden": true}
audit(
    "coll-4",
    NETWORK.bandwidth * 8 / 1e9,
    "Gbit/s per NDR port of four lanes",
    "published",
    "corrected",
    how="a port of four lanes has 200 Gbit/s in HDR, 400 in NDR and 800 in XDR: the claim is one generation off",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("coll-8")

# %% tags=["demo"] jupyter={"source_hidden": true}
audit(
    "coll-8",
    2 * h100.link_bandwidth / 1e9,
    "GB/s of NVLink 4.0, both directions together",
    "published",
    "corrected",
    how="NVLink 4.0 has 18 links of 50 GB/s, so 900 GB/s in both directions together; 600 GB/s is NVLink 3.0, the A100's",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("coll-5")

# %% tags=["demo"] jupyter={"source_hidden": true}
audit(
    "coll-5",
    8 * h100.link_bandwidth / 1e12,
    "TB/s",
    "model",
    "corrected",
    how="right as a sum: 8 GPUs × 450 GB/s out, all at once. The same number is the bisection of the node counted in both directions, 4 GPUs × 900 GB/s. It is no mesh, since each GPU is wired to switches, and no GPU has more than 450 GB/s each way",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("coll-6")

# %% tags=["demo"] jupyter={"source_hidden": true}
audit(
    "coll-6",
    NVLINK.latency * 1e6,
    "µs per step of a ring over NVLink",
    "published",
    "corrected",
    how="α is what a step costs a library: launching, flags, copies and the wire. NCCL 2.28 (tuning.cc) assumes 0.6 µs over NVLink and 2.7 µs over the network for small messages (protocol LL), and 3.4 and 14 µs for large ones (protocol Simple). No single number per link is right for both. The core notebook measures gloo on this machine, where α is tens to hundreds of µs",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
calibration()
