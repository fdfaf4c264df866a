"""A launch as plain data: there and back through strict JSON."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.inner import interpreter
from threeloops.inner.launches import DescriptorArgument, FunctionName, Launch, TensorArgument

interpreter.enable_without_gpu()

import triton
import triton.language as tl


@triton.jit
def negate(x):
    return -x


NAMES = st.text("abcxyz_", min_size=1, max_size=4)
SIZES = st.lists(st.integers(0, 2**40), max_size=4).map(tuple)
TENSORS = st.builds(
    TensorArgument,
    dtype=st.sampled_from(["float16", "bfloat16", "float8_e4m3fn", "fp8e4b15"]),
    shape=SIZES,
    strides=SIZES,
    storage=st.integers(0, 9),
    offset=st.integers(0, 99),
    storage_bytes=st.integers(0, 2**40),
    alignment=st.sampled_from([1, 2, 4, 8, 16]),
)
DESCRIPTORS = st.builds(DescriptorArgument, TENSORS, SIZES, SIZES, SIZES, st.sampled_from(["zero", "nan"]))
NUMBERS = st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False)
ARGUMENTS = st.recursive(TENSORS | DESCRIPTORS | NUMBERS, lambda inner: st.lists(inner, max_size=3).map(tuple))
SPECIAL = st.sampled_from([tl.float16, tl.bfloat16, tl.float8e4nv, tl.int1, FunctionName("module", "function")])
CONSTANTS = st.recursive(NUMBERS | st.text(max_size=5) | SPECIAL, lambda inner: st.lists(inner, max_size=3).map(tuple))
LAUNCHES = st.builds(
    Launch,
    name=NAMES,
    grid=st.tuples(*[st.integers(0, 2**31 - 1)] * 3),
    arguments=st.dictionaries(NAMES, ARGUMENTS, max_size=3),
    constants=st.dictionaries(NAMES, CONSTANTS, max_size=3),
    options=st.dictionaries(NAMES, st.integers(1, 8) | st.none(), max_size=2),
    module=NAMES,
    file=NAMES,
    line=st.integers(1, 999),
    kernel=st.just(negate),
)


@given(LAUNCHES)
def test_a_launch_survives_json(launch):
    text = json.dumps(launch.to_dict(), allow_nan=False)
    again = Launch.from_dict(json.loads(text))
    assert again == launch
    assert again.kernel is None
    assert again.to_dict() == launch.to_dict()


def launch(**constants):
    return Launch("kernel", (1, 1, 1), {}, constants, {}, "module", "file", 1)


def test_a_function_is_written_by_its_name():
    again = Launch.from_dict(launch(ACTIVATION=negate).to_dict())
    assert again.constants["ACTIVATION"] == FunctionName(__name__, "negate")


def test_types_are_kept():
    kinds = (True, 1, 1.0, math.inf, -math.inf, "1", None, tl.float16)
    again = Launch.from_dict(json.loads(json.dumps(launch(KINDS=kinds).to_dict()))).constants["KINDS"]
    assert again == kinds
    assert [type(each) for each in again] == [type(each) for each in kinds]


def test_nan_is_kept():
    assert math.isnan(Launch.from_dict(launch(FILL=math.nan).to_dict()).constants["FILL"])


def test_what_cannot_be_written_is_named():
    with pytest.raises(TypeError, match=r"kernel, TABLE = \{1: 2\}: expected a number"):
        launch(TABLE={1: 2}).to_dict()


def test_the_number_of_programs():
    assert Launch("kernel", (3, 4, 5), {}, {}, {}, "module", "file", 1).programs == 60
