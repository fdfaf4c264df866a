"""Recording launches: anybody's kernels, interpreted or compiled, and nothing left behind."""

import math
from threading import Thread

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.hardware import device
from threeloops.inner import interpreter
from threeloops.inner.launches import DescriptorArgument, Launch, TensorArgument, observe, record
from threeloops.inner.launches.binding import Storages

INTERPRETED = interpreter.enable_without_gpu()

import triton
import triton.language as tl
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

DEVICE = device()


@triton.jit
def negated(x):
    return -x


@triton.jit
def fill(out, n, value, BLOCK: tl.constexpr = 8, DTYPE: tl.constexpr = tl.float32):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.full([BLOCK], value, DTYPE), mask=at < n)


@triton.jit
def broken(out):
    tl.store(out, undefined)  # noqa: F821


@triton.jit
def takes_anything(a, b, c, d, FLAG: tl.constexpr, FUNCTION: "tl.constexpr", LIST: tl.constexpr = None):
    pass


@triton.jit
def takes_descriptor(block, other):
    pass


@triton.autotune([triton.Config({"BLOCK": 4}, num_warps=1), triton.Config({"BLOCK": 16}, num_warps=2)], key=["n"])
@triton.heuristics({"DTYPE": lambda arguments: tl.float32})
@triton.jit
def tuned(out, n, BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.full([BLOCK], BLOCK, DTYPE), mask=at < n)


compiled_fill = JITFunction(fill.fn)
"""A kernel to be compiled, which needs no GPU as long as nothing runs."""


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


class Notes:
    """An observer that writes down what it is told."""

    def __init__(self):
        self.told = []

    def before(self, launch, arguments):
        self.told.append(("before", launch, arguments))

    def after(self, launch):
        self.told.append(("after", launch))


def in_place():
    return JITFunction.run, InterpretedFunction.run, Autotuner.run, Autotuner._bench


def test_a_launch_is_recorded_and_executed():
    out = zeros(20)
    with record() as launches:
        assert launches == []
        fill[(3,)](out, 20, 2.5)
        assert len(launches) == 1
    assert (out == 2.5).all()
    (launch,) = launches
    assert (launch.name, launch.grid, launch.programs) == ("fill", (3, 1, 1), 3)
    tensor = TensorArgument("float32", (20,), (1,), storage=0, offset=0, storage_bytes=80, alignment=16)
    assert launch.arguments == {"out": tensor, "n": 20, "value": 2.5}
    assert launch.constants == {"BLOCK": 8, "DTYPE": tl.float32}
    assert launch.options == {}
    assert launch.kernel is fill and launch.module == __name__ and launch.file == __file__
    with open(launch.file) as source:
        assert source.readlines()[launch.line - 1].startswith("def fill(")


@pytest.mark.parametrize("kernel", [fill, compiled_fill], ids=["interpreted", "compiled"])
def test_large_shapes_cost_nothing_where_nothing_runs(kernel):
    out = torch.empty(2**20, 2**20, device="meta", dtype=torch.bfloat16)
    with record(execute=False) as launches:
        assert (
            kernel[lambda given: (triton.cdiv(given["n"], given["BLOCK"]), 2)](out[:, 1:], 2**40, 1, BLOCK=1024) is None
        )
    (launch,) = launches
    assert launch.grid == (2**30, 2, 1)
    expected = TensorArgument("bfloat16", (2**20, 2**20 - 1), (2**20, 1), 0, 1, 2**41, alignment=2)
    assert launch.arguments == {"out": expected, "n": 2**40, "value": 1}
    assert launch.kernel is kernel


def test_arguments_by_name_defaults_and_options():
    with record(execute=False) as launches:
        fill[(1,)](n=3, out=zeros(3), value=True, num_warps=tl.constexpr(2), num_stages=1, BLOCK=tl.constexpr(4))
    (launch,) = launches
    assert list(launch.arguments) == ["out", "n", "value"] and launch.arguments["value"] is True
    assert launch.constants == {"BLOCK": 4, "DTYPE": tl.float32}
    assert launch.options == {"num_warps": 2, "num_stages": 1}


def test_every_kind_of_argument():
    x = zeros(4)
    with record(execute=False) as launches:
        takes_anything[(1,)](
            None, (x, 2, (3.0, None)), tl.constexpr(5), negated, FLAG=True, FUNCTION=negated, LIST=(1, tl.int8)
        )
    (launch,) = launches
    tensor = launch.arguments["b"][0]
    assert launch.arguments == {"a": None, "b": (tensor, 2, (3.0, None))} and tensor.shape == (4,)
    assert launch.constants == {"c": 5, "d": negated, "FLAG": True, "FUNCTION": negated, "LIST": (1, tl.int8)}
    assert Launch.from_dict(launch.to_dict()).to_dict() == launch.to_dict()


def test_descriptors():
    base = zeros(8, 32, dtype=torch.float16)
    with record(execute=False) as launches:
        takes_descriptor[(1,)](TensorDescriptor.from_tensor(base, [4, 16]), base)
    (launch,) = launches
    tensor = launch.arguments["other"]
    assert launch.arguments["block"] == DescriptorArgument(tensor, (8, 32), (32, 1), (4, 16), "zero")


def test_a_reinterpreted_tensor_has_its_new_type():
    with record(execute=False) as launches:
        takes_descriptor[(1,)](triton.reinterpret(zeros(8, dtype=torch.int8), tl.float8e4nv), None)
    assert launches[0].arguments["block"].dtype == "float8_e4m3fn"


def test_storages_are_numbered_in_the_order_of_their_first_launch():
    x, y = zeros(8, 8), zeros(8)
    with record(execute=False) as launches:
        takes_descriptor[(1,)](x, y)
        takes_descriptor[(1,)](y, x.t()[3:])
    assert [each.storage for each in launches[0].arguments.values()] == [0, 1]
    second = launches[1].arguments
    assert (second["block"].storage, second["other"].storage) == (1, 0)
    assert (second["other"].shape, second["other"].strides, second["other"].offset) == ((5, 8), (1, 8), 3)


def test_a_storage_that_took_a_freed_one_s_place_has_a_number_of_its_own():
    with record(execute=False) as launches:
        for _ in range(20):
            takes_descriptor[(1,)](zeros(1000), None)
    assert [launch.arguments["block"].storage for launch in launches] == list(range(20))


def test_a_recording_keeps_no_tensor_alive():
    storages, x = Storages(), zeros(1000)
    assert storages.ordinal(x.untyped_storage()) == 0
    (reference,) = (each for _, each in storages._known.values())
    assert not reference.expired()
    del x
    assert reference.expired()


@given(st.integers(0, 40), st.sampled_from([torch.int8, torch.float16, torch.float32, torch.float64]))
def test_alignment_is_that_of_the_address(offset, dtype):
    x = torch.zeros(64, dtype=dtype, device=DEVICE)
    assert x.data_ptr() % 16 == 0
    with record(execute=False) as launches:
        takes_descriptor[(1,)](x[offset:], x.to("meta")[offset:])
    expected = math.gcd(offset * dtype.itemsize, 16) or 16
    assert [each.alignment for each in launches[0].arguments.values()] == [expected, expected]


def test_autotuned_and_heuristic_kernels_are_recorded_once_as_chosen():
    out = zeros(16)
    with record() as launches:
        tuned[lambda given: (triton.cdiv(16, given["BLOCK"]),)](out, 16)
    (launch,) = launches
    assert launch.name == "tuned" and launch.kernel is tuned.fn.fn
    assert launch.constants == {"BLOCK": tuned.best_config.kwargs["BLOCK"], "DTYPE": tl.float32}
    assert launch.options["num_warps"] == tuned.best_config.num_warps
    assert (out == launch.constants["BLOCK"]).all()


def test_an_autotuner_s_comparisons_are_run_and_not_recorded():
    ran = []

    def second_is_faster(call, quantiles):
        call()
        ran.append(call)
        return [float(3 - len(ran))] * 3

    kernel = triton.autotune(tuned.configs, key=["n"], do_bench=second_is_faster)(tuned.fn)
    out, notes = zeros(16), Notes()
    with record() as launches, observe(notes):
        kernel[(4,)](out, 16)
        kernel[(4,)](out, 16)
    assert len(ran) == 2 and [launch.constants["BLOCK"] for launch in launches] == [16, 16]
    assert len(notes.told) == 4


def test_what_an_autotuner_did_not_compare_it_does_not_remember():
    zeroed = triton.autotune(tuned.configs, key=["n"], reset_to_zero=["out"])(tuned.fn)
    out = torch.ones(16, device=DEVICE)
    with record(execute=False) as launches:
        zeroed[(1,)](out, 16)
    assert launches[0].constants["BLOCK"] == 4
    assert (out == 1).all() and zeroed.cache == {} and not hasattr(zeroed, "best_config")


@pytest.mark.parametrize("execute", [False, True] if INTERPRETED else [False])
def test_all_configurations_of_an_autotuner_are_recorded_by_name_its_choice_last(execute):
    out = torch.zeros(16)
    with record(configs="all", execute=execute) as launches:
        tuned[(1,)](out if execute else out.to("meta"), 16)
    configurations = [(each.configuration, each.constants["BLOCK"], each.chosen) for each in launches]
    assert configurations == [
        ("BLOCK=16, num_warps=2, num_stages=3", 16, False),
        ("BLOCK=4, num_warps=1, num_stages=3", 4, True),
    ]
    assert launches[0].title == "tuned[BLOCK=16, num_warps=2, num_stages=3]"
    assert out.tolist() == [4.0 * execute] * 4 + [0.0] * 12, "the memory is put back after each of the others"
    assert Launch.from_dict(launches[0].to_dict()) == launches[0]


def test_configurations_are_all_or_the_chosen_one():
    with pytest.raises(ValueError, match='configs = None: expected "chosen" or "all"'), record(configs=None):
        pass


def test_warmup_is_no_launch():
    if not INTERPRETED:
        pytest.skip("warming up compiles")
    with record() as launches:
        fill.warmup(torch.float32, 3, 1.0, grid=(1,))
    assert launches == []


MISTAKES = {
    "missing": (lambda out: fill[(1,)](out, 3), TypeError, "kernel fill: missing a required argument: 'value'"),
    "unknown": (lambda out: fill[(1,)](out, 3, 1.0, BLOK=4), TypeError, "kernel fill .* 'BLOK': did you mean BLOCK"),
    "one too many": (lambda out: broken[(1,)](out, 3), TypeError, "kernel broken: too many positional arguments"),
    "twice": (lambda out: broken[(1,)](out, out=out), TypeError, "kernel broken: multiple values for argument 'out'"),
    "numpy": (lambda out: fill[(1,)](out, np.int64(3), 1.0), TypeError, r"argument n is a int64.*pass n.item\(\)"),
    "list": (lambda out: fill[(1,)](out, [3], 1.0), TypeError, "argument n is a list"),
    "dtype": (lambda out: fill[(1,)](out, 3, tl.float16), TypeError, "annotate the parameter, value: tl.constexpr"),
    "in a tuple": (lambda out: fill[(1,)](out, (3, "x"), 1.0), TypeError, r"kernel fill: argument n\[1\] = 'x'"),
    "grid of halves": (lambda out: fill[(2.5,)](out, 3, 1.0), TypeError, r"kernel fill: grid = \(2.5,\)"),
    "number as a grid": (lambda out: fill[4](out, 3, 1.0), TypeError, "kernel fill: grid = 4: expected one to three"),
    "four dimensions": (lambda out: fill[(1, 1, 1, 1)](out, 3, 1.0), ValueError, "kernel fill: grid"),
    "negative": (lambda out: fill[lambda given: (-1,)](out, 3, 1.0), ValueError, r"kernel fill: grid = \(-1,\)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("execute", [True, False])
def test_mistakes_name_kernel_and_argument(mistake, execute):
    call, error, message = MISTAKES[mistake]
    before = in_place()
    with record(execute=execute) as launches, pytest.raises(error, match=message):
        call(zeros(4))
    assert launches == [] and in_place() == before


def test_a_grid_of_nothing_is_a_launch_of_no_programs():
    with record() as launches:
        fill[(np.int64(0),)](zeros(4), 4, 1.0)
    assert launches[0].programs == 0


def test_a_callable_grid_is_asked_once():
    asked = []
    with record():
        fill[lambda given: asked.append(given["n"]) or (1,)](zeros(4), 4, 1.0)
    assert asked == [4]


def test_nested_recordings_each_see_what_happens_inside_them():
    out = zeros(4)
    with record() as outer:
        fill[(1,)](out, 4, 1.0)
        with record() as inner:
            fill[(1,)](out, 4, 2.0)
        fill[(1,)](out, 4, 3.0)
    assert [launch.arguments["value"] for launch in outer] == [1.0, 2.0, 3.0]
    assert [launch.arguments["value"] for launch in inner] == [2.0]


def test_launches_that_do_not_run_are_seen_from_inside_only():
    out, outside, inside = zeros(4), Notes(), Notes()
    with record() as outer, observe(outside), record(execute=False) as dry, observe(inside), record() as inner:
        fill[(1,)](out, 4, 1.0)
    assert (out == 0).all()
    assert outer == [] and outside.told == []
    assert len(dry) == len(inner) == 1 and [each[0] for each in inside.told] == ["before", "after"]


def test_observers_get_the_arguments_as_passed_around_the_execution():
    out = zeros(4)

    class Watching(Notes):
        def before(self, launch, arguments):
            super().before(launch, arguments)
            assert (arguments["out"] == 0).all()

        def after(self, launch):
            super().after(launch)
            assert (out == 5).all()

    notes = Watching()
    with observe(notes):
        fill[(1,)](out, 4, 5.0)
    assert [each[0] for each in notes.told] == ["before", "after"]
    _, launch, arguments = notes.told[0]
    assert (
        arguments["out"] is out and arguments["BLOCK"] == 8 and set(arguments) == {*launch.arguments, *launch.constants}
    )
    assert notes.told[1][1] is launch


def test_a_kernel_that_fails_is_recorded_and_its_observers_are_told():
    before, notes = in_place(), Notes()
    with pytest.raises(Exception, match="undefined"), record() as launches, observe(notes):
        broken[(1,)](zeros(1))
    assert len(launches) == 1 and [each[0] for each in notes.told] == ["before", "after"]
    assert in_place() == before


def test_launches_of_other_threads_are_recorded():
    """Autograd computes gradients on a GPU in a thread of its own."""
    out = zeros(4)
    with record() as launches:
        thread = Thread(target=lambda: fill[(1,)](out, 4, 6.0))
        thread.start()
        thread.join()
    assert len(launches) == 1 and (out == 6).all()


def test_nothing_of_triton_is_touched_outside():
    before = in_place()
    with record():
        during = in_place()
        with record(execute=False), observe(Notes()):
            assert in_place() == during
        assert in_place() == during
    assert in_place() == before
    assert all(old is not new for old, new in zip(before, during, strict=True))
