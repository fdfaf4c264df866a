"""Frames over pipes, and channels; frames over sockets are tested with the wall's link."""

import os
import socket
import struct
import threading
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
    limits = frames.FrameLimits(tree_bytes=10, body_bytes=2, buffers=1)
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


def test_a_channel_gives_back_both_bodies_however_large_and_refuses_more_than_it_may_take():
    head = struct.Struct("<dIQ")
    ours, theirs = (frames.Channel(end) for end in socket.socketpair())
    for words, data in ((b"", b""), (b"ab", b"xyz"), (b"ab", b"x" * (1 << 20))):
        sender = threading.Thread(target=theirs.send, args=([head.pack(0.5, len(words), len(data)), words, data],))
        sender.start()
        assert ours.receive(head) == ((0.5, len(words), len(data)), words, data)
        sender.join()
    theirs.send([head.pack(0.5, 2, 1 << 40), b"ab"])
    with pytest.raises(frames.TooLarge, match=r"a message has 1,099,511,627,798 bytes: expected at most 1,000"):
        ours.receive(head, most=1000)
    theirs.send([b"a stack"])
    assert ours.rest(0.2) == b"a stack"
    theirs.close()
    with pytest.raises(EOFError, match="ended"):
        ours.receive(head)
