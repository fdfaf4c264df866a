"""The codec and the channel: what is plain data comes back the same, and nothing else comes back at all."""

import json
import math
import socket
import struct
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from threeloops_grader.transport.link import LIMITS, FrameLink, LinkDead, WallError
from threeloops_grader.transport.wire import _MAX_DEPTH, _NUMPY, _TORCH, decode, encode


class Plain:
    """The codec for plain values: everything else is refused."""

    def encode_tensor(self, tensor):
        return None

    def encode_record(self, value):
        return False

    def encode_object(self, value, inner):
        raise WallError(f"{type(value).__name__} is no plain value")

    def decode_tensor(self, tensor, grad):
        return tensor

    def decode_record(self, module, name, fields):
        raise WallError("no records here")

    def decode_object(self, tag, value, decode):
        raise WallError("unknown tag")


@pytest.fixture
def links():
    """Both ends of a channel, each with ten minutes to live."""
    ours, theirs = (FrameLink(end) for end in socket.socketpair())
    ours.deadline = theirs.deadline = time.monotonic() + 600
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def raw():
    """A channel whose other end is a bare socket: what a hostile process holds."""
    theirs, ours = socket.socketpair()
    link = FrameLink(ours)
    link.deadline = time.monotonic() + 600
    yield theirs, link
    theirs.close()
    link.close()


def across(value):
    """`value` through the codec, a JSON text and the codec again."""
    buffers = []
    tree = json.loads(json.dumps(encode(value, buffers, Plain())))
    return decode(tree, [bytearray(b) for b in buffers], Plain())


def bits(tensor):
    return tensor.clone().reshape(-1, 1).contiguous().view(torch.uint8).tolist()


def same(a, b):
    """Equal in type and value, down to the sign of a zero and the bits of a tensor."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        alike = a.dtype == b.dtype and a.shape == b.shape
        return alike and bits(a) == bits(b)
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a.items(), b.items(), strict=True))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return a == b


keys = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.tuples(st.integers(), st.text(max_size=3))
arrays = hnp.arrays(
    st.sampled_from(list(_NUMPY.values())), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**300), 2**300)
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.binary(max_size=8)
    | st.complex_numbers(allow_nan=False)
    | st.sets(keys, max_size=3)
    | st.builds(slice, st.none() | st.integers(), st.none() | st.integers(), st.none() | st.integers())
    | st.builds(range, st.integers(-99, 99), st.integers(-99, 99), st.integers(1, 9))
    | arrays
    | arrays.map(lambda a: a.reshape(-1)[0] if a.size else np.float32(0))
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
tags = st.sampled_from("i t d s b c sl rg dt dv a g T r h pickled callback inout x".split())
trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from([*_TORCH, *_NUMPY]),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.sampled_from("i t d s b c sl rg dt dv a g T r h pickled callback inout x".split()), inner, max_size=2
        )
    ),
    max_leaves=20,
)


@given(values)
def test_plain_values_come_back_the_same(value):
    assert same(across(value), value)


@given(st.sampled_from(sorted(_TORCH)), st.lists(st.integers(0, 4), max_size=3), st.randoms(use_true_random=False))
def test_tensors_come_back_bit_for_bit(name, shape, random):
    dtype = getattr(torch, name)
    size = math.prod(shape) * dtype.itemsize
    content = bytes(random.randrange(2 if name == "bool" else 256) for _ in range(size))
    tensor = (
        torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    )
    assert same(across(tensor), tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
        torch.arange(24.0).reshape(4, 6)[:, ::2],
        torch.arange(24.0).reshape(4, 6)[1:3, 2],
    ],
    ids=["permuted", "every second column", "a column"],
)
def test_strides_survive(tensor):
    there = across(tensor)
    assert there.stride() == tensor.stride()
    assert there.tolist() == tensor.tolist()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
        (torch.tensor([1 + 2j]).conj().imag, torch.tensor([-2.0])),
        (torch.ones(1).expand(3), torch.ones(3)),
        (torch.arange(6.0).reshape(3, 2)[1:2, 1], torch.tensor([3.0])),
        (np.array([1.0, 2.0], ">f8"), np.array([1.0, 2.0])),
        (np.array([1, 256], ">i4"), np.array([1, 256], np.int32)),
        (np.asfortranarray([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 2.0], [3.0, 4.0]])),
        (np.arange(6.0)[::-2], np.array([5.0, 3.0, 1.0])),
        (torch.Size([2, 3]), (2, 3)),
        (torch.nn.Parameter(torch.ones(2), requires_grad=False), torch.ones(2)),
    ],
    ids=[
        "conjugate",
        "negated view",
        "expanded",
        "one of a column",
        "big-endian",
        "big-endian int",
        "Fortran",
        "reversed",
        "size",
        "parameter",
    ],
)
def test_views_and_byte_orders_arrive_as_what_they_mean(value, expected):
    assert same(across(value), expected)


def test_a_name_out_of_an_array_of_names_is_text():
    name = across(np.array(["fetch", "train"])[1])
    assert type(name) is str
    assert name == "train"


def test_dtypes_and_devices_cross():
    dtypes = [getattr(torch, name) for name in _TORCH]
    assert [across(dtype) for dtype in dtypes] == dtypes
    assert across(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize(
    "value", [object(), float, len, np.array([None]), np.array(["x"]), torch.eye(2).to_sparse(), iter("")]
)
def test_what_is_not_plain_is_left_to_the_side(value):
    with pytest.raises(WallError, match="no plain value"):
        across(value)


def test_subclasses_of_plain_types_are_not_plain():
    for kind, value in ((int, 3), (float, 3.0), (str, "3"), (list, [3]), (dict, {3: 3}), (tuple, (3,))):
        with pytest.raises(WallError):
            across(type("Yes", (kind,), {"__eq__": lambda self, other: True, "__hash__": None})(value))


def test_depth_and_digits_are_bounded():
    value = 0
    for _ in range(_MAX_DEPTH):
        value = [value]
    assert across(value) == value
    with pytest.raises(WallError, match="deep"):
        across([value])
    assert across(-(2**16383)) == -(2**16383)
    with pytest.raises(WallError, match="16385 bits"):
        across(2**16384)


TENSOR = {"T": ["float32", [2], 0, None, None]}
HOSTILE = {
    "unknown tag": {"x": 1},
    "two tags": {"t": [], "s": []},
    "no tag": {},
    "a tuple of text": {"t": "ab"},
    "a tuple of a tuple": {"t": {"t": []}},
    "a set of lists": {"s": [[]]},
    "a dict with an unhashable key": {"d": [[[], 1]]},
    "a dict with three columns": {"d": [[1, 2, 3]]},
    "an integer that is none": {"i": "0xfg"},
    "an integer of a number": {"i": 7},
    "an integer of a million digits": {"i": "f" * 1_000_000},
    "a slice of two": {"sl": [1, 2]},
    "a slice of text": {"sl": ["a", None, None]},
    "a range without steps": {"rg": [0, 9, 0]},
    "a range of floats": {"rg": [0.0, 9.0, 1.0]},
    "a range of truths": {"rg": [True, 9, 1]},
    "a complex number of text": {"c": ["x", 1]},
    "half a complex number": {"c": [1]},
    "bytes of no buffer": {"b": 9},
    "bytes of a negative buffer": {"b": -1},
    "bytes of a truth": {"b": True},
    "bytes of text": {"b": "0"},
    "one buffer, two values": [{"b": 0}, {"b": 0}],
    "an unknown dtype": {"dt": "float128"},
    "a dtype that is no text": {"dt": [1]},
    "an array of objects": {"a": ["object", [1], 0]},
    "an array of another size": {"a": ["float64", [2], 0]},
    "an array of negative size": {"a": ["float32", [-2], 0]},
    "an array of float size": {"a": ["float32", [2.0], 0]},
    "an array of 33 dimensions": {"a": ["float32", [1] * 33, 0]},
    "an array of too many elements": {"a": ["int8", [2**62, 4], 0]},
    "an array without a shape": {"a": ["float32", None, 0]},
    "a bool that is 7": {"a": ["bool", [8], 0]},
    "a tensor of an unknown dtype": {"T": ["complex32", [2], 0, None, None]},
    "a tensor of another size": {"T": ["float32", [3], 0, None, None]},
    "a tensor of bools that are 7": {"T": ["bool", [8], 0, None, None]},
    "a tensor with too few fields": {"T": ["float32", [2], 0]},
    "a tensor with stride 0": {"T": ["float32", [2], 0, None, [0]]},
    "a tensor with a negative stride": {"T": ["float32", [2], 0, None, [-1]]},
    "a tensor with too many strides": {"T": ["float32", [2], 0, None, [1, 1]]},
    "a tensor with a stride of text": {"T": ["float32", [2], 0, None, "11"]},
    "a tensor with an endless stride": {"T": ["float32", [2], 0, None, [2**40]]},
    "a record": {"r": ["os", "system", []]},
    "half a record": {"r": ["os"]},
    "a handle": {"h": [1, "object", "x"]},
    "a pickle": {"pickled": [0, []]},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_malformed_value_is_refused(name):
    with pytest.raises(WallError):
        decode(HOSTILE[name], [bytearray(b"\7" * 8)], Plain())


def test_the_well_formed_neighbour_is_not():
    assert decode(TENSOR, [bytearray(8)], Plain()).tolist() == [0.0, 0.0]


@given(trees, st.lists(st.binary(max_size=16), max_size=3))
@settings(max_examples=400)
def test_whatever_the_tree_only_a_refusal_is_raised(tree, buffers):
    try:
        decode(tree, [bytearray(b) for b in buffers], Plain())
    except WallError:
        return


def test_a_frame_crosses(links):
    ours, theirs = links
    ours.send({"a": [1, "é\ud800", None]}, [b"xy", b"", bytearray(3)])
    assert theirs.receive() == ({"a": [1, "é\ud800", None]}, [b"xy", b"", b"\0\0\0"])


def frame(text=b"{}", buffers=(), *, length=None, count=None, body=None):
    """A frame as the protocol has it, but for what its header claims."""
    claims = (len(text), len(buffers), sum(map(len, buffers)))
    given = (length, count, body)
    head = struct.pack("<IIQ", *(c if g is None else g for c, g in zip(claims, given, strict=True)))
    return head + struct.pack(f"<{len(buffers)}Q", *map(len, buffers)) + text + b"".join(buffers)


@pytest.mark.parametrize("length", range(len(frame(b'{"a":1}', [b"xyz"]))))
def test_a_truncated_frame_ends_the_link(raw, length):
    theirs, link = raw
    theirs.sendall(frame(b'{"a":1}', [b"xyz"])[:length])
    theirs.close()
    with pytest.raises(LinkDead, match="it ended"):
        link.receive()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (frame(length=LIMITS.tree_bytes + 1), "more than may cross between processes"),
        (frame(count=LIMITS.buffers + 1), "more than may cross between processes"),
        (frame(body=LIMITS.body_bytes + 1), "more than may cross between processes"),
        (frame(body=1), "broke the protocol"),
        (frame(buffers=[b"xyz"], body=2), "broke the protocol"),
        (frame(b"[]"), "broke the protocol"),
        (frame(b"1"), "broke the protocol"),
        (frame(b"{}}"), "broke the protocol"),
        (frame(b"\xff\xfe"), "broke the protocol"),
        (frame(b"[" * 50_000), "broke the protocol"),
        (frame(b'{"a":' * 10_000), "broke the protocol"),
        (frame(b'{"a":' + b"9" * 10_000 + b"}"), "broke the protocol"),
        (b"\xff" * 64, "more than may cross between processes"),
    ],
)
def test_what_is_no_frame_ends_the_link_for_good(raw, content, why):
    theirs, link = raw
    theirs.sendall(content + frame())
    for attempt in (link.receive, link.receive, lambda: link.send({})):
        with pytest.raises(LinkDead, match=why):
            attempt()


def test_a_frame_that_is_ready_is_too_late_after_the_deadline(raw):
    theirs, link = raw
    theirs.sendall(frame())
    link.deadline = time.monotonic() - 1
    with pytest.raises(LinkDead, match="no answer in time"):
        link.receive()


def test_a_peer_that_reads_nothing_does_not_hold_the_sender(raw):
    _, link = raw
    link.deadline = time.monotonic() + 0.1
    with pytest.raises(LinkDead, match="did not read its input in time"):
        link.send({}, [bytes(64 << 20)])


@pytest.mark.parametrize(
    ("tree", "buffers"),
    [
        ({"a": "x" * LIMITS.tree_bytes}, []),
        ({}, [b""] * (LIMITS.buffers + 1)),
        ({}, [memoryview(bytes(1 << 20))] * 513),
    ],
    ids=["tree", "buffers", "body"],
)
def test_what_is_too_large_is_refused_before_it_is_sent(links, tree, buffers):
    ours, theirs = links
    with pytest.raises(WallError, match="too large to cross between processes"):
        ours.send(tree, buffers)
    ours.send({"next": 1})
    assert theirs.receive() == ({"next": 1}, [])


@pytest.mark.parametrize("deadline", [True, False])
@pytest.mark.parametrize(
    "lengths",
    [[], [0], [1, 0, 2], [1 << 16], [1 << 15, 1 << 15, 0], [(1 << 16) + 1], [0, 1 << 16, 1], [16] * LIMITS.buffers],
    ids=lambda lengths: f"{len(lengths)} buffers of {sum(lengths)} bytes",
)
def test_small_and_large_frames_arrive_whole_and_one_after_the_other(links, lengths, deadline):
    """Up to 64 KiB a frame is sent at once, beyond that in parts; neither takes anything of the next one."""
    ours, theirs = links
    if not deadline:
        ours.deadline = None
    sent = [bytes([n % 251]) * size for n, size in enumerate(lengths)]
    sender = threading.Thread(target=lambda: [ours.send({"n": n}, sent) for n in range(2)], daemon=True)
    sender.start()
    for n in range(2):
        tree, buffers = theirs.receive()
        assert tree == {"n": n} and buffers == sent
        assert all(type(buffer) is bytearray for buffer in buffers)
    sender.join(600)


def test_a_frame_may_come_in_crumbs(raw):
    theirs, link = raw
    link.send({"here": "is"}, [b"what", b"", b"a frame is"])
    whole = theirs.recv(1 << 16)
    sender = threading.Thread(target=lambda: [theirs.send(whole[n : n + 1]) for n in range(len(whole))], daemon=True)
    sender.start()
    assert link.receive() == ({"here": "is"}, [b"what", b"", b"a frame is"])
    sender.join(600)


def test_refusals_are_no_ordinary_exceptions():
    """A test that expects "some exception" of the student's code must not be satisfied by the wall's own."""
    assert not issubclass(WallError, Exception)
    assert not issubclass(LinkDead, Exception)
