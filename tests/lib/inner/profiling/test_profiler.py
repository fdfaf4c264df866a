"""Profiles: recorded on this CPU, and computed from traces of a GPU that are written here by hand."""

import json
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.hardware import Accelerator
from threeloops.inner.profiling.gaps import _longest_uncovered, _merge
from threeloops.inner.profiling.profiler import _WINDOW, Profile, annotate, annotate_modules, profile
from threeloops.inner.profiling.trace import Event, from_chrome, to_chrome
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

HOST, BACKWARD_THREAD, STREAM = 11, 12, 7


def operator(name, start, duration, shapes=None, thread=HOST, types=None, concrete=None):
    args = {}
    if shapes is not None:
        types = types or ["float" if shape else "Scalar" for shape in shapes]
        args = {"Input Dims": shapes, "Input type": types, "Concrete Inputs": concrete or [""] * len(shapes)}
    return Event(name, "cpu_op", start, duration, thread, args=args)


def launch(correlation, start, duration, thread=HOST, name="cudaLaunchKernel"):
    return Event(name, "cuda_runtime", start, duration, thread, args={"correlation": correlation})


def kernel(correlation, start, duration, name="gemm", stream=STREAM):
    return Event(name, "kernel", start, duration, stream, args={"correlation": correlation, "stream": stream})


def allocation(size, start, address, thread=HOST, device_type=1):
    args = {"Bytes": size, "Addr": address, "Device Type": device_type}
    return Event("[memory]", "cpu_instant_event", start, 0.0, thread, args=args)


def wait(start, duration, name="cudaStreamSynchronize"):
    return Event(name, "cuda_runtime", start, duration, HOST)


def recorded(*events, device="cuda"):
    return Profile(device, "hand-written", max(event.end_us for event in events), events)


def by_name(profile):
    return {entry.name: entry for entry in profile.operators}


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 5, 3, stride=2, padding=1, groups=1)
        self.norm = nn.BatchNorm2d(5)
        self.classifier = nn.Linear(5 * 7 * 9, 4)

    def forward(self, x):
        return self.classifier(torch.relu(self.norm(self.convolution(x))).flatten(1))


@pytest.fixture(scope="module")
def small_profile():
    torch.manual_seed(0)
    model = Small().eval()
    with torch.no_grad(), annotate_modules(model):
        return profile(model, torch.randn(2, 3, 13, 17))


# The operators of a recording


def test_operators_are_those_that_the_program_called(small_profile):
    names = {name: entry.calls for name, entry in by_name(small_profile).items()}
    assert names == {
        "aten::conv2d": 1,
        "aten::batch_norm": 1,
        "aten::relu": 1,
        "aten::flatten": 1,
        "aten::linear": 1,
    }, "what they call in turn (aten::addmm, aten::clamp_min) is part of them"


def test_bytes_are_every_input_and_output_once(small_profile):
    operators = by_name(small_profile)
    image, weight, bias = 2 * 3 * 13 * 17, 5 * 3 * 9, 5
    activation, matrix, scores = 2 * 5 * 7 * 9, 4 * 5 * 7 * 9, 2 * 4
    assert operators["aten::relu"].bytes == 4 * 2 * activation
    assert operators["aten::conv2d"].bytes == 4 * (image + weight + bias + activation)
    assert operators["aten::linear"].bytes == 4 * (activation + matrix + 4 + scores)
    assert operators["aten::flatten"].bytes == 0, "a view moves nothing"


def test_flops_are_two_a_multiply_add(small_profile):
    operators = by_name(small_profile)
    assert operators["aten::conv2d"].flops == 2 * (2 * 7 * 9) * 5 * 3 * 9
    assert operators["aten::linear"].flops == 2 * 2 * (5 * 7 * 9) * 4
    assert operators["aten::relu"].flops == 0


def test_times_of_operators_are_counted_once_and_fit_into_the_wall_time(small_profile):
    total = sum(entry.cpu_us for entry in small_profile.operators)
    assert 0 < total <= small_profile.wall_us
    idle = sum(gap.duration_us for gap in small_profile.gaps(0))
    first = min(event.start_us for event in small_profile.events if event.category == "cpu_op")
    last = max(event.end_us for event in small_profile.events if event.category == "cpu_op")
    assert total + idle == pytest.approx(last - first, rel=1e-6), "operators and gaps fill the time between them"
    assert all(entry.device_us == 0 for entry in small_profile.operators)


def convolution_step(make, *shape):
    layer, x = make(), torch.randn(*shape, requires_grad=True)
    layer(x).sum().backward()


@pytest.mark.parametrize(
    "step",
    [
        lambda: torch.randn(7, 5) @ torch.randn(5, 3),
        lambda: torch.randn(2, 7, 5) @ torch.randn(2, 5, 3),
        lambda: torch.baddbmm(torch.randn(2, 7, 3), torch.randn(2, 7, 5), torch.randn(2, 5, 3)),
        lambda: torch.einsum("bik,bjk->bij", torch.randn(2, 7, 5), torch.randn(2, 3, 5)),
        lambda: nn.Linear(5, 3)(torch.randn(2, 4, 5)).sum().backward(),
        lambda: convolution_step(lambda: nn.Conv2d(4, 6, 3, stride=2, dilation=2), 2, 4, 11, 13),
        lambda: convolution_step(lambda: nn.Conv2d(4, 6, 3, padding="same"), 2, 4, 11, 13),
        lambda: convolution_step(lambda: nn.Conv1d(4, 6, 3, bias=False), 2, 4, 11),
        lambda: convolution_step(lambda: nn.ConvTranspose2d(4, 6, 3, stride=2), 2, 4, 5, 7),
    ],
)
def test_flops_agree_with_the_flop_counter_of_pytorch(step):
    with FlopCounterMode(display=False) as counter:
        step()
    assert counter.get_total_flops() > 0
    assert sum(entry.flops for entry in profile(step, warmup=1).operators) == counter.get_total_flops()


def test_each_gradient_of_a_convolution_costs_one_forward_pass():
    # torch.utils.flop_counter forgets the groups in the gradient of the weight, so the count is written out here.
    result = by_name(profile(lambda: convolution_step(lambda: nn.Conv2d(4, 6, 3, groups=2), 2, 4, 11, 13)))
    forward = 2 * (2 * 9 * 11) * 6 * (4 // 2) * 3 * 3
    assert result["aten::conv2d"].flops == forward
    assert result["aten::convolution_backward"].flops == 2 * forward


def test_flops_of_attention_are_two_products_forward_and_five_backward():
    batch, heads, queries, keys, key_width, value_width = 2, 3, 9, 7, 8, 8
    query = torch.randn(batch, heads, queries, key_width, requires_grad=True)
    key = torch.randn(batch, heads, keys, key_width, requires_grad=True)
    value = torch.randn(batch, heads, keys, value_width, requires_grad=True)

    def step():
        nn.functional.scaled_dot_product_attention(query, key, value).sum().backward()

    scores = 2 * batch * heads * queries * keys * key_width
    values = 2 * batch * heads * queries * keys * value_width
    operators = by_name(profile(step))
    assert operators["aten::scaled_dot_product_attention"].flops == scores + values
    assert sum(entry.flops for entry in operators.values()) == (scores + values) + (3 * scores + 2 * values)


@pytest.mark.parametrize(
    ("fn", "name", "expected"),
    [
        (lambda x: x.exp_(), "aten::exp_", 2 * 4 * 60),
        (lambda x: x.zero_(), "aten::zero_", 4 * 60),
        (lambda x: x.clone(), "aten::clone", 2 * 4 * 60),
        (lambda x: x.reshape(10, 6).clone(), "aten::reshape", 0),
        (lambda x: x.t().contiguous(), "aten::contiguous", 2 * 4 * 60),
        (lambda x: x[0].expand(6, 10) + x[0].expand(6, 10), "aten::add", 4 * (10 + 10 + 60)),
        (lambda x: x.to(torch.float64), "aten::to", (4 + 8) * 60),
        (lambda x: torch.empty(6, 10), "aten::empty", 0),
        (lambda x: torch.cat([x, x]), "aten::cat", 4 * 4 * 60),
        (lambda x: nn.functional.embedding(torch.tensor([1, 3, 1]), x), "aten::embedding", 2 * 4 * 30 + 8 * 3),
    ],
)
def test_bytes_of_awkward_operators(fn, name, expected):
    assert by_name(profile(fn, torch.ones(6, 10)))[name].bytes == expected


TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
TYPES += [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", TYPES)
def test_bytes_know_the_size_of_every_type(dtype):
    result = profile(lambda x: x.clone(), torch.zeros(60).to(dtype), warmup=0)
    assert by_name(result)["aten::clone"].bytes == 2 * 60 * dtype.itemsize


def test_top_ranks_by_the_quantity_asked_for(small_profile):
    assert [entry.name for entry in small_profile.top(1, "flops")] == ["aten::conv2d"]
    times = [entry.cpu_us for entry in small_profile.top(5)]
    assert times == sorted(times, reverse=True)
    assert small_profile.top(0) == ()
    with pytest.raises(ValueError, match=r"by = 'seconds'.*cpu_us"):
        small_profile.top(1, "seconds")
    with pytest.raises(ValueError, match="k = -1"):
        small_profile.top(-1)


def test_calls_of_one_operator_with_two_shapes_are_added_up():
    result = profile(lambda: (torch.ones(3, 4) @ torch.ones(4, 5), torch.ones(6, 4) @ torch.ones(4, 5)))
    assert by_name(result)["aten::matmul"].flops == 120 + 240


def test_arguments_are_checked():
    with pytest.raises(TypeError, match="fn = 3"):
        profile(3)
    with pytest.raises(ValueError, match="warmup = -1"):
        profile(abs, -1, warmup=-1)
    with pytest.raises(ValueError, match="device = 'tpu'"):
        profile(abs, -1, device="tpu")


def test_warmup_calls_are_not_recorded():
    calls = []

    def fn(x):
        calls.append(x)
        return x + 1

    assert by_name(profile(fn, torch.ones(2), warmup=4))["aten::add"].calls == 1
    assert len(calls) == 5


# Peak activation memory


def test_peak_is_what_is_held_at_once_and_names_its_operator():
    def fn(x):
        y = x.sigmoid()  # 4 KB held
        z = y.exp()  # 8 KB
        del y  # 4 KB
        w = torch.cat([z, z])  # 12 KB: the peak
        del z
        return w.tanh_()

    peak = profile(fn, torch.ones(1024)).peak_memory
    assert peak.bytes == 4 * 1024 * 3
    assert peak.operator == "aten::cat"


def test_what_existed_before_does_not_count_nor_does_its_end():
    box = {}

    def fn():
        box["x"] = None
        return torch.ones(100).exp_()

    for _ in range(2):  # the tensor must be there again for the recorded call
        box["x"] = torch.ones(10_000)
        result = profile(fn, warmup=0)
    assert result.peak_memory.bytes == 400


def test_training_holds_what_inference_frees():
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Sigmoid())))
    x = torch.ones(256, 64)
    training = profile(model, x).peak_memory.bytes
    with torch.no_grad():
        inference = profile(model, x).peak_memory.bytes
    activation = 4 * 256 * 64
    assert inference == 2 * activation, "input and output of one layer"
    # Sigmoid keeps its output, a linear layer its input: between layers that is the same tensor.
    assert training == (6 + 1) * activation, "every sigmoid's output stays for the backward pass"


def test_peak_says_in_which_module():
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 4000), nn.Linear(4000, 8)))
    with torch.no_grad(), annotate_modules(model), annotate("forward"):
        peak = profile(model, torch.ones(4, 8)).peak_memory
    assert peak.within == ("1", "1.1")
    assert peak.operator == "aten::linear"


def test_module_ranges_end_with_the_context():
    model = nn.Sequential(nn.Linear(4, 4))
    with annotate_modules(model):
        pass
    assert [event.name for event in profile(model, torch.ones(1, 4)).events if event.category == "user_annotation"] == [
        _WINDOW
    ]


def test_ranges_survive_an_exception():
    class Failing(nn.Module):
        def forward(self, x):
            raise RuntimeError("no")

    model = nn.Sequential(nn.Identity(), Failing())

    def fn(x):
        with pytest.raises(RuntimeError, match="no"):
            model(x)
        return x + 1

    with annotate_modules(model):
        events = profile(fn, torch.ones(1)).events
    failing = next(event for event in events if event.name == "1")
    add = next(event for event in events if event.name == "aten::add")
    assert failing.end_us <= add.start_us


def test_gpu_memory_counts_gpu_allocations_only():
    result = recorded(
        operator("aten::a", 0, 10, [[1]]),
        allocation(512, 1, 0xA),
        allocation(9999, 2, 0xB, device_type=0),
        operator("aten::b", 20, 10, [[1]]),
        allocation(-4096, 21, 0xC),  # from before the profile
        allocation(1024, 22, 0xD),
        allocation(-512, 23, 0xA),
        operator("aten::c", 40, 10, [[1]]),
        allocation(256, 41, 0xE),
    )
    assert (result.peak_memory.bytes, result.peak_memory.operator) == (1536, "aten::b")


# A GPU, from hand-written traces


def gpu_step():
    return recorded(
        operator("aten::linear", 0, 40, [[8, 4], [16, 4], [16]]),
        operator("aten::addmm", 5, 30, [[16], [8, 4], [4, 16], [], []]),
        allocation(512, 6, 0xA),
        launch(1, 10, 5),
        kernel(1, 20, 100, "gemm"),
        operator("aten::relu", 50, 20, [[8, 16]]),
        allocation(512, 51, 0xB),
        launch(2, 55, 5),
        kernel(2, 120, 30, "relu"),
        kernel(99, 150, 7, "orphan"),
    )


def test_device_time_belongs_to_the_operator_that_launched_it():
    operators = by_name(gpu_step())
    assert (operators["aten::linear"].device_us, operators["aten::linear"].cpu_us) == (100, 40)
    assert operators["aten::relu"].device_us == 30
    assert (operators["orphan"].device_us, operators["orphan"].bytes) == (7, None)
    assert [entry.name for entry in gpu_step().top(2)] == ["aten::linear", "aten::relu"]


def test_gpu_operators_have_bytes_and_flops():
    linear = by_name(gpu_step())["aten::linear"]
    assert linear.flops == 2 * 8 * 4 * 16
    assert linear.bytes == 4 * (8 * 4 + 16 * 4 + 16) + 512


def test_a_kernel_of_the_backward_thread_finds_its_operator():
    result = recorded(
        operator("aten::linear", 0, 50),
        operator("MmBackward0", 0, 50, thread=BACKWARD_THREAD),
        operator("aten::mm", 10, 20, thread=BACKWARD_THREAD),
        launch(3, 15, 5, thread=BACKWARD_THREAD),
        kernel(3, 30, 10),
    )
    operators = by_name(result)
    assert operators["aten::mm"].device_us == 10
    assert operators["MmBackward0"].cpu_us == 30, "the node owns what no ATen operator below it does"


def test_a_back_to_back_queue_has_no_gap():
    assert gpu_step().gaps() == ()


def test_a_late_launch_is_launch_bound():
    result = recorded(
        operator("aten::a", 0, 10), launch(1, 5, 3), kernel(1, 10, 5),
        operator("aten::b", 20, 30), launch(2, 40, 4), kernel(2, 46, 5, "next"),
    )  # fmt: skip
    (gap,) = result.gaps()
    assert (gap.start_us, gap.duration_us, gap.cause) == (15, 31, "launch-bound")
    assert (gap.before, gap.after) == ("gemm", "next")
    assert "aten::b came 25.0 µs" in gap.reason


@pytest.mark.parametrize("name", ["cudaMemcpy", "cuMemcpyDtoH_v2", "hipMemcpyWithStream", "cudaMemcpy2D"])
def test_a_blocking_copy_is_a_host_synchronisation(name):
    result = recorded(
        launch(1, 5, 3), kernel(1, 10, 50), wait(14, 49, name), launch(2, 68, 3), kernel(2, 75, 5)
    )  # fmt: skip
    assert [gap.cause for gap in result.gaps()] == ["host synchronisation"]


@pytest.mark.parametrize(
    ("copied", "cause"),
    [
        ("Memcpy DtoH (Device -> Pageable)", "host synchronisation"),
        ("Memcpy DtoH (Device -> Pinned)", "launch-bound"),
    ],
)
def test_a_copy_to_memory_that_is_not_pinned_holds_the_host_up_whatever_its_call_is_named(copied, cause):
    copy = Event(copied, "gpu_memcpy", 20, 42, STREAM, args={"correlation": 2, "stream": STREAM})
    result = recorded(
        launch(1, 5, 3), kernel(1, 10, 10), launch(2, 12, 52, name="cudaMemcpyAsync"), copy,
        launch(3, 68, 3), kernel(3, 75, 5),
    )  # fmt: skip
    assert [gap.cause for gap in result.gaps()] == [cause]


def test_a_host_that_waited_for_the_device_is_a_host_synchronisation():
    result = recorded(
        operator("aten::a", 0, 10), launch(1, 5, 3), kernel(1, 10, 50),
        operator("aten::item", 12, 52), wait(14, 49),
        operator("aten::b", 66, 10), launch(2, 68, 3), kernel(2, 75, 5),
    )  # fmt: skip
    (gap,) = result.gaps()
    assert gap.cause == "host synchronisation"
    assert "cudaStreamSynchronize for aten::item" in gap.reason
    assert "5.0 µs later" in gap.reason


def test_a_wait_on_an_idle_device_is_not_what_made_it_idle():
    result = recorded(
        launch(1, 5, 3), kernel(1, 10, 5), wait(20, 2), operator("aten::b", 15, 30), launch(2, 40, 4), kernel(2, 46, 5)
    )
    assert [gap.cause for gap in result.gaps()] == ["launch-bound"]


def test_a_host_away_from_all_operators_is_other():
    events = [launch(1, 5, 3), kernel(1, 10, 5), operator("aten::b", 900, 20), launch(2, 910, 4), kernel(2, 920, 5)]
    (gap,) = recorded(*events).gaps()
    assert gap.cause == "other"
    assert "885.0 µs at a stretch" in gap.reason
    (gap,) = recorded(*events).gaps(issue_limit_us=1000)
    assert gap.cause == "launch-bound", "the limit is the caller's"


def test_a_kernel_that_was_already_queued_waited_on_the_device():
    (gap,) = recorded(launch(1, 0, 3), launch(2, 4, 3), kernel(1, 10, 5), kernel(2, 40, 5)).gaps()
    assert (gap.cause, gap.duration_us) == ("other", 25)
    assert "already queued" in gap.reason


def test_a_device_busy_on_another_stream_is_not_idle():
    result = recorded(
        *(launch(number, number, 1) for number in range(4)),
        kernel(0, 10, 10), kernel(1, 12, 50, stream=8), kernel(2, 20, 5), kernel(3, 58, 5),
    )  # fmt: skip
    assert result.gaps() == (), "stream 7 pauses from 25 to 58, stream 8 works until 62"


def test_short_gaps_are_left_out_and_limits_are_checked():
    result = recorded(kernel(1, 0, 1), kernel(2, 1.5, 1), kernel(3, 10, 1))
    assert [gap.start_us for gap in result.gaps()] == [2.5]
    assert [gap.start_us for gap in result.gaps(0.5)] == [1, 2.5]
    with pytest.raises(ValueError, match="minimum_us = -1"):
        result.gaps(-1)


def test_gaps_of_a_cpu_are_between_operators_of_the_busy_thread():
    result = recorded(
        operator("aten::a", 0, 10),
        operator("aten::b", 30, 10),
        operator("aten::c", 32, 5),
        operator("aten::d", 400, 10),
        operator("aten::e", 12, 2, thread=BACKWARD_THREAD),
        device="cpu",
    )
    assert [(gap.start_us, gap.duration_us, gap.cause) for gap in result.gaps()] == [
        (10, 20, "launch-bound"),
        (40, 360, "other"),
    ]


INTERVALS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 9)).map(lambda pair: (pair[0], sum(pair))), max_size=8
)


@given(INTERVALS, st.integers(0, 40), st.integers(0, 20))
def test_longest_uncovered_stretch_against_counting(intervals, start, length):
    union = _merge(intervals)
    assert all(before[1] < after[0] for before, after in zip(union, union[1:], strict=False))
    free = [not any(low <= cell < high for low, high in intervals) for cell in range(start, start + length)]
    runs = re.findall("1+", "".join("1" if cell else "0" for cell in free))
    begin, end = _longest_uncovered(start, start + length, union)
    assert end - begin == max(map(len, runs), default=0) and start <= begin <= end <= start + length
    assert all(high <= begin or end <= low for low, high in union) or begin == end


# What limits an operator


def device(flops, bandwidth):
    return Accelerator("imagined", "nobody", 2024, 2**30, bandwidth, {"fp32": flops})


def classified(*entries, flops=1e12, bandwidth=1e11, **options):
    return recorded(*entries, **options).classify(device(flops, bandwidth))


def test_on_a_gpu_the_host_competes_with_the_device():
    def matmul(host_us, device_us):
        return (
            operator("aten::mm", 0, host_us, [[1024, 1024], [1024, 1024]]),
            allocation(2**22, 0, 0xA),
            launch(1, 0, 1),
            kernel(1, 5, device_us),
        )

    assert classified(*matmul(10, 3000)) == {"aten::mm": "compute"}
    assert classified(*matmul(10, 3000), flops=1e15, bandwidth=1e9) == {"aten::mm": "memory"}
    assert classified(*matmul(4000, 3000)) == {"aten::mm": "overhead"}


def test_work_that_the_trace_does_not_tell_is_unknown_and_no_work_is_overhead():
    result = classified(
        operator("aten::view", 0, 5, [[4, 4], []]),
        operator("CompiledFxGraph", 10, 90),
        operator("aten::exp", 20, 60, [[1024]]),
        allocation(4096, 25, 0xA, device_type=0),
        device="cpu",
    )
    assert result == {"aten::view": "overhead", "CompiledFxGraph": "unknown", "aten::exp": "memory"}


def test_on_a_cpu_the_price_of_a_call_competes_with_its_work():
    events = [operator("aten::exp", 0, 50, [[1024]]), allocation(4096, 5, 0xA, device_type=0)]
    result = recorded(*events, device="cpu")
    assert result.classify(device(1e12, 1e10), dispatch_us=10) == {"aten::exp": "memory"}
    assert result.classify(device(1e12, 1e10), dispatch_us=30) == {"aten::exp": "overhead"}


def test_a_trace_without_allocations_does_not_tell_what_was_written():
    operators = by_name(recorded(operator("aten::exp", 0, 5, [[1024]]), operator("aten::mm", 9, 5)))
    assert operators["aten::exp"].bytes is None
    assert (operators["aten::mm"].bytes, operators["aten::mm"].flops) == (None, 0), "nor, without shapes, anything"


# Files


def test_saved_chrome_trace_reads_back_as_the_same_events(small_profile, tmp_path):
    path = small_profile.save_chrome(tmp_path / "trace.json")
    assert from_chrome(json.loads(path.read_text())) == small_profile.events
    again = Profile.from_chrome(json.loads(path.read_text()), small_profile.device_name)
    assert again == small_profile
    assert again.operators == small_profile.operators
    assert again.peak_memory == small_profile.peak_memory
    assert again.gaps() == small_profile.gaps()


def test_saved_chrome_trace_keeps_to_the_trace_event_format(tmp_path):
    trace = json.loads(gpu_step().save_chrome(tmp_path / "trace.json").read_text())
    for row in trace["traceEvents"]:
        assert {"name", "cat", "ph", "ts", "pid", "tid"} <= set(row)
        assert row["ph"] == "X" and row["dur"] >= 0 or row["ph"] == "i" and row["s"] == "t"
    assert trace["deviceProperties"] == [{"id": 0, "name": "hand-written"}]
    assert Profile.from_chrome(trace, "hand-written").operators == gpu_step().operators


def test_tensorboard_file_has_the_name_that_the_plugin_looks_for(small_profile, tmp_path):
    path = small_profile.save_tensorboard(tmp_path / "runs" / "first")
    # torch_tb_profiler/consts.py: a worker name, then this ending.
    assert re.fullmatch(r"(.+)\.\d+\.pt\.trace\.json", path.name)
    assert from_chrome(json.loads(path.read_text())) == small_profile.events


def test_what_lies_outside_the_profiled_call_does_not_count():
    window = Event(_WINDOW, "user_annotation", 100, 50, HOST)
    before, inside, after = (operator("aten::a", start, 10) for start in (50, 110, 160))
    cut = Profile.from_chrome(to_chrome([before, window, inside, after]))
    assert (cut.wall_us, [entry.calls for entry in cut.operators]) == (50, [1])
    assert [event.start_us for event in cut.events] == [0, 10]


def test_a_foreign_trace_counts_whole_and_something_else_is_rejected():
    events = [operator("aten::a", 5, 10), operator("aten::b", 20, 10)]
    foreign = Profile.from_chrome(to_chrome(events))
    assert (foreign.wall_us, [entry.calls for entry in foreign.operators]) == (25, [1, 1])
    with pytest.raises(ValueError, match="traceEvents"):
        Profile.from_chrome({"events": []})
    assert Profile.from_chrome({"traceEvents": []}).operators == ()


def test_reading_costs_no_knowledge_of_the_roofline(tmp_path):
    import subprocess
    import sys

    program = (
        "import sys; sys.modules['threeloops.inner.roofline'] = None; import threeloops.inner.profiling.profiler as p; "
    )
    program += "assert 'torch' not in sys.modules; p.Profile.from_chrome({'traceEvents': []})"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.gpu
def test_on_a_gpu_kernels_gaps_and_memory_are_recorded():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    # The product takes milliseconds on any GPU, so that the host is at the wait long before its end.
    model, x = nn.Linear(4096, 4096, device="cuda"), torch.randn(4096, 4096, device="cuda")

    def fn(x):
        y = model(x)
        y.sum().item()
        return y.relu()

    result = profile(fn, x)
    linear = by_name(result)["aten::linear"]
    assert linear.device_us > 0
    assert linear.flops == 2 * 4096**3
    assert result.peak_memory.bytes >= 2 * 4 * 4096**2
    assert "host synchronisation" in {gap.cause for gap in result.gaps()}
