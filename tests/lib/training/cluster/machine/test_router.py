"""The router alone: actors here are generators that yield calls, so every property is a property of the machine."""

import itertools
from collections import defaultdict
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.training.cluster.machine.calls import (
    COMMUNICATION,
    Charge,
    Collective,
    End,
    Finish,
    Receive,
    Send,
    Submit,
    Wait,
)
from threeloops.training.cluster.machine.errors import ClusterError, Deadlock, Mismatch, Unfinished
from threeloops.training.cluster.machine.records import Actor
from threeloops.training.cluster.machine.router import Router
from threeloops.training.cluster.machine.topology import Port, Route, Topology, fabric, uniform


class Rank:
    """What a program may do; each method returns calls. Programs are generators of them, and get what they wait for."""

    def __init__(self, rank):
        self.rank, self.now, self._handles = rank, 0.0, itertools.count(1)
        self.jobs = {}

    def send(self, to, size, tag=0):
        return Send(next(self._handles), to, "", tag, size, self.now, f"line {tag}")

    def receive(self, source, size, tag=0):
        return Receive(next(self._handles), source, "", tag, size, self.now, f"line {tag}")

    def charge(self, seconds):
        self.now += seconds
        return Charge(seconds, self.now - seconds)

    def submit(self, job, operation="all_reduce", ranks=(0, 1)):
        call = Submit(next(self._handles), self.now, Collective("world", ranks, operation), 0)
        self.jobs[call.handle] = job
        return call

    def wait(self, call, **options):
        return Wait((call.handle,), self.now, "line 9", **options)


def run(topology, programs, router=None):
    """Run a generator function per rank; returns the router."""
    router = router or Router(topology)
    ranks, running, left = {}, {}, defaultdict(dict)

    def step(actor, at, resumption):
        data = resumption.messages[0] if resumption.messages else resumption.number
        if actor not in running:
            me = ranks.setdefault(actor, Rank(actor.rank))
            if actor.timeline == COMMUNICATION:
                me.now = at
                running[actor] = ranks[Actor(actor.rank)].jobs[data](me)
            else:
                running[actor] = programs[actor.rank](me)
            data = None
        ranks[actor].now = at
        left[actor].update(resumption.finished)
        while True:
            try:
                call = running[actor].send(data)
            except StopIteration:
                del running[actor]
                yield Finish(ranks[actor].now) if actor.timeline == COMMUNICATION else End(ranks[actor].now)
                return
            data = None
            if isinstance(call, Wait) and call.handles[0] in left[actor]:  # it was told before
                ranks[actor].now = max(ranks[actor].now, left[actor].pop(call.handles[0]))
                continue
            yield call
            if isinstance(call, Wait):
                return

    router.run(lambda batch: (step(*each) for each in batch))
    return router


def ring(ranks, steps, size):
    """Each rank sends to the next and receives from the one before, `steps` times."""

    def program(me):
        for step in range(steps):
            sent = me.send((me.rank + 1) % ranks, size, step)
            yield sent
            got = me.receive((me.rank - 1) % ranks, size, step)
            yield got
            yield me.wait(got)
            yield me.wait(sent)

    return [program] * ranks


@pytest.mark.parametrize("ranks", [2, 3, 8, 16])
def test_a_ring_takes_its_closed_form(ranks):
    router = run(uniform(ranks, 1e-5, 1e9), ring(ranks, 2 * (ranks - 1), 1 << 18))
    assert router.now == pytest.approx(2 * (ranks - 1) * (1e-5 + (1 << 18) / 1e9), rel=1e-12)
    assert {(m.source, m.target) for m in router.messages} == {(r, (r + 1) % ranks) for r in range(ranks)}
    assert sum(m.size for m in router.messages) == ranks * 2 * (ranks - 1) << 18


def test_ranks_that_share_a_nic_take_turns_on_it():
    def program(me):
        if me.rank < 2:
            yield me.send(me.rank + 2, 50_000_000)
        else:
            got = me.receive(me.rank - 2, 50_000_000)
            yield got
            yield me.wait(got)

    own, shared = (run(fabric(2, 2, nics=nics), [program] * 4).now for nics in (2, 1))
    assert own == pytest.approx(1e-3 + 14e-6) and shared == pytest.approx(2e-3 + 14e-6)


def test_a_job_begins_when_it_was_submitted_and_the_one_before_is_done_and_compute_goes_on_meanwhile():
    def job(me):
        to = 1 - me.rank
        sent, got = me.send(to, 1000, 7), me.receive(to, 1000, 7)
        yield sent
        yield got
        yield me.wait(got)

    def program(me):
        first = me.submit(job)
        yield first
        yield me.charge(0.25)
        second = me.submit(job)
        yield second
        yield me.charge(0.5)
        yield me.wait(first)
        yield me.wait(second)

    router = run(uniform(2, 0.0, 1000.0), [program] * 2)
    jobs = [(s.start, s.end) for s in router.spans if s.rank == 0 and s.timeline == COMMUNICATION]
    assert jobs == [(0.0, 1.0), (1.0, 2.0)] and router.clock[Actor(0)] == 2.0
    assert [(s.start, s.end) for s in router.spans if s.rank == 0 and s.timeline == 0] == [(0.0, 0.25), (0.25, 0.75)]


def test_the_values_of_a_job_can_be_had_before_its_time_is_charged():
    def job(me):
        sent, got = me.send(1 - me.rank, 1000), me.receive(1 - me.rank, 1000)
        yield sent
        yield got
        yield me.wait(got)

    seen = []

    def program(me):
        work = me.submit(job)
        yield work
        ends = yield me.wait(work, values=True)
        seen.append((me.rank, me.now, ends))
        yield me.charge(0.25)
        yield me.wait(work)
        seen.append((me.rank, me.now))

    run(uniform(2, 0.0, 1000.0), [program] * 2)
    assert sorted(seen, key=str) == [(0, 0.0, 1.0), (0, 1.0), (1, 0.0, 1.0), (1, 1.0)]


# A random program: sends and receives that match, in an order in which each rank can do its part without deadlock.


@st.composite
def traffic(draw):
    ranks = draw(st.integers(2, 4))
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    messages = draw(
        st.lists(st.tuples(st.sampled_from(pairs), st.integers(0, 5), st.integers(0, 3), st.booleans()), max_size=14)
    )
    ports = tuple(Port(str(i), float(draw(st.sampled_from([1, 2, 4])))) for i in range(draw(st.integers(1, 4))))
    some = st.lists(st.integers(0, len(ports) - 1), min_size=1, max_size=3, unique=True)
    routes = {pair: Route(tuple(draw(some)), float(draw(st.integers(0, 2)))) for pair in pairs}
    return Topology("random", (0,) * ranks, ports, routes), messages


def scripts(ranks, messages):
    """Per rank: ("send", message), ("receive", message), ("charge", seconds), ("wait", message)."""
    made = defaultdict(list)
    for number, ((a, b), _, seconds, blocking) in enumerate(messages):
        made[a] += [("charge", seconds), ("send", number)]
        made[b] += [("receive", number)]
        if blocking:
            made[a].append(("wait", number))
            made[b].append(("wait", number))
    for number, ((_, b), _, _, blocking) in enumerate(messages):
        if not blocking:
            made[b].append(("wait", number))
    return [made[rank] for rank in range(ranks)]


def program_of(script, messages):
    def program(me):
        made = {}
        for what, value in script:
            if what == "charge":
                yield me.charge(float(value))
                continue
            (a, b), size, _, _ = messages[value]
            if what != "wait":
                made[value] = me.send(b, size, value) if what == "send" else me.receive(a, size, value)
                yield made[value]
            else:
                yield me.wait(made[value])

    return program


def brute_force(topology, messages):
    """Arrival of each message and end of each rank, by looking at everything again for each smallest step.

    A rank that goes on does all that it can until it waits; what it sends leaves at its own time.
    """
    todo = [[("start", None), *script] for script in scripts(topology.ranks, messages)]
    clock = [Fraction(0)] * topology.ranks
    free = [Fraction(0)] * len(topology.ports)
    ready, left, arrived, posted = {}, {}, {}, {}
    while True:
        possible = [(at, 0, messages[number][0][0], number) for number, at in ready.items()]
        for rank, script in enumerate(todo):
            if script:
                what, value = script[0]
                sender = what == "wait" and rank == messages[value][0][0]
                needs = [{None: 0}] if what == "start" else [left, posted] if sender else [arrived]
                if all(value in each for each in needs):
                    possible.append((max(clock[rank], *(each[value] for each in needs)), 1, rank, 0))
        if not possible:
            return arrived, clock
        at, kind, rank, number = min(possible)
        if kind == 0:
            del ready[number]
            route, size = topology.routes[messages[number][0]], messages[number][1]
            start = max([at, *(free[port] for port in route.ports)])
            left[number] = start + size / min(Fraction(topology.ports[port].bandwidth) for port in route.ports)
            arrived[number] = left[number] + Fraction(route.latency)
            for port in route.ports:
                free[port] = left[number]
            continue
        for rank in [each[2] for each in possible if each[:2] == (at, 1)]:  # at the same moment: together
            clock[rank] = at
            del todo[rank][0]
            while todo[rank] and todo[rank][0][0] != "wait":
                what, value = todo[rank].pop(0)
                if what == "send":
                    ready[value] = clock[rank]
                elif what == "receive":
                    posted[value] = clock[rank]
                elif what == "charge":
                    clock[rank] += value


@settings(max_examples=300, deadline=None)
@given(traffic())
def test_every_time_is_that_of_a_brute_force_simulation(case):
    topology, messages = case
    router = run(topology, [program_of(script, messages) for script in scripts(topology.ranks, messages)])
    arrived, clock = brute_force(topology, messages)
    assert {m.tag: m.arrived for m in router.messages} == arrived
    assert [router.clock[Actor(rank)] for rank in range(topology.ranks)] == clock


@settings(max_examples=100, deadline=None)
@given(traffic())
def test_bytes_are_conserved_ports_serve_one_message_at_a_time_in_order_and_no_clock_goes_back(case):
    topology, messages = case
    router = run(topology, [program_of(script, messages) for script in scripts(topology.ranks, messages)])
    assert sorted((m.source, m.target, m.size) for m in router.messages) == sorted(
        (*p, size) for p, size, _, _ in messages
    )
    assert all(m.received and m.ready <= m.start <= m.left <= m.arrived for m in router.messages)
    for port in range(len(topology.ports)):
        used = [m for m in router.messages if port in topology.routes[m.source, m.target].ports]
        assert [m.ready for m in used] == sorted(m.ready for m in used)
        assert all(a.left <= b.start for a, b in itertools.pairwise(used))


def one(*calls):
    """A program that makes these calls of `Rank`, each a (name, arguments)."""

    def program(me):
        made = []
        for name, *arguments in calls:
            call = me.wait(made[arguments[0]]) if name == "wait" else getattr(me, name)(*arguments)
            made.append(call)
            yield call

    return program


def nothing(me):
    yield from ()


def lonely_job(me):
    got = me.receive(1 - me.rank, 4)
    yield got
    yield me.wait(got)


def used_twice(me):
    yield from (Send(3, 0, "", 0, 4, 0.0, "line 9"), Send(3, 0, "", 0, 4, 0.0, "line 9"))


@pytest.mark.parametrize(
    ("programs", "error", "message"),
    [
        ([one(("receive", 1, 4, 3), ("wait", 0)), one(("receive", 0, 4, 5), ("wait", 0))], Deadlock,
         r"rank 0 waits \(line 9\) for a message from rank 1 with tag 3.*\n"
         r"  rank 1 waits \(line 9\) for a message from rank 0 with tag 5"),
        ([one(("receive", 1, 4), ("wait", 0)), nothing], Deadlock, "from rank 1.*, which has returned"),
        ([one(("submit", lonely_job), ("wait", 0)), nothing], Deadlock,
         "rank 0 waits .* for all_reduce, sum, which rank 1 did not call"),
        ([one(("send", 1, 4, 6)), nothing], Unfinished,
         r"1 message was never received; the first: 4 bytes from rank 0 to rank 1 \(line 6\)"),
        ([one(("send", 1, 4)), one(("receive", 0, 4))], Unfinished, "rank 1 never waits for its irecv from rank 0"),
        ([one(("send", 1, 4)), one(("receive", 0, 8), ("wait", 0))], Mismatch,
         "rank 0 sends 4 bytes .* rank 1 receives 8"),
        ([one(("submit", nothing)), one(("submit", nothing, "broadcast"))], Mismatch,
         "collective 1 of group 'world' differs: rank 0 calls all_reduce, sum, rank 1 calls broadcast"),
        ([one(("submit", nothing)), one(("submit", nothing))], Unfinished, "rank 0 never waits for its all_reduce"),
        ([one(("send", 0, 4)), nothing], ClusterError, "rank 0 sends to rank 0 .* another rank, 0 to 1"),
        ([one(("receive", 7, 4)), nothing], ClusterError, "rank 0 receives from rank 7"),
        ([one(("receive", 1, 4)), used_twice], ClusterError, r"rank 1 uses handle 3 \(line 9\) twice"),
        ([one(("charge", -1.0)), nothing], ClusterError, "computes for -1.0 s|says it is -1.0 s"),
        ([one(("charge", float("nan"))), nothing], ClusterError, "nan s"),
    ],
)  # fmt: skip
def test_what_cannot_go_on_is_named(programs, error, message):
    with pytest.raises(error, match=message):
        run(uniform(2), programs)


def test_a_rank_that_waits_for_what_it_never_made_is_named():
    def program(me):
        yield Wait((99,), 0.0)

    with pytest.raises(ClusterError, match="rank 0 waits for handle 99, which it never made"):
        run(uniform(2), [program, nothing])
