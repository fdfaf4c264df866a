"""The trace as a viewer reads it: every span and message once, slices that nest, flows that find their slices."""

import json
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.training.cluster import Cluster, compute, uniform
from threeloops.training.cluster.cluster import Run
from threeloops.training.cluster.machine.calls import COMMUNICATION, COMPUTE
from threeloops.training.cluster.machine.records import Message, Span
from threeloops.training.cluster.pictures import write_trace

NAMES = ["data parallel", "pipeline", "two nodes"]


@pytest.fixture(params=NAMES)
def both(request, runs, tmp_path):
    """A run, and its trace read back."""
    run = runs[request.param]
    write_trace(run, tmp_path / "trace.json")
    return run, json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))


def of(trace, phase, **fields):
    return [e for e in trace["traceEvents"] if e["ph"] == phase and fields.items() <= e.items()]


def names(trace, what):
    """What metadata calls each process or thread."""
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in of(trace, "M", name=what)}


def test_every_span_is_one_slice_of_its_thread_in_microseconds(both):
    run, trace = both
    ranks = {pid: name for (pid, _), name in names(trace, "process_name").items()}
    threads = names(trace, "thread_name")
    read = [
        (ranks[e["pid"]], threads[e["pid"], e["tid"]], e["name"], e["args"]["start_s"], e["args"]["end_s"])
        for e in of(trace, "X")
        if e["cat"] != "message"
    ]
    lanes = {COMPUTE: "compute", COMMUNICATION: "communication"}
    unnamed = {COMPUTE: "computation", COMMUNICATION: "communication"}
    spans = [(f"rank {s.rank}", lanes[s.timeline], s.what or unnamed[s.timeline], s.start, s.end) for s in run.spans]
    assert Counter(read) == Counter(spans)
    for e in of(trace, "X"):
        assert e["ts"] == pytest.approx(1e6 * e["args"]["start_s"], abs=6e-4)
        assert e["ts"] + e["dur"] == pytest.approx(1e6 * e["args"]["end_s"], abs=6e-4) and e["dur"] >= 0


def test_every_message_is_one_slice_of_its_link_and_one_flow_to_its_receiver(both):
    run, trace = both
    ranks = {pid: int(name.split()[1]) for (pid, _), name in names(trace, "process_name").items()}
    threads = names(trace, "thread_name")
    slices = [
        (ranks[e["pid"]], threads[e["pid"], e["tid"]], e["args"]["bytes"], e["args"]["start_s"], e["args"]["end_s"])
        for e in of(trace, "X", cat="message")
    ]
    assert Counter(slices) == Counter(
        (m.source, f"link to rank {m.target}", m.size, m.start, m.left) for m in run.messages
    )
    begins, ends = ({e["id"]: e for e in of(trace, phase)} for phase in "sf")
    assert begins.keys() == ends.keys() and len(begins) == len(of(trace, "s")) == len(of(trace, "f")) == len(slices)
    flows = Counter(
        (
            ranks[begins[n]["pid"]], ranks[ends[n]["pid"]], threads[ends[n]["pid"], ends[n]["tid"]],
            round(1e3 * begins[n]["ts"]), round(1e3 * ends[n]["ts"]),
        )
        for n in begins
    )  # fmt: skip
    lanes = {COMPUTE: "compute", COMMUNICATION: "communication"}
    assert flows == Counter(
        (m.source, m.target, lanes[m.timeline], round(1e9 * m.start), round(1e9 * m.arrived)) for m in run.messages
    )


def test_a_viewer_finds_a_slice_for_both_ends_of_every_flow(both):
    """Perfetto sorts by time, keeps the order of the file among equals, and binds "s", and "f" with bp = "e", to the
    slice or instant that was opened last on the thread and is not over (flow_tracker.cc)."""
    _, trace = both
    opened, bound = {}, defaultdict(dict)
    for e in sorted((e for e in trace["traceEvents"] if e["ph"] != "M"), key=lambda e: e["ts"]):
        thread = e["pid"], e["tid"]
        if e["ph"] in "Xi":
            opened[thread] = e
        else:
            on = opened[thread]
            assert on["ts"] <= e["ts"] <= on["ts"] + on.get("dur", 0.0) and on["cat"] == e["cat"] == "message"
            assert e["ph"] == "s" or e["bp"] == "e"
            bound[e["id"]][e["ph"]] = on["name"]
    assert all(ends["f"].startswith(f"{ends['s']} from rank ") for ends in bound.values())


def test_slices_of_a_thread_follow_each_other_and_numbers_are_unique(both):
    run, trace = both
    threads = defaultdict(list)
    for e in of(trace, "X"):
        # as Perfetto converts: times 1000, cut off
        start, length = int(e["ts"] * 1000.0), int(e["dur"] * 1000.0)
        threads[e["pid"], e["tid"]].append((start, start + length))
    for slices in threads.values():
        slices.sort()
        assert all(end <= begin for (_, end), (begin, _) in zip(slices, slices[1:], strict=False))
    pids, tids = {pid for pid, _ in threads}, [tid for _, tid in names(trace, "thread_name")]
    assert len(set(tids)) == len(tids) and not pids & set(tids) and 0 not in {*pids, *tids}
    assert len(of(trace, "M", name="process_name")) == run.topology.ranks
    assert {e["ph"] for e in trace["traceEvents"]} == set("MXsfi")


@pytest.mark.parametrize(("timeline", "lane"), [(COMPUTE, "compute"), (COMMUNICATION, "communication")])
def test_a_flow_ends_on_the_receivers_timeline(tmp_path, timeline, lane):
    message = Message(0, 1, 5, "a", 0, 0.0, 0.0, 1.0, 2.0, timeline, received=True)
    write_trace(Run(uniform(2), (None,) * 2, (2.0,) * 2, (message,), (), 0), tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    (end,) = of(trace, "f")
    assert names(trace, "thread_name")[end["pid"], end["tid"]] == lane


def test_threads_that_are_not_used_are_left_out(runs, tmp_path):
    write_trace(runs["pipeline"], tmp_path / "trace.json")
    found = Counter(names(json.loads((tmp_path / "trace.json").read_text()), "thread_name").values())
    assert found == {"compute": 3, "link to rank 0": 1, "link to rank 1": 2, "link to rank 2": 1}


def busy():
    import torch
    import torch.distributed as dist

    compute(1e-3, "forward")
    dist.all_reduce(torch.ones(1000))


def test_the_same_program_gives_the_same_bytes(tmp_path):
    for name in ("first", "second"):
        write_trace(Cluster(uniform(3)).run(busy), tmp_path / name)
    data = (tmp_path / "first").read_bytes()
    assert data == (tmp_path / "second").read_bytes() and data.endswith(b"\n]}\n")


def test_order_in_the_run_does_not_matter(runs, tmp_path):
    run = runs["two nodes"]
    shuffled = Run(run.topology, run.results, run.clocks, run.messages[::-1], run.spans[::-1], run.events)
    for name, each in (("one", run), ("two", shuffled)):
        write_trace(each, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_it_is_written_completely_or_not_at_all(runs, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileExistsError):
        write_trace(runs["pipeline"], tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    run = Run(uniform(1), (None,), (1.0,), (), (Span(0, 0, 0.0, 1.0, object()),), 0)
    (tmp_path / "old.json").write_text("old")
    with pytest.raises(TypeError):
        write_trace(run, tmp_path / "old.json")
    assert (tmp_path / "old.json").read_text() == "old"


@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=30))
def test_neighbours_touch_and_never_overlap_whatever_their_lengths(tmp_path_factory, nanoseconds):
    """Each slice begins where the one before it ends; floats that a viewer cuts off must not change that."""
    path, now, spans = tmp_path_factory.getbasetemp() / "neighbours.json", 0, []
    for length in nanoseconds:
        spans.append(Span(0, COMPUTE, now * 1e-9, (now + length) * 1e-9, "x"))
        now += length
    write_trace(Run(uniform(1), (None,), (1.0,), (), tuple(spans), 0), path)
    events = of(json.loads(path.read_text()), "X")
    read = [(int(e["ts"] * 1000.0), int(e["dur"] * 1000.0)) for e in events]
    assert [length for _, length in read] == nanoseconds
    assert [start for start, _ in read] == [sum(nanoseconds[:n]) for n in range(len(nanoseconds))]


def test_names_that_json_must_escape_and_a_wait_for_the_link(tmp_path):
    message = Message(0, 1, 5, "a", 7, 0.25, 1.0, 2.0, 3.0, received=True, where='x".py:3', handle=9)
    run = Run(uniform(2), (None,) * 2, (3.0,) * 2, (message,), (Span(0, 0, 0.0, 1.0, 'say "µ"\n\\'),), 0)
    write_trace(run, str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    assert 'say "µ"\n\\' in {e["name"] for e in of(trace, "X")}
    (sent,) = of(trace, "X", cat="message")
    assert sent["args"] == {
        "start_s": 1.0, "end_s": 2.0, "bytes": 5, "waited_us": 750_000.0, "channel": "a", "tag": 7, "where": 'x".py:3',
    }  # fmt: skip
    assert trace["otherData"] == {"topology": run.topology.name, "seconds": 3.0} and trace["displayTimeUnit"] == "ms"
