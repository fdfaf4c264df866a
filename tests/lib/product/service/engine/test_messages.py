"""Frames: whatever way the bytes arrive, the messages are those that were sent; what is none of ours is refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.frames import FrameReader, frame
from threeloops.product.request import Sampling, TokenLogprobs
from threeloops.product.service.engine.messages import (
    Cancel,
    Credit,
    Message,
    Submit,
    ToEngine,
    Tokens,
)

SAMPLINGS = st.builds(
    Sampling, st.just(3), st.floats(0, 2), seed=st.integers(0, 2**63 - 1), stop=st.frozensets(st.integers(0, 255)),
    logit_bias=st.lists(st.tuples(st.integers(0, 255), st.floats(-9, 9))).map(tuple), grammar=st.text(),
    logprobs=st.none() | st.integers(0, 20), prompt_logprobs=st.none() | st.integers(0, 20),
)  # fmt: skip
MESSAGES = st.one_of(
    st.builds(Cancel, st.integers(0, 2**40)),
    st.builds(Credit, st.integers(0, 9), st.integers(1, 99)),
    st.builds(
        Submit, st.integers(0, 9), st.lists(st.integers(0, 255)).map(tuple), SAMPLINGS, client=st.text(),
    ),
)  # fmt: skip


@given(st.lists(MESSAGES, max_size=5), st.integers(1, 50))
def test_messages_come_out_as_they_went_in_however_the_bytes_are_cut(messages, size):
    data = b"".join(map(frame, messages))
    reader = FrameReader(ToEngine)
    found = [each for start in range(0, len(data), size) for each in reader.feed(data[start : start + size])]
    assert found == messages


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x01\x00\x00\x00\xc1", frame(Tokens({1: [2]}))])
def test_bytes_that_are_no_message_to_the_engine_are_refused(data):
    with pytest.raises((ValueError, msgspec.DecodeError)):
        list(FrameReader(ToEngine).feed(data))


def test_a_message_of_either_direction_can_be_framed():
    logprobs = {3: [TokenLogprobs(-0.5, ((7, -0.25),)), TokenLogprobs(-1.0)]}
    for message in (Tokens({3: [1, 2]}), Tokens({3: [1, 2]}, logprobs)):
        assert list(FrameReader(Message).feed(frame(message))) == [message]
