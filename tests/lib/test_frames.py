"""Frames over pipes; those over sockets are tested with the wall's link."""

import os
import time

import numpy as np
import pytest
from threeloops import frames


def test_messages_travel_whole_or_not_at_all():
    ours, theirs = os.pipe()
    try:
        frames.send(theirs, {"a": [1, None]}, [b"xyz", memoryview(np.arange(3))])
        tree, buffers = frames.receive(ours)
        assert tree == {"a": [1, None]} and buffers == [bytearray(b"xyz"), bytearray(np.arange(3).tobytes())]
        with pytest.raises(frames.Late):
            frames.receive(ours, time.monotonic())
        os.write(theirs, b"\xff" * 16)
        with pytest.raises(frames.FrameError, match="more than may cross between processes"):
            frames.receive(ours)
    finally:
        os.close(theirs)
    with pytest.raises(frames.FrameError, match="ended"):
        frames.receive(ours)
    os.close(ours)


def test_what_is_too_large_is_not_sent():
    ours, theirs = os.pipe()
    limits = frames.Limits(tree_bytes=10, body_bytes=2, buffers=1)
    for tree, buffers in (({"a": 12345678}, []), ({}, [b"abc"]), ({}, [b"a", b"b"])):
        with pytest.raises(frames.TooLarge, match="too large to cross between processes"):
            frames.send(theirs, tree, buffers, limits=limits)
    frames.send(theirs, {}, [b"ab"], limits=limits)
    os.close(theirs)
    assert frames.receive(ours, limits=limits) == ({}, [b"ab"])
    with pytest.raises(frames.FrameError, match="ended"):
        frames.receive(ours)
    os.close(ours)


def test_a_frame_can_also_be_bytes():
    for size in (3, 1 << 20):
        data = frames.to_bytes({"a": [1]}, [b"x" * size, b""])
        assert frames.from_bytes(data) == ({"a": [1]}, [b"x" * size, b""])
        for short in (data[:5], data[:-1]):
            with pytest.raises(frames.FrameError, match="ended"):
                frames.from_bytes(short)
    with pytest.raises(frames.FrameError, match="more than may cross"):
        frames.from_bytes(b"\xff" * 100)
