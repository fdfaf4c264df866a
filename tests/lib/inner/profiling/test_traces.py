"""Traces of others: what is understood, what is refused by name, and what each GPU and Python did in a gap."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.inner.profiling.profiler import Profile

HOST, STREAM = 1, 7


def event(name, category, start, duration, thread=HOST, **args):
    return {
        "ph": "X", "name": name, "cat": category, "ts": start, "dur": duration, "pid": 1, "tid": thread, "args": args
    }  # fmt: skip


def launched(number, start, kernel_start, kernel_duration, device=0, stream=STREAM):
    """An operator of 50 µs, its launch and its kernel."""
    return [
        event("aten::mm", "cpu_op", start, 50),
        event("cudaLaunchKernel", "cuda_runtime", start + 10, 5, correlation=number),
        event("gemm", "kernel", kernel_start, kernel_duration, stream, correlation=number, device=device),
    ]


def read(*events):
    return Profile.from_chrome({"traceEvents": list(events)})


def gaps(profile):
    return [(gap.device, gap.start_us, gap.duration_us) for gap in profile.gaps()]


# Devices


def test_each_of_two_gpus_has_gaps_of_its_own():
    profile = read(
        *launched(1, 0, 20, 100), *launched(2, 60, 80, 12_000, device=1), *launched(3, 10_000, 10_020, 100),
        *launched(4, 12_500, 12_520, 10, device=1),
    )  # fmt: skip
    assert gaps(profile) == [(0, 120, 9_900), (1, 12_080, 440)]


def test_without_an_argument_the_device_is_the_process_of_the_kernel():
    older = [launched(1, 0, 20, 100), launched(2, 60, 80, 500, device=1), launched(3, 300, 320, 10)]
    for events in older:
        events[2]["pid"] = events[2]["args"].pop("device")
    assert gaps(read(*sum(older, []))) == [(0, 120, 200)]


WORK = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9), st.integers(0, 2), st.integers(7, 9)), min_size=1)


@given(WORK)
def test_idle_time_is_what_the_work_of_a_device_leaves_free(work):
    profile = read(*(event("k", "kernel", s, d, stream, device=device) for s, d, device, stream in work))
    origin, expected = min(start for start, *_ in work), set()
    for device in {device for *_, device, _ in work}:
        busy = {t for s, d, where, _ in work if where == device for t in range(s, s + d)}
        expected |= {(device, t - origin) for t in range(min(busy), max(busy)) if t not in busy}
    found = [(d, t) for d, start, length in gaps(profile) for t in range(int(start), int(start + length))]
    assert set(found) == expected and len(found) == len(expected)


# Categories


def test_the_names_of_older_kineto_traces_are_understood():
    older = {"cpu_op": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel", "gpu_memcpy": "Memcpy"}
    events = [*launched(1, 0, 20, 100), *launched(2, 300, 320, 10), event("copy", "gpu_memcpy", 140, 5, device=0)]
    renamed = [each | {"cat": older[each["cat"]]} for each in events]
    assert read(*renamed) == read(*events) and read(*renamed).device == "cuda"


@pytest.mark.parametrize("category", ["mtia_ccp_events", "hpu_op", "glow_runtime"])
def test_an_accelerator_that_is_not_known_is_refused_and_not_an_idle_cpu(category):
    work = [event("matmul", category, start, 50, device=17) for start in (0, 100)]
    with pytest.raises(ValueError, match=f"not understood: 2 of '{category}'. Their device would look idle"):
        read(event("aten::mm", "cpu_op", 0, 5), event("aten::mm", "cpu_op", 150, 5), *work)


def test_launches_without_kernels_are_refused_and_not_an_idle_cpu():
    with pytest.raises(ValueError, match="launches .cudaLaunchKernel. and no kernels"):
        read(*(each for each in launched(1, 0, 20, 100) if each["cat"] != "kernel"))


@pytest.mark.parametrize("category", ["Trace", "cuda_sync", "gpu_user_annotation", "ac2g", "overhead"])
def test_what_stands_for_no_work_changes_nothing(category):
    events = [*launched(1, 0, 20, 100), *launched(2, 300, 320, 10)]
    assert read(*events, event("x", category, 130, 400, STREAM, stream=7)) == read(*events)


# Malformed events

BYTES = event("[memory]", "cpu_instant_event", 1, 0, Addr=1, Bytes=8)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ts": None}, "ts = None: expected microseconds"),
        ({"ts": "12"}, "ts = '12': expected microseconds"),
        ({"ts": float("nan")}, "ts = nan"),
        ({"dur": []}, r"dur = \[\]: expected microseconds"),
        ({"dur": -1}, "dur = -1: expected 0 or more"),
        ({"name": 3}, "name = 3: expected text"),
        ({"args": "x"}, "args = 'x': expected an object"),
        ({"tid": [1]}, r"tid = \[1\]: expected a number or text"),
        ({"pid": None}, "pid = None"),
        ({"args": {"correlation": "7"}}, "correlation = '7': expected a number"),
        ({"args": {"device": None}}, "device = None"),
        ({"args": {"Input Dims": 4}}, "Input Dims = 4: expected a list"),
        ({"args": {"Input Dims": [["a"]]}}, "Input Dims = .*: expected the lengths of each input"),
        ({"args": {"Input type": [[]]}}, "Input type = .*: expected names of types"),
        ({"name": "[memory]", "cat": "cpu_instant_event", "args": {"Bytes": 1}}, "it has no 'Addr'"),
        ({"name": "[memory]", "cat": "cpu_instant_event", "args": {"Addr": 1}}, "it has no 'Bytes'"),
    ],
)
def test_a_malformed_event_is_named_with_its_number_and_field(change, says):
    with pytest.raises(ValueError, match=rf"event 1 \(.*\): {says}"):
        read(BYTES, event("aten::mm", "cpu_op", 0, 5) | change)


def test_an_allocation_that_failed_has_no_address():
    failed = event("[OutOfMemory]", "cpu_instant_event", 2, 0, Bytes=1 << 40)
    assert [each.name for each in read(BYTES, failed).events] == ["[memory]", "[OutOfMemory]"]


@pytest.mark.parametrize("field", ["ts", "name"])
def test_a_field_that_is_missing_is_named(field):
    broken = event("aten::mm", "cpu_op", 0, 5)
    del broken[field]
    with pytest.raises(ValueError, match=f"{field} = None"):
        read(broken)


def test_what_is_not_an_event_is_named():
    with pytest.raises(ValueError, match="event 1 is '7': expected an object"):
        read(BYTES, 7)
    assert read({"ph": "M", "name": None}, {"ph": "X", "cat": ["x"]}).events == ()


# Calls of Python


def python(name, start, duration):
    return event(name, "python_function", start, duration)


LOADING = [
    python("train.py(7): main", 0, 2_000), python("data.py(90): fetch", 60, 1_800),
    python("data.py(41): collate_fn", 70, 1_500), python("<built-in method stack>", 100, 300),
]  # fmt: skip


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_gap_names_the_call_of_python_that_took_most_of_it(on_gpu):
    work = [*launched(1, 0, 20, 30), *launched(2, 1_900, 1_920, 10)]
    profile = read(*LOADING, *(each for each in work if on_gpu or each["cat"] == "cpu_op"))
    assert profile.device == ("cuda" if on_gpu else "cpu")
    [gap] = profile.gaps()
    assert gap.cause == "other" and gap.reason.endswith("it was in collate_fn, data.py:41")


def test_a_call_of_c_is_named_with_the_function_that_made_it():
    calls = [python("data.py(41): collate_fn", 0, 2_000), python("<built-in method sleep>", 60, 1_800)]
    [gap] = read(*calls, event("aten::mm", "cpu_op", 0, 50), event("aten::mm", "cpu_op", 1_900, 50)).gaps()
    assert gap.reason.endswith("it was in <built-in method sleep> of collate_fn, data.py:41")


def test_calls_of_python_move_no_operator_and_no_end():
    work = launched(1, 10, 30, 100)
    profile, plain = read(python("a.py(1): f", 0, 500), *work), read(*work)
    assert profile.operators == plain.operators and profile.wall_us == plain.wall_us
    assert [each for each in profile.events if each.category != "python_function"] == list(plain.events)


def collate_fn(rows):
    total = 0
    for number in range(200_000):  # no calls, which would be events of their own
        total += number * rows[0]
    return torch.tensor([total])


def test_a_recorded_loader_is_named_by_its_function(tmp_path):
    loader = torch.utils.data.DataLoader(range(8), batch_size=2, collate_fn=collate_fn)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, with_stack=True) as recording:
        for batch in loader:
            batch + 1
    recording.export_chrome_trace(str(tmp_path / "trace.json"))
    profile = Profile.from_chrome(json.loads((tmp_path / "trace.json").read_text()))
    longest = max(profile.gaps(), key=lambda gap: gap.duration_us)
    assert longest.cause == "other" and "it was in collate_fn, " in longest.reason
