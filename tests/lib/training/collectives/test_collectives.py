"""Every collective: values against float64, and bytes, messages and seconds against its closed form.

First on ranks that are threads, with clocks that follow the model's own sentences, for many sizes. Then on the virtual
cluster, where one run per number of ranks does everything, a collective per slot of virtual time: each rank computes
until its slot begins, so all start together. Latency and bandwidth are powers of two (times 3): sums are exact.
"""

import threading
from collections import defaultdict
from queue import SimpleQueue

import pytest
import torch
import torch.distributed as dist
from threeloops.training.cluster import Cluster, compute, fabric, now, uniform
from threeloops.training.cluster.programs.tensors import REDUCTIONS
from threeloops.training.collectives import (
    ALL_REDUCES,
    Link,
    Subset,
    TorchPeers,
    all_to_all,
    all_to_all_cost,
    broadcast,
    broadcast_cost,
    hierarchical_all_reduce,
    hierarchical_all_reduce_cost,
    reduce,
    reduce_cost,
    ring_all_gather,
    ring_all_gather_cost,
    ring_reduce_scatter,
    ring_reduce_scatter_cost,
)

LINK = Link(3 * 2.0**-10, 2.0**14)
SLOT = 16.0
SLOW = (9, 10, 11, 12, 14, 15, 17)
"""Numbers of ranks that are like others: of more than 8 a power of two and a prime are always tried."""


def ranks_of(numbers):
    return [pytest.param(ranks, marks=pytest.mark.slow) if ranks in SLOW else ranks for ranks in numbers]


RANKS = ranks_of(range(2, 17))
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64)
OPERATIONS = ("sum", "avg", "product", "max", "min")
OTHERS = ("reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "uneven all_to_all")
EVERY = (*ALL_REDUCES, *OTHERS)


def sizes(ranks):
    """Nothing, fewer elements than ranks, a multiple of them, and neither; of the first three one for many ranks."""
    even = (0, ranks - 1, 3 * ranks)
    return (*(even if ranks <= 8 else even[ranks % 3 :][:1]), 5 * ranks + ranks // 2 + 1)


def given(rank, elements, dtype=torch.float32):
    """What a rank has in the beginning; no integer is so large that a product of 16 would overflow."""
    random = torch.Generator().manual_seed(1000 * rank + elements)
    if dtype.is_floating_point:
        return torch.randn(elements, generator=random).to(dtype)
    return torch.randint(-7, 8, (elements,), generator=random)


def block(source, target, elements=4):
    """Of an all-to-all in which the lengths differ; some are 0."""
    return given(100 * source + target, (3 * source + 5 * target) % elements)


def at_slot(number):
    compute(number * SLOT - now())


def run_collective(name, peers, elements):
    """Returns the result of this rank."""
    rank, size = peers.rank, peers.size
    tensor = given(rank, elements)
    parts = tensor.tensor_split(size)
    if name in ALL_REDUCES:
        ALL_REDUCES[name].run(peers, tensor, "sum")
        return tensor
    if name == "reduce_scatter":
        out = torch.empty_like(parts[rank])
        ring_reduce_scatter(peers, out, tensor)
        assert torch.equal(tensor, given(rank, elements)), "the input has changed"
        return out
    if name == "all_gather":
        out = torch.full((elements,), torch.nan)
        ring_all_gather(peers, out, given(0, elements).tensor_split(size)[rank])
        return out
    if name == "broadcast":
        broadcast(peers, tensor)
        return tensor
    if name == "reduce":
        reduce(peers, tensor)
        return tensor
    if name == "all_to_all":
        outs = [torch.empty_like(parts[rank]) for _ in range(size)]
        all_to_all(peers, outs, parts)
    else:
        outs = [torch.empty_like(block(source, rank)) for source in range(size)]
        all_to_all(peers, outs, [block(rank, target) for target in range(size)])
    return torch.cat(outs)


def everything(cases):
    """The program of a rank: the result of each case, and when it was done."""
    peers = TorchPeers()
    done = []
    for slot, (name, elements) in enumerate(cases):
        at_slot(slot)
        done.append((run_collective(name, peers, elements), now() - slot * SLOT))
    return done


def require_values(name, results, elements):
    """All ranks' results against float64."""
    ranks = len(results)
    every = [given(each, elements).double() for each in range(ranks)]
    total = sum(every)
    for rank, result in enumerate(results):
        if name == "reduce" and rank > 0:
            continue
        if name in (*ALL_REDUCES, "reduce"):
            expected = total
        elif name == "reduce_scatter":
            expected = total.tensor_split(ranks)[rank]
        elif name == "all_to_all":
            expected = torch.cat([each.tensor_split(ranks)[rank] for each in every])
        elif name == "uneven all_to_all":
            expected = torch.cat([block(source, rank) for source in range(ranks)])
        else:
            expected = every[0]
        torch.testing.assert_close(result.double(), expected.double(), rtol=1e-5, atol=1e-5, msg=f"{name}, {elements}")


def cost_of(name, ranks, elements):
    if name in ALL_REDUCES:
        return ALL_REDUCES[name].cost(elements, 4, ranks, LINK)
    if name == "all_to_all":
        return all_to_all_cost([[len(p) for p in given(0, elements).tensor_split(ranks)]] * ranks, 4, LINK)
    if name == "uneven all_to_all":
        return all_to_all_cost([[len(block(a, b)) for b in range(ranks)] for a in range(ranks)], 4, LINK)
    costs = (ring_reduce_scatter_cost, ring_all_gather_cost, broadcast_cost, reduce_cost)
    return dict(zip(OTHERS, costs, strict=False))[name](elements, 4, ranks, LINK)


def sent(run, slot):
    """Bytes and messages of each rank in a slot."""
    messages = [m for m in run.messages if slot * SLOT <= m.ready < (slot + 1) * SLOT]
    per_rank = [[m.size for m in messages if m.source == rank] for rank in range(run.topology.ranks)]
    return tuple(map(sum, per_rank)), tuple(map(len, per_rank))


@pytest.fixture(scope="module", params=RANKS, ids="{} ranks".format)
def made(request):
    """Number of ranks, and per case: what it was, the results of all ranks, when each was done, what each sent."""
    ranks = request.param
    cases = [(name, elements) for name in EVERY for elements in sizes(ranks)]
    run = Cluster(uniform(ranks, LINK.latency, LINK.bandwidth)).run(everything, cases)
    return ranks, [
        (*case, *zip(*(result[slot] for result in run.results), strict=True), sent(run, slot))
        for slot, case in enumerate(cases)
    ]


def test_values_are_those_of_float64(made):
    for name, elements, results, _, _ in made[1]:
        require_values(name, results, elements)


def test_results_have_the_same_bits_on_all_ranks(made):
    _, cases = made
    for name, elements, results, _, _ in cases:
        if name in (*ALL_REDUCES, "all_gather", "broadcast"):
            assert all(torch.equal(result, results[0]) for result in results), (name, elements)


def test_bytes_messages_and_seconds_are_the_closed_form(made):
    ranks, cases = made
    for name, elements, _, seconds, (octets, messages) in cases:
        expected = cost_of(name, ranks, elements)
        assert (octets, messages) == (expected.bytes, expected.messages), (name, elements)
        assert max(seconds) == expected.seconds, (name, elements)


def test_the_forms_that_textbooks_give():
    alpha, beta, n, e = LINK.latency, LINK.bandwidth, 48, 4
    for ranks, log in ((2, 1), (4, 2), (8, 3), (16, 4)):
        seconds = {name: each.cost(n, e, ranks, LINK).seconds for name, each in ALL_REDUCES.items()}
        part = n * e / ranks / beta
        assert seconds == {
            "ring": 2 * (ranks - 1) * (alpha + part),
            "halving-doubling": 2 * log * alpha + 2 * (ranks - 1) * part,
            "recursive doubling": log * (alpha + n * e / beta),
            "tree": 2 * log * (alpha + n * e / beta),
            "naive": 2 * alpha + ranks * n * e / beta,
        }
    assert ALL_REDUCES["ring"].cost(2, 4, 8, LINK).seconds == 14 * (alpha + 4 / beta), "fewer elements than ranks"
    assert ALL_REDUCES["ring"].cost(0, 4, 8, LINK).seconds == 14 * alpha, "empty messages take their latency"


# Ranks that are threads


class Thread:
    """A rank with a clock. Each ordered pair has a link of its own, so a queue per pair is all that ranks share."""

    def __init__(self, rank, size, links):
        self.rank, self.size, self._links = rank, size, links
        self.now, self.bytes, self.messages, self._free = 0.0, 0, 0, defaultdict(float)

    def send(self, tensor, to):
        left = max(self.now, self._free[to]) + tensor.nbytes / LINK.bandwidth
        self._free[to] = left
        self.bytes, self.messages = self.bytes + tensor.nbytes, self.messages + 1
        self._links[self.rank, to].put((tensor.clone(), left + LINK.latency))
        return [lambda: left]

    def receive(self, into, source):
        def done():
            data, arrived = self._links[source, self.rank].get(timeout=60)
            into.copy_(data)
            return arrived

        return [done]

    def exchange(self, tensor, to, into, source):
        return [*self.send(tensor, to), *self.receive(into, source)]

    def wait(self, handle):
        for done in handle:
            self.now = max(self.now, done())


def in_threads(name, ranks, elements, work=None):
    """Results and the ranks themselves, after each has done its part; `work` is told which rank a thread is."""
    links = defaultdict(SimpleQueue)
    for pair in ((a, b) for a in range(ranks) for b in range(ranks)):
        links[pair]
    peers, results = [Thread(rank, ranks, links) for rank in range(ranks)], [None] * ranks

    def run(rank):
        if work is not None:
            work.rank = peers[rank]
        results[rank] = run_collective(name, peers[rank], elements)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    return results, peers


@pytest.mark.parametrize("ranks", ranks_of([*range(2, 18), 23]))
def test_on_threads_everything_is_its_closed_form(ranks):
    for name in EVERY:
        for elements in {0, 1, ranks - 1, 3 * ranks, 5 * ranks + ranks // 2 + 1}:
            results, peers = in_threads(name, ranks, elements)
            require_values(name, results, elements)
            cost = cost_of(name, ranks, elements)
            assert tuple(peer.bytes for peer in peers) == cost.bytes, (name, elements)
            assert tuple(peer.messages for peer in peers) == cost.messages, (name, elements)
            assert max(peer.now for peer in peers) == cost.seconds, (name, elements)


@pytest.mark.parametrize("ranks", RANKS)
def test_on_threads_that_take_time_to_reduce_too(ranks, monkeypatch):
    gamma, work, add = 5 * 2.0**-15, threading.local(), torch.Tensor.add_

    def reducing(into, other):
        add(into, other)
        work.rank.now += gamma * other.nbytes

    monkeypatch.setitem(REDUCTIONS, "SUM", reducing)
    link = Link(LINK.latency, LINK.bandwidth, gamma)
    for name in (*ALL_REDUCES, "reduce", "reduce_scatter"):
        cost = {"reduce": reduce_cost, "reduce_scatter": ring_reduce_scatter_cost}.get(name)
        for elements in (1, 5 * ranks + ranks // 2 + 1):
            _, peers = in_threads(name, ranks, elements, work)
            expected = (cost or ALL_REDUCES[name].cost)(elements, 4, ranks, link).seconds
            assert max(peer.now for peer in peers) == expected, (name, elements)


# Two levels


def in_nodes(cases, per_node, starts):
    peers, results = TorchPeers(), []
    for start, (elements, operation) in zip(starts, cases, strict=True):
        compute(start - now())
        tensor = given(peers.rank, elements)
        hierarchical_all_reduce(peers, tensor, per_node, operation)
        results.append((tensor, now()))
    return results


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 3), (3, 1), (2, 2), (2, 4), (3, 3)])
def test_the_hierarchical_all_reduce_on_nodes_of_nvlink(nodes, per_node):
    topology, ranks = fabric(nodes, per_node), nodes * per_node
    inside = Link(topology.routes[0, 1].latency, topology.bandwidth(0, 1))
    across = Link(topology.routes[0, ranks - 1].latency, topology.bandwidth(0, ranks - 1))
    counts = (0, ranks - 1, 12_000 * ranks, 100_003)
    cases = [(elements, operation) for elements in counts for operation in ("sum", "avg")]
    starts = [slot * 2.0**-9 for slot in range(len(cases))]
    run = Cluster(topology).run(in_nodes, cases, per_node, starts)
    for slot, (elements, operation) in enumerate(cases):
        results = [result[slot][0] for result in run.results]
        total = sum(given(rank, elements).double() for rank in range(ranks))
        expected = total / ranks if operation == "avg" else total
        torch.testing.assert_close(results[0].double(), expected, rtol=1e-5, atol=1e-5)
        assert all(torch.equal(result, results[0]) for result in results)

        cost = hierarchical_all_reduce_cost(elements, 4, nodes, per_node, inside, across)
        during = [m for m in run.messages if starts[slot] <= m.ready < starts[slot] + 2.0**-9]
        per_rank = [[m.size for m in during if m.source == rank] for rank in range(ranks)]
        assert (tuple(map(sum, per_rank)), tuple(map(len, per_rank))) == (cost.bytes, cost.messages)
        seconds = max(result[slot][1] for result in run.results) - starts[slot]
        assert seconds == pytest.approx(cost.seconds, rel=1e-12)


# Awkward inputs


def awkward():
    """Every reduction and dtype, roots other than 0, tensors with holes, with a gradient, and of no dimension."""
    peers = TorchPeers()
    rank, size = peers.rank, peers.size
    reduced = {}
    for dtype in DTYPES:
        for operation in OPERATIONS:
            for name, each in ALL_REDUCES.items():
                tensor = given(rank, 11, dtype)
                if operation == "avg" and dtype == torch.int64:
                    with pytest.raises(TypeError, match="avg of torch.int64: .* use sum"):
                        each.run(peers, tensor, operation)
                    continue
                each.run(peers, tensor, operation)
                reduced[dtype, operation, name] = tensor
    holes = {}
    for name, each in ALL_REDUCES.items():
        whole = given(rank, 60).view(6, 10)
        each.run(peers, whole[::2, 1::3].t(), "sum")
        parameter, scalar = torch.nn.Parameter(given(rank, 9).view(3, 3)), torch.tensor(float(rank))
        each.run(peers, parameter, "max")
        each.run(peers, scalar, "sum")
        holes[name] = whole, parameter.detach(), scalar
    roots = []
    for root in range(size):
        sent, summed = given(rank, 7), given(rank, 14)[::2]
        broadcast(peers, sent, root)
        reduce(peers, summed, root, "avg")
        roots.append((sent, summed))
    outs = torch.zeros(size, 6)[:, ::2]
    all_to_all(peers, list(outs), list(given(rank, 3 * 2 * size).view(size, 6)[:, 1::2]))
    gathered = torch.zeros(2 * size, 2)[:, 1]
    ring_all_gather(peers, gathered, given(rank, 4)[::2])
    return reduced, holes, roots, outs, gathered


@pytest.fixture(scope="module", params=[3, 4], ids="{} ranks".format)
def awkwardly(request):
    return request.param, Cluster(request.param).run(awkward).results


def test_every_reduction_of_every_dtype(awkwardly):
    ranks, results = awkwardly
    combine = {"sum": torch.sum, "avg": torch.mean, "product": torch.prod, "max": torch.amax, "min": torch.amin}
    for (dtype, operation, name), tensor in results[0][0].items():
        every = torch.stack([given(rank, 11, dtype).double() for rank in range(ranks)])
        tolerance = 0 if operation in ("max", "min") or dtype == torch.int64 else 4 * torch.finfo(dtype).eps
        scale = every.abs().prod(0) if operation == "product" else every.abs().sum(0)
        assert (tensor.double() - combine[operation](every, dim=0)).abs().le(tolerance * scale).all(), (name, operation)
        assert all(torch.equal(tensor, other[0][dtype, operation, name]) for other in results)
    assert len(results[0][0]) == (len(DTYPES) * len(OPERATIONS) - 1) * len(ALL_REDUCES)


def test_tensors_with_holes_are_reduced_in_place_and_the_holes_stay(awkwardly):
    ranks, results = awkwardly
    for rank, (_, holes, *_) in enumerate(results):
        for whole, parameter, scalar in holes.values():
            expected = given(rank, 60).view(6, 10)
            expected[::2, 1::3] = sum(given(each, 60).view(6, 10)[::2, 1::3] for each in range(ranks))
            torch.testing.assert_close(whole, expected)
            assert torch.equal(parameter, torch.stack([given(each, 9).view(3, 3) for each in range(ranks)]).amax(0))
            assert scalar.shape == () and scalar == sum(range(ranks))


def test_any_rank_may_be_the_root(awkwardly):
    ranks, results = awkwardly
    mean = sum(given(rank, 14)[::2].double() for rank in range(ranks)) / ranks
    for rank, (_, _, roots, *_) in enumerate(results):
        for root, (sent, summed) in enumerate(roots):
            assert torch.equal(sent, given(root, 7))
            if rank == root:
                torch.testing.assert_close(summed.double(), mean, rtol=1e-5, atol=1e-6)


def test_all_to_all_and_all_gather_take_tensors_with_holes(awkwardly):
    ranks, results = awkwardly
    for rank, (*_, outs, gathered) in enumerate(results):
        every = [given(each, 6 * ranks).view(ranks, 6)[rank, 1::2] for each in range(ranks)]
        assert torch.equal(outs, torch.stack(every))
        assert torch.equal(gathered, torch.cat([given(each, 4)[::2] for each in range(ranks)]))


# One rank, subsets, and mistakes


class Alone:
    """A group of one rank: a message would be a mistake."""

    rank, size = 0, 1


@pytest.mark.parametrize("name", [name for name in EVERY if "uneven" not in name])
def test_one_rank_sends_nothing_and_keeps_its_values(name):
    assert torch.equal(run_collective(name, Alone(), 5), given(0, 5))
    assert cost_of(name, 1, 5).messages == (0,) == cost_of(name, 1, 5).bytes and cost_of(name, 1, 5).seconds == 0


def test_one_rank_in_one_node():
    tensor = given(0, 5)
    hierarchical_all_reduce(Alone(), tensor, 1, "avg")
    assert torch.equal(tensor, given(0, 5))


def groups():
    """Two groups of three ranks: by torch, and as subsets of all."""
    peers = TorchPeers()
    odd = peers.rank % 2
    made = [dist.new_group([0, 2, 4]), dist.new_group([1, 3, 5])]
    results = []
    for mine in (TorchPeers(made[odd]), Subset(peers, range(odd, 6, 2))):
        for each in ALL_REDUCES.values():
            tensor = given(peers.rank, 10)
            each.run(mine, tensor, "sum")
            results.append(tensor)
    with pytest.raises(ValueError, match="this process is not in the group"):
        TorchPeers(made[1 - odd])
    return results


def test_groups_reduce_among_themselves():
    results = Cluster(6).run(groups).results
    for rank, tensors in enumerate(results):
        expected = sum(given(each, 10) for each in range(rank % 2, 6, 2))
        for tensor in tensors:
            torch.testing.assert_close(tensor, expected)


class Third(Alone):
    rank, size = 2, 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: ALL_REDUCES["ring"].run(Third, t, "mean"), "'mean': expected one of sum, avg, product"),
        (lambda t: broadcast(Third, t, 3), "root = 3: expected a rank of the group, 0 to 2"),
        (lambda t: reduce(Third, t, -1), "root = -1"),
        (lambda t: ring_reduce_scatter(Third, t, t), r"out has 7 .* expected 2 .*flatten\(\).tensor_split\(3\)\[2\]"),
        (lambda t: ring_reduce_scatter(Third, t[:2].half(), t), "of torch.float16: expected 2 of torch.float32"),
        (lambda t: ring_all_gather(Third, t, t), "tensor has 7 elements .* expected 2"),
        (lambda t: all_to_all(Third, [t], [t]), "outs has 1 tensors: expected one for each"),
        (lambda t: all_to_all(Third, [t] * 3, [t[:1]] * 3), r"outs\[2\] has shape \(7,\): .* has \(1,\)"),
        (lambda t: hierarchical_all_reduce(Third, t, 2), "per_node = 2 for 3 ranks"),
        (lambda t: Subset(Third, [0, 1]), r"rank 2 is not among the ranks of the subset, \[0, 1\]"),
        (lambda t: all_to_all_cost([[1, 2], [3]], 4, LINK), r"lengths\[1\] has 1 numbers"),
        (lambda t: broadcast_cost(-1, 4, 2, LINK), "-1 elements of 4 bytes on 2 ranks"),
        (lambda t: Link(-1.0, 1e9), "latency = -1.0 s"),
        (lambda t: Link(0.0, float("nan")), "bandwidth = nan bytes/s"),
    ],
)  # fmt: skip
def test_mistakes_are_named_before_anything_is_sent(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.zeros(7))
