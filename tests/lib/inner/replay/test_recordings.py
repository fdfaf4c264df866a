# ruff: noqa: E501 (one case stands on one line)
"""Recordings: what a launcher does becomes data, strangers' data is checked, and the same is done again on other inputs."""

import contextlib
import copy
import ctypes
import json
import os
import signal

import msgspec
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops import frames
from threeloops.inner import interpreter
from threeloops.inner.meter import L2, meter
from threeloops.inner.replay import server as replay_server
from threeloops.inner.replay.allowlist.admit import admit
from threeloops.inner.replay.execution import execute, execute_compiled
from threeloops.inner.replay.inputs import Inputs, inputs_of, view
from threeloops.inner.replay.messages import answer_from, perform, question
from threeloops.inner.replay.recorder import record
from threeloops.inner.replay.recordings.reader import RecordingLimits, check
from threeloops.inner.replay.recordings.steps import (
    Allocate,
    Copy,
    Count,
    Fill,
    LaunchStep,
    Recording,
    RecordingRefused,
    StridedView,
    Sum,
    decode,
)
from threeloops.module_process import ProcessLost

pytestmark = pytest.mark.skipif(not interpreter.enable_without_gpu(), reason="kernels are compiled in this process")

CELL = """\
@triton.jit
def twice(x, out, n, factor=2.0, BLOCK: tl.constexpr = 64):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + offsets, mask=offsets < n, other=0)
    tl.store(out + offsets, values * factor, mask=offsets < n)


@triton.jit
def typed(x, out, TYPE: tl.constexpr, SIZES: tl.constexpr, MODE: tl.constexpr):
    if MODE == "store":
        tl.store(out, tl.load(x).to(TYPE) + SIZES[1])


@triton.jit
def poke(x, address, value):
    tl.store(x + address, value)


@triton.jit
def fails(x):
    y = tl.load(x)
    tl.static_assert(False, "on purpose")


@triton.jit
def shifted(x, out):
    here = tl.program_id(0)
    tl.store(out + here, tl.load(x + here + 1))


@triton.jit
def indexed(x, out):
    tl.store(out + tl.arange(0, 16), x[tl.arange(0, 16)])


@triton.jit
def recast(x, out):
    tl.store(out + tl.arange(0, 16), tl.load(x + tl.arange(0, 16)).to(x.dtype))
"""
MODULE = admit(CELL, file="cell_of_test_recording.py").load()
twice, typed, poke, fails, shifted = (getattr(MODULE, n) for n in ("twice", "typed", "poke", "fails", "shifted"))
indexed, recast = MODULE.indexed, MODULE.recast


def launch_twice(x):
    out = torch.empty_like(x)
    twice[(triton.cdiv(x.numel(), 64),)](x, out, x.numel())
    return out


def replayed(launcher, *args, l2=None, **kwargs):
    """The answer to a replay of a launcher whose kernels are CELL's, through JSON as it would travel."""
    inputs, storages = inputs_of(args, kwargs)
    zeros, more = msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(inputs))), Inputs).zeros()
    recording = json.loads(json.dumps(record(launcher, zeros, more).to_dict()))
    tree, buffers = question(CELL, decode(recording), inputs, storages, l2)
    answer, sent = perform(json.loads(json.dumps(tree)), buffers)
    return answer_from(json.loads(json.dumps(answer)), [bytearray(buffer) for buffer in sent])


LIMITS = RecordingLimits()


def read(data, inputs, kernels, limits=LIMITS):
    recording = decode(data)
    check(recording, inputs, kernels, limits)
    return recording


def steps_of(launcher, *zeros):
    return record(launcher, list(zeros), {}).steps


def test_a_recording_holds_views_and_no_values():
    seen = []

    def launcher(x, scale):
        seen.append(x)
        out = torch.zeros(5, dtype=x.dtype)
        twice[(1,)](x[1:6], out, 5, factor=scale, BLOCK=8, num_warps=2)
        return out[::2], None

    x = torch.arange(10.0)
    answer = replayed(launcher, x, 3.0)
    assert answer.refused == ""
    assert torch.equal(seen[0], torch.zeros(10))
    assert torch.equal(answer.outputs[0], torch.tensor([3.0, 9.0, 15.0])) and answer.outputs[1] is None
    recording = record(launcher, [torch.zeros(10), 3.0], {})
    assert recording.steps == (
        Allocate("float32", 5),
        Fill(StridedView(1, "float32", (5,), (1,), 0), 0),
        LaunchStep(
            "twice", (1, 1, 1),
            {"x": StridedView(0, "float32", (5,), (1,), 1), "out": StridedView(1, "float32", (5,), (1,), 0), "n": 5, "factor": 3.0},
            {"BLOCK": 8}, {"num_warps": 2},
        ),
    )  # fmt: skip
    assert recording.outputs == (StridedView(1, "float32", (3,), (2,), 0), None)
    assert [step.kernel for step in recording.launches] == ["twice"]
    assert (
        read(recording.to_dict() | {"outputs": recording.to_dict()["outputs"]}, [40], admit(CELL).kernels) == recording
    )


def test_views_are_free_and_copies_are_steps():
    def launcher(x):
        y = x.t().contiguous().view(-1)[2:].unsqueeze(0).expand(2, -1).permute(1, 0)[:, 0].reshape(2, 2)
        z = y.to(torch.float16).clone()
        torch.empty(3).copy_(z.flatten()[:1])
        return launch_twice(z)

    kinds = [type(step) for step in steps_of(launcher, torch.zeros(2, 3))]
    assert kinds == [Allocate, Copy, Allocate, Copy, Allocate, Copy, Allocate, Copy, Allocate, LaunchStep]


def test_sums_fills_and_counts_are_steps():
    def launcher(x):
        part = torch.full((4, 3, 2), 7.5)
        twice[(1,)](x, part, 24)
        part[0, 0] = 1
        part[0].fill_(2.5)
        part[1].zero_()
        index = torch.arange(3, 9, 2)
        twice[(1,)](index, index, 3)
        return part.sum(), part.sum((0, -1), keepdim=True), part.sum(1, dtype=torch.float64), index.sum(0)

    recording = record(launcher, [torch.zeros(24)], {})
    sums = [step for step in recording.steps if isinstance(step, Sum)]
    assert [(s.dimensions, s.keepdim, s.to.dtype) for s in sums] == [
        ((0, 1, 2), False, "float32"), ((0, 2), True, "float32"), ((1,), False, "float64"), ((0,), False, "int64"),
    ]  # fmt: skip
    assert [s.value for s in recording.steps if isinstance(s, Fill)] == [7.5, 1, 2.5, 0]
    assert [(s.start, s.step) for s in recording.steps if isinstance(s, Count)] == [(3, 2)]
    x = torch.arange(24.0)
    answer = replayed(launcher, x)
    part = (2 * x).reshape(4, 3, 2)
    part[0], part[1] = 2.5, 0
    for found, expected in zip(
        answer.outputs, (part.sum(), part.sum((0, 2), keepdim=True), part.double().sum(1)), strict=False
    ):
        assert found.dtype == expected.dtype and torch.equal(found, expected)
    assert answer.outputs[3] == 2 * (3 + 5 + 7)


REFUSED = {
    "reads by item": (lambda x: x.sum().item(), "item()"),
    "reads by int": (lambda x: int(x[0]), "int()"),
    "reads by float": (lambda x: float(x[0]), "float()"),
    "reads by bool": (lambda x: bool(x[0] > 1), "bool()"),
    "reads by an if": (lambda x: 1 if x.any() else 2, "bool()"),
    "reads by tolist": (lambda x: x.tolist(), "tolist()"),
    "reads by numpy": (lambda x: x.numpy(), "numpy()"),
    "reads by asarray": (lambda x: np.asarray(x), "array()"),
    "reads by equal": (lambda x: torch.equal(x, x), "values"),
    "reads by nonzero": (lambda x: x.nonzero(), "values"),
    "reads by a mask": (lambda x: x[x > 0], "torch.index"),
    "reads by dlpack": (lambda x: np.from_dlpack(x), "dlpack()"),
    "writes its input": (lambda x: x.add_(1), "torch.add_"),
    "writes its input by a slice": (lambda x: x[:2].fill_(1), "torch.fill_"),
    "writes its input by setitem": (lambda x: x.__setitem__(0, 1.0), "in place with torch"),
    "writes its input by out": (lambda x: torch.exp(x, out=x), "torch.exp"),
    "returns a text": (lambda x: "x", "a str"),
    "returns a foreign tensor": (lambda x: FOREIGN, "neither was given nor allocated"),
    "returns a tensor of numbers": (lambda x: torch.tensor([1.0]), "neither was given nor allocated"),
    "returns a cat": (lambda x: torch.cat([x, x]), "torch.cat"),
    "returns a gather": (lambda x: x[torch.arange(3)], "torch.index"),
    "returns random numbers": (lambda x: torch.rand(3), "torch.rand"),
    "returns a copy of a computed tensor": (lambda x: (x + 1).clone(), "torch.add"),
    "returns a sum of a computed tensor": (lambda x: (x * x).sum(), "torch.mul"),
    "returns what torch wrote into": (lambda x: torch.zeros_like(x).add_(x), "torch.add_"),
    "returns what torch copied a computed tensor into": (lambda x: torch.zeros_like(x).copy_(x + 1), "torch.add"),
    "fills with a computed number": (lambda x: torch.zeros_like(x).fill_(x[0] * 2), "torch.mul"),
    "gives a kernel a computed tensor": (lambda x: launch_twice(x + 1), "gives twice a tensor that torch made, by torch.add"),
    "gives a kernel a foreign tensor": (lambda x: launch_twice(FOREIGN), "gives twice a tensor that it neither was given"),
    "gives a kernel a kernel": (lambda x: typed[(1,)](x, x, twice, (1, 2), "store"), "as TYPE"),
    "sorts": (lambda x: x.sort()[0], "torch.sort"),
    "multiplies": (lambda x: x @ x, "torch.dot"),
}  # fmt: skip
FOREIGN = torch.rand(4)


@pytest.mark.parametrize("name", REFUSED)
def test_a_launcher_that_computes_or_looks_is_refused(name):
    launcher, says = REFUSED[name]
    with pytest.raises(RecordingRefused) as refused:
        record(launcher, [torch.zeros(4)], {})
    assert says in str(refused.value)


def test_a_refusal_cannot_be_caught():
    def launcher(x):
        with contextlib.suppress(BaseException):
            x.sum().item()
        return launch_twice(x)

    with pytest.raises(RecordingRefused, match="item"):
        record(launcher, [torch.zeros(4)], {})


def test_torch_may_compute_what_goes_nowhere():
    def launcher(x):
        (x * 2).exp()
        print(x.shape, x.stride(), x.dtype, x.data_ptr() % 16, x.is_contiguous(), len(x))
        return launch_twice(x)

    assert len(steps_of(launcher, torch.zeros(4))) == 2


def test_the_launchers_own_exceptions_are_its_own():
    def launcher(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        record(launcher, [torch.zeros(1)], {})


def test_recording_leaves_nothing_behind():
    record(launch_twice, [torch.zeros(4)], {})
    x = torch.ones(4)
    assert launch_twice(x).tolist() == [2.0] * 4
    assert x.sum().item() == 4


def test_inputs_keep_layout_sharing_and_offset():
    base = torch.arange(24.0).reshape(4, 6)
    q, k = base[:, :3], base[:, 3:]
    inputs, storages = inputs_of(
        [q, [k, (base.t(), None, "a")]], {"z": {"deep": torch.ones(2, dtype=torch.bool)}, "n": 3}
    )
    assert inputs.sizes == (96, 2) and len(storages) == 2
    args, kwargs = msgspec.convert(msgspec.to_builtins(inputs), Inputs).zeros()
    assert [t.stride() for t in (args[0], args[1][0], args[1][1][0])] == [(6, 1), (6, 1), (1, 6)]
    assert args[1][0].storage_offset() == 3 and args[0].untyped_storage()._cdata == args[1][0].untyped_storage()._cdata
    assert args[1][1][1:] == (None, "a") and kwargs["n"] == 3 and kwargs["z"]["deep"].dtype == torch.bool
    assert not any(t.any() for t in (*args[:1], args[1][0], kwargs["z"]["deep"]))
    assert [
        torch.equal(view(storages[0], each), t) for each, t in zip(inputs.views, (q, k, base.t()), strict=False)
    ] == [True] * 3


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (np.ones(3), "ndarray"),
        (torch.ones(3).to_sparse(), "dense"),
        (torch.ones(3, dtype=torch.complex64), "complex64"),
        (lambda: 1, "function"),
    ],
)
def test_other_arguments_are_refused(bad, says):
    with pytest.raises(TypeError, match=says):
        inputs_of([bad], {})


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8]
)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (127,), (2, 5, 13)])
def test_outputs_of_every_dtype_and_shape_come_back(dtype, shape):
    x = (torch.arange(int(np.prod(shape))) % 50).reshape(shape).to(dtype)

    def launcher(x):
        out = torch.empty_like(x)
        twice[(max(1, triton.cdiv(x.numel(), 64)),)](x, out, x.numel(), 2)
        return out

    answer = replayed(launcher, x)
    assert answer.refused == ""
    assert answer.outputs.dtype == dtype and torch.equal(answer.outputs, (2 * x.double()).to(dtype))


def test_constants_of_every_kind_arrive():
    def launcher(x):
        out = torch.empty(1, dtype=torch.int32)
        typed[(1,)](x, out, tl.int32, (1, 20), MODE="store")
        return out

    answer = replayed(launcher, torch.full((1,), 3.7))
    assert answer.outputs.tolist() == [23]
    assert answer.launches[0].constants == {"TYPE": tl.int32, "SIZES": (1, 20), "MODE": "store"}


def test_traffic_and_launches_come_back_as_they_were():
    x = torch.arange(100.0)
    answer = replayed(launch_twice, x, l2=L2.of("H100 SXM"))
    with meter("H100 SXM") as here:
        assert torch.equal(launch_twice(x), answer.outputs)
    there = answer.traffic
    assert there.total.unique_bytes == here.total.unique_bytes == 800
    assert there.total.dram_bytes == here.total.dram_bytes is not None
    assert there.total.flops == here.total.flops and there.launches[0].arguments == here.launches[0].arguments
    assert there.report().splitlines()[0] == here.report().splitlines()[0]
    (launch,) = answer.launches
    assert (launch.name, launch.grid, launch.file, launch.line) == ("twice", (2, 1, 1), "cell", 2)


def test_the_callers_inputs_stay_as_they_are_and_the_kernel_may_change_its_own():
    def launcher(x):
        twice[(1,)](x, x, 4)
        return x

    x = torch.ones(4)
    answer = replayed(launcher, x)
    assert answer.outputs.tolist() == [2.0] * 4 and x.tolist() == [1.0] * 4


def test_what_torch_moves_is_counted():
    def launcher(x):
        y = x.contiguous()
        out = torch.zeros_like(y)
        twice[(1,)](y, out, 12)
        return out.sum(0)

    answer = replayed(launcher, torch.ones(3, 4).t())
    assert answer.torch_bytes == 4 * (2 * 12 + 12 + 12 + 3)


MASKLESS = CELL.replace(", mask=offsets < n, other=0", "").replace(", mask=offsets < n", "")
NO_PLACE = {
    "beyond the end": (lambda x: shifted[(4,)](x, x.new_empty(4)), "load outside x"),
    "far away": (lambda x: poke[(1,)](x, 1 << 40, 1.0), "store outside x"),
    "before the start": (lambda x: poke[(1,)](x, -1, 1.0), "store outside x"),
}


@pytest.mark.parametrize("name", NO_PLACE)
def test_an_access_outside_the_arguments_is_refused(name):
    launcher, says = NO_PLACE[name]

    def returning(x):
        out = torch.empty_like(x)
        twice[(1,)](x, out, 4)
        launcher(x)
        return out

    answer = replayed(returning, torch.ones(4))
    assert "out-of-bounds" in answer.refused and says in answer.refused and "cell:" in answer.refused


def test_no_pointer_reaches_memory_that_is_not_the_kernels():
    """Under the meter an argument's addresses are virtual: a kernel that knows them could aim at real ones."""
    victim = (ctypes.c_float * 4)(1, 2, 3, 4)

    def launcher(x):
        for argument in (1, 2, 3):
            poke[(1,)](x, (ctypes.addressof(victim) - (argument << 48)) // 4, 99.0)
        return x

    for offset in (0, 16):
        answer = replayed(launcher, torch.ones(8)[offset // 16 :])
        assert "out-of-bounds" in answer.refused
        assert list(victim) == [1, 2, 3, 4]


def test_lanes_that_write_different_values_to_one_element_are_a_fault():
    """The interpreter keeps the last lane's value, and a GPU keeps any lane's."""
    cell = "@triton.jit\ndef crowd(x, out):\n    lanes = tl.arange(0, 16)\n    tl.store(out + lanes // 2, tl.load(x + lanes))\n"
    x, out = StridedView(0, "float32", (16,), (1,), 0), StridedView(1, "float32", (8,), (1,), 0)
    launch = LaunchStep("crowd", (1, 1, 1), {"x": x, "out": out}, {}, {})
    recording = Recording((Allocate("float32", 8), launch), out)
    admitted = admit(cell, ["crowd"], "cell")
    assert execute(recording, admitted, [torch.ones(16).view(torch.uint8)]).outputs.tolist() == [1.0] * 8
    with pytest.raises(RecordingRefused, match="store-conflict"):
        execute(recording, admitted, [torch.arange(16.0).view(torch.uint8)])


def test_a_pointer_kept_in_memory_leads_nowhere():
    cell = (
        CELL
        + "\n@triton.jit\ndef follow(x, out):\n    p = tl.load(x).to(out.dtype)\n    tl.store(p, 99.0)\n    tl.store(out, 1.0)\n"
    )
    victim = (ctypes.c_float * 4)(1, 2, 3, 4)
    admitted = admit(cell, ["follow"], "cell")
    out, x = StridedView(1, "float32", (1,), (1,), 0), StridedView(0, "int64", (1,), (1,), 0)
    recording = Recording((Allocate("float32", 1), LaunchStep("follow", (1, 1, 1), {"x": x, "out": out}, {}, {})), out)
    with pytest.raises(RecordingRefused, match="out-of-bounds|fails"):
        execute(recording, admitted, [torch.tensor([ctypes.addressof(victim)]).view(torch.uint8)])
    assert list(victim) == [1, 2, 3, 4]


def test_a_kernels_failure_names_its_line():
    def launcher(x):
        fails[(1,)](x)
        return x

    answer = replayed(launcher, torch.ones(1))
    line = CELL.split("\n").index('    tl.static_assert(False, "on purpose")') + 1
    assert f"launches fails, which fails, line {line} of its cell: AssertionError: on purpose" in answer.refused


def test_slips_that_the_interpreter_leaves_unexplained_come_with_their_fix():
    def launcher(kernel):
        def launch(x):
            kernel[(1,)](x, out := torch.empty_like(x))
            return out

        return launch

    refused = replayed(launcher(indexed), torch.full((16,), 0.123)).refused
    assert "write tl.load(pointer + offsets)" in refused and "TypeError" in refused
    refused = replayed(launcher(recast), torch.full((16,), 0.123)).refused
    assert "AssertionError: cannot cast a value to" in refused and "x.dtype.element_ty" in refused
    assert "0.123" not in refused


def test_a_launch_of_no_programs_is_named_where_nothing_was_stored():
    def launcher(x):
        out = torch.empty_like(x)
        twice[(x.numel() // 64,)](x, out, x.numel())
        return out

    assert "the grid of twice is (0, 1, 1), which has 0 programs" in replayed(launcher, torch.ones(63)).refused
    assert replayed(launcher, torch.ones(64)).refused == ""


def test_a_recording_runs_without_a_meter_too():
    """As on a GPU, where values come from compiled kernels."""
    inputs, storages = inputs_of([torch.arange(4.0)], {})
    recording = read(record(launch_twice, *inputs.zeros()).to_dict(), inputs.sizes, admit(CELL).kernels)
    assert execute_compiled(recording, admit(CELL), storages).tolist() == [0.0, 2.0, 4.0, 6.0]


VALID = record(lambda x: (launch_twice(x.clone()), launch_twice(x).sum(0)), [torch.zeros(4, 3)], {}).to_dict()
KERNELS = admit(CELL).kernels
JUNK = (
    None,
    True,
    -1,
    1 << 62,
    1e300,
    float("nan"),
    "",
    "float32",
    "twice",
    [],
    [1],
    {},
    {"kind": "view"},
    [[[]]],
    {"kind": "launch"},
)


def spots(data, path=()):
    """Every spot in a nested recording."""
    yield path
    children = enumerate(data) if isinstance(data, list) else data.items() if isinstance(data, dict) else ()
    for key, value in children:
        yield from spots(value, (*path, key))


@given(st.sampled_from(list(spots(VALID))), st.sampled_from(JUNK), st.sampled_from(["set", "drop", "double"]))
@settings(max_examples=400)
def test_a_damaged_recording_is_read_whole_or_refused(path, junk, how):
    recording = copy.deepcopy(VALID)
    at = recording
    for key in path[:-1]:
        at = at[key]
    if not path:
        recording = junk
    elif how == "drop":
        del at[path[-1]]
    elif how == "double" and isinstance(at, list):
        at.insert(path[-1], at[path[-1]])
    else:
        at[path[-1]] = junk
    try:
        found = read(recording, [48], KERNELS)
    except RecordingRefused:
        return
    assert json.loads(json.dumps(found.to_dict())) == json.loads(json.dumps(recording))
    answer, _ = perform({"cell": CELL, "recording": recording, "inputs": msgspec.to_builtins(inputs_of([torch.ones(4, 3)], {})[0]), "l2": None,
                         "execute": True}, [bytes(48)])  # fmt: skip
    assert answer["refused"] or answer["launches"]


def strided(storage=1, shape=(4,), strides=(1,), offset=0, dtype="float32"):
    shape, strides = list(shape), list(strides)
    return {"kind": "view", "storage": storage, "dtype": dtype, "shape": shape, "strides": strides, "offset": offset}


def forged(*middle, outputs=None, out=None):
    launch = {"kind": "launch", "kernel": "twice", "grid": [1, 1, 1], "constants": {"BLOCK": 64}, "options": {}}
    launch["arguments"] = {"x": strided(0), "out": out or strided(), "n": 4, "factor": 2.0}
    return {
        "steps": [{"kind": "allocate", "dtype": "float32", "elements": 4}, *middle, launch],
        "outputs": outputs or strided(),
    }


FORGED = {
    "a view beyond its storage": (forged(out=strided(shape=(5,))), "outside of its storage"),
    "a stride beyond its storage": (forged(out=strided(shape=(2,), strides=(4,))), "outside of its storage"),
    "an offset beyond its storage": (forged(out=strided(offset=1)), "outside of its storage"),
    "a larger dtype": (forged(out=strided(dtype="float64")), "outside of its storage"),
    "an unknown dtype": (forged(out=strided(dtype="object")), "Invalid enum value 'object'.*steps.1..arguments"),
    "a negative stride": (forged(out=strided(strides=(-1,))), "Expected `int` >= 0.*strides.0"),
    "a bool for a number": (forged(out=strided(offset=True)), "Expected `int`, got `bool`.*offset"),
    "too many elements": (forged(out=strided(shape=(1 << 40,), strides=(0,))), "elements"),
    "a write into an input": (forged({"kind": "fill", "to": strided(0), "value": 1}), "in place"),
    "a write to overlapping elements": (forged({"kind": "fill", "to": strided(strides=(0,)), "value": 1}), "overlap"),
    "a copy of another shape": (forged({"kind": "copy", "to": strided(), "source": strided(0, (2,))}), "different shapes"),
    "a sum of an input": (forged({"kind": "sum", "to": strided(shape=()  , strides=()), "source": strided(0), "dimensions": [0], "keepdim": False}), "no kernel wrote"),
    "a fill that is text": (forged({"kind": "fill", "to": strided(), "value": "1"}), "got `str`.*value"),
    "an output that is an input": (forged(outputs=strided(2)), "a tensor in storage 2 of 2"),
    "outputs nested without end": (forged(outputs=[[[[[[[strided()]]]]]]]), "got `array`.*outputs"),
    "many outputs": (forged(outputs=[[strided()] * 40] * 2), "65 tensors"),
    "a step more": (forged({"kind": "launch"}), "missing required field `kernel`.*steps.1"),
    "a key more": (forged({"kind": "fill", "to": strided(), "value": 1, "more": 1}), "unknown field `more`.*steps.1"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_recording_is_refused(name):
    recording, says = FORGED[name]
    with pytest.raises(RecordingRefused, match=says):
        read(recording, [16], KERNELS)


def packed(x):
    out = x.new_zeros(x.shape[0], 16)[:, : x.shape[1]]
    out.copy_(x)
    return launch_twice(out)


def row_by_row(x):
    out = x.new_empty(x.shape[1], x.shape[0])
    for i in range(x.shape[0]):
        out[:, i] = x[i]
    return launch_twice(out)


def turned(x):
    out = x.new_empty(x.shape[1], x.shape[0])
    out.t().copy_(x)
    return launch_twice(out)


def summed(arrange):
    def launcher(x):
        return arrange(launch_twice(x))

    return launcher


def skewed(x):
    """Rows of a skewed view begin below each other's ends: its strides descend, and its elements interleave."""
    rows, columns = x.shape
    wide, out = x.new_empty(3 * rows * columns), x.new_empty(3 * rows, rows)
    wide[rows * columns : 2 * rows * columns] = launch_twice(x).view(-1)
    source = wide.as_strided((rows, columns + rows - 1), (columns + 1, 1), rows * columns + 1 - rows)
    out.as_strided(source.shape, (rows + 1, rows), 0).copy_(source)
    return out


def repeated_and_viewed(x):
    y = launch_twice(x).view(1, -1)
    return y.expand(3, -1).contiguous().as_strided((3, 8), (25, 3))


def repeated_and_picked(x):
    return repeated_and_viewed(x).clone(memory_format=torch.contiguous_format)


def doubled_and_picked(x):
    y = x.new_empty(4 * 24)
    y[:24] = launch_twice(x).view(-1)
    y[24:48] = y[:24]
    y[48:] = y[:48]
    return y.as_strided((3, 8), (25, 3)).clone(memory_format=torch.contiguous_format)


def shuffled(x):
    now = launch_twice(x).view(-1)
    for _ in range(2):
        after = torch.empty_like(now)
        after[:12], after[12:] = now[::2], now[1::2]
        now = after
    return now


def summed_from_a_shuffle(x):
    y, now = torch.empty(24), launch_twice(x).view(-1)
    y[:12], y[12:] = now[::2], now[1::2]
    return y.view(2, 12).sum(0)


ARRANGED = {
    "contiguous": lambda x: launch_twice(x.contiguous()),
    "contiguous, viewed": lambda x: launch_twice(x.reshape(1, -1, 1).clone()),
    "cast": lambda x: launch_twice(x.t().to(torch.float64)),
    "a slice": lambda x: launch_twice(x[1:, :2].clone()),
    "repeated": lambda x: launch_twice(x[:, 0].expand(3, -1).contiguous()),
    "padded": packed,
    "cast after it was padded": lambda x: packed(x).to(torch.float64),
    "cast after it was put together": lambda x: launch_twice(x[:, 0].expand(3, -1).contiguous().double()),
    "partial sums": summed(lambda y: y.sum(0)),
    "sums of rows of a part": summed(lambda y: y[1:, :2].sum(-1, keepdim=True)),
    "partial sums of a transposed view": summed(lambda y: y.t().sum(1)),
    "a sum of everything": summed(lambda y: y.t().sum()),
}
REARRANGED = {
    "a transpose made contiguous": lambda x: launch_twice(x.t().contiguous()),
    "a transpose of a batch": lambda x: launch_twice(x.reshape(2, -1, 3).transpose(0, 1).contiguous()),
    "a transposed target": turned,
    "the transpose of a result": lambda x: launch_twice(x).t().contiguous(),
    "a sum over one axis of a transposed view": summed(lambda y: y.t().unsqueeze(-1).sum(-1)),
    "a sum that keeps its axis": summed(lambda y: y.reshape(2, 4, 3).transpose(1, 2).sum(0, keepdim=True)),
    "a sum of repeated elements": summed(lambda y: y.expand(2, -1, -1).sum(0)),
    "a sum along diagonals": summed(lambda y: y.as_strided((3, 5, 4), (3, 1, 4)).sum(-1)),
    "a skewed view": skewed,
    "overlapping windows": lambda x: launch_twice(x.view(-1).unfold(0, 3, 1).contiguous()),
    "repeated, then picked": repeated_and_picked,
    "repeated, then returned as a view": repeated_and_viewed,
    "doubled, then picked": doubled_and_picked,
    "shuffled in steps": shuffled,
    "a sum of what was shuffled": summed_from_a_shuffle,
}


@pytest.mark.parametrize("name", ARRANGED)
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_torch_may_copy_in_order_and_make_an_argument_contiguous(name, layout):
    x = torch.arange(24.0).reshape(8, 3) if layout == "contiguous" else torch.arange(24.0).reshape(3, 8).t()
    answer = replayed(ARRANGED[name], x)
    assert answer.refused == ""


@pytest.mark.parametrize("name", REARRANGED)
def test_torch_may_not_rearrange(name):
    answer = replayed(REARRANGED[name], torch.arange(24.0).reshape(8, 3))
    assert "rearranges elements with torch" in answer.refused


@pytest.mark.parametrize("shape", [(5, 3), (1, 1), (4, 1)])
def test_a_returned_view_with_gaps_keeps_the_order_of_its_axes(shape):
    """Between the elements of a padded result nothing is sent; a transposed view of it stays one."""

    def launcher(x, transposed):
        wide = x.new_empty(x.shape[0], 7)
        twice[(1,)](x, wide, wide.numel())
        part = wide[:, : x.shape[1]]
        return part.t() if transposed else part

    x = torch.arange(35.0).reshape(5, 7)[: shape[0], : shape[1]]
    straight, turned = (replayed(launcher, x, each).outputs for each in (False, True))
    assert straight.is_contiguous() and turned.shape == (shape[1], shape[0])
    assert turned.is_contiguous() == (1 in shape)
    assert turned.tolist() == straight.t().tolist()


def test_copied_bytes_count_as_a_kernels_only_as_far_as_they_were_copied():
    """A kernel's large tensor does not vouch for a copy of the input that got one element of it."""

    def launcher(x):
        out, dummy = x.clone(), launch_twice(x)
        twice[(1,)](dummy, out, 0)
        out[0] = dummy[0]
        return out

    assert "returns a copy of its input" in replayed(launcher, torch.ones(128)).refused


def test_nor_piece_by_piece():
    assert replayed(row_by_row, torch.ones(8, 3)).refused == ""
    assert "copies or sums with torch more than 32 times" in replayed(row_by_row, torch.ones(33, 3)).refused


def number_by_number(x):
    out = launch_twice(x)
    for i, number in enumerate((1.5, 2.5)):
        out[i] = number
    return out


def test_limits_hold_and_say_what_they_are():
    def refused(launcher, **limits):
        with pytest.raises(RecordingRefused) as error:
            read(record(launcher, [torch.zeros(640)], {}).to_dict(), [2560], KERNELS, RecordingLimits(**limits))
        return str(error.value)

    assert "2 steps, at most 1" in refused(launch_twice, steps=1)
    assert "fills tensors with numbers more than 1 times" in refused(number_by_number, fills=1)
    assert "10 programs" in refused(launch_twice, programs=9)
    assert "1 launches" in refused(launch_twice, launches=0)
    assert "allocates" in refused(launch_twice, allocated_bytes=100)
    assert "640 elements" in refused(launch_twice, elements=600)
    assert "returns" in refused(launch_twice, output_bytes=100)


MISTYPED = [
    {"more": 1}, {"torch_bytes": "1"}, {"torch_bytes": True}, {"text": None}, {"refused": [1]}, {"launches": {}},
    {"traffic": None}, {"traffic": {"launches": [{"name": "twice"}]}}, {"traffic": {"l2": {"size_bytes": 1}}},
    {"traffic": {"launches": [{"name": "twice", "grid": [1, 1]}]}}, {"outputs": 1}, {"outputs": {"kind": "fill"}},
    {"outputs": strided(0) | {"storage": -1}}, {"outputs": [[[[[[strided(0)]]]]]]}, {"outputs": strided(0, (5,))},
    {"outputs": strided(1)},
]  # fmt: skip


@pytest.mark.parametrize("tree", MISTYPED, ids=str)
def test_an_answer_holds_what_an_answer_holds_and_nothing_else(tree):
    assert answer_from({"outputs": strided(0)}, [bytes(16)]).outputs.tolist() == [0.0] * 4
    with pytest.raises((msgspec.ValidationError, IndexError, RuntimeError)):
        answer_from(tree, [bytes(16)])


@pytest.fixture(scope="module")
def server():
    """The executing process that stands beside a notebook on a GPU."""
    yield replay_server.ask
    replay_server._SERVER.end()


def asked(launcher, cell=CELL):
    inputs, storages = inputs_of([torch.ones(4)], {})
    return question(cell, record(launcher, *inputs.zeros()), inputs, storages, None)


def test_a_process_of_its_own_answers_the_same(server):
    tree, buffers = server(*asked(launch_twice), 600)
    assert answer_from(tree, buffers).outputs.tolist() == [2.0] * 4


def test_a_loop_without_end_ends_and_the_next_is_answered(server):
    endless = CELL.replace("    values =", "    while n > 0:\n        n += 0\n    values =", 1)
    assert "did not end within 1 s" in server(*asked(launch_twice, endless), 1)[0]["refused"]
    assert server(*asked(launch_twice), 600)[0]["outputs"]


def test_a_question_that_is_too_large_says_so_and_the_next_is_answered(server):
    with pytest.raises(ProcessLost, match="was not asked: a value of .* MiB is too large"):
        server({"source": " " * frames.FrameLimits().tree_bytes}, [], 600)
    assert server(*asked(launch_twice), 600)[0]["outputs"]


def test_a_process_that_dies_says_so_and_the_next_is_answered(server):
    tree, buffers = asked(launch_twice)
    tree["inputs"] = None  # nothing that `_judge` would send
    assert "ended the process that ran it" in server(tree, buffers, 600)[0]["refused"]
    os.kill(replay_server._SERVER.process.pid, signal.SIGKILL)
    replay_server._SERVER.process.wait()
    assert server(*asked(launch_twice), 600)[0]["outputs"]
