"""The socket between the two processes: what arrives, and what is refused."""

import queue
import re
import socket
import struct
import time

import msgspec
import pytest
import torch
from decoding import random_model
from real_service import PATIENCE
from threeloops.product.decode import PagedCache
from threeloops.product.disaggregated.real import BlockLink, CacheFormat, HandoverError
from threeloops.product.disaggregated.real.messages import Blocks, FromDecode, FromPrefill, Received, Reserve
from threeloops.product.request import Sampling
from threeloops.product.service.engine.messages import Submit

HEAD = struct.Struct("<IQ")


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE)
    yield ours, theirs
    ours.close()
    theirs.close()


def started(end, kind=FromPrefill, most=1 << 20):
    heard, lost = queue.SimpleQueue(), queue.SimpleQueue()
    link = BlockLink(end, kind, most)
    link.start(lambda *message: heard.put(message), lost.put)
    return link, heard, lost


@pytest.mark.parametrize("size", [0, 1, 3, 70_001])
def test_messages_and_their_blocks_arrive_in_order(ends, size):
    sender, _, _ = started(ends[0], FromDecode)
    _, heard, _ = started(ends[1])
    messages = [Reserve(Submit(7, (1, 2, 3), Sampling(temperature=0.5, stop=frozenset({4})))), Blocks(7, 0, 1, 0, 2)]
    for place, message in enumerate(messages):
        sender.send(message, bytes([place + 1]) * size)
    for place, message in enumerate(messages):
        assert heard.get(timeout=PATIENCE) == (message, bytes([place + 1]) * size)
    assert sender.sent_bytes == 2 * size


def test_sending_does_not_wait_for_the_reader(ends):
    """A socket takes some 200 KiB before its reader takes any of it."""
    sender, _, _ = started(ends[0], FromDecode)
    began = time.monotonic()
    for _ in range(64):
        sender.send(Blocks(1, 0, 1, 0, 1), bytes(1 << 18))
    assert time.monotonic() - began < 5
    _, heard, _ = started(ends[1])
    assert all(len(heard.get(timeout=PATIENCE)[1]) == 1 << 18 for _ in range(64))


BODY = msgspec.msgpack.encode(Blocks(1, 0, 1, 0, 1))
WRONG = {
    "no message": (HEAD.pack(5, 0) + b"\xc1junk", "a frame of 5 bytes is not a message"),
    "another side's message": (HEAD.pack(1 + len(BODY), 0) + BODY + b"\0", "is not a message"),
    "a message of 4 GiB": (HEAD.pack(2**32 - 1, 0), "message of 4,294,967,295 bytes and blocks of 0: expected at most"),
    "blocks of 2^63 bytes": (HEAD.pack(len(BODY), 2**63) + BODY, "9,223,372,036,854,775,808: expected at most .* 67"),
    "a field of the wrong type": (
        HEAD.pack(len(wrong := BODY.replace(b"\xa5first\x00", b"\xa5first\xc3")), 0) + wrong,
        "Expected `int`, got `bool`",
    ),
    "cut in the header": (HEAD.pack(1, 0)[:5], "the other process has ended"),
    "cut in the message": (HEAD.pack(len(BODY), 67) + BODY[:-1], f"in the middle of a message of {len(BODY) + 67}"),
    "cut in the blocks": (HEAD.pack(len(BODY), 67) + BODY + bytes(66), "in the middle of a message"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_frame_ends_the_link_with_a_reason(ends, case):
    data, reason = WRONG[case]
    _, heard, lost = started(ends[1], most=67)
    ends[0].sendall(data)
    if case.startswith("cut"):
        ends[0].shutdown(socket.SHUT_WR)
    words = lost.get(timeout=PATIENCE)
    assert heard.empty()
    assert re.search(reason, words), words
    assert ends[0].recv(1) == b"", "the other side is told"


def test_the_end_of_the_other_process_comes_after_its_last_message(ends):
    _, heard, lost = started(ends[1], FromDecode)
    sender = BlockLink(ends[0], FromPrefill, 0)
    sender.send_now(Received(3))
    sender.close()
    assert lost.get(timeout=PATIENCE) == "the other process has ended"
    assert heard.get(timeout=PATIENCE) == (Received(3), b"")


FORMAT = CacheFormat(1, "ab", layers=2, kv_heads=2, head_dim=16, block_size=8, dtype="float32")


OTHERS = {
    "version": 2,
    "weights": "ac",
    "layers": 3,
    "kv_heads": 1,
    "head_dim": 8,
    "block_size": 16,
    "dtype": "bfloat16",
}


@pytest.mark.parametrize("changes", [{name: OTHERS[name]} for name in OTHERS] + [OTHERS], ids=str)
def test_caches_that_differ_are_refused_with_all_names_and_values(changes):
    FORMAT.check_equal(FORMAT)
    with pytest.raises(HandoverError) as refused:
        FORMAT.check_equal(msgspec.structs.replace(FORMAT, **changes))
    for name, value in changes.items():
        assert f"{name} is {getattr(FORMAT, name)!r} here and {value!r} there" in str(refused.value)
    assert str(refused.value).count(" here and ") == len(changes)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_blocks_are_written_as_they_were_read(dtype):
    model = random_model(layers=3, kv_heads=2, heads=4)
    ours, theirs = (PagedCache(model.config, 7, 5, dtype=dtype, device="cpu") for _ in range(2))
    ours._pool.copy_(torch.arange(ours._pool.numel()).view(ours._pool.shape) % 251)
    assert ours.block_bytes == 5 * 2 * 2 * model.config.head_dim * dtype.itemsize
    whole = ours.read_blocks([6, 0, 2])
    assert len(whole) == 3 * 3 * ours.block_bytes and ours.layers == range(3)
    theirs.write_blocks([1, 3, 4], bytearray(whole))
    for layer in range(3):
        for source, destination in [(6, 1), (0, 3), (2, 4)]:
            found = theirs._pool[layer, destination * 5 : destination * 5 + 5]
            assert found.equal(ours._pool[layer, source * 5 : source * 5 + 5])
    untouched = theirs._pool[:, [*range(5), *range(10, 15), *range(25, 35)]]
    assert not untouched.any()
    assert bytes(ours.read_blocks([6, 0], range(1, 2))) == bytes(whole[3 * ours.block_bytes : 5 * ours.block_bytes])
    theirs.write_blocks([0], bytearray(ours.read_blocks([5], range(2, 3))), range(2, 3))
    assert theirs._pool[2, :5].equal(ours._pool[2, 25:30]) and not theirs._pool[:2, :5].any()
    with pytest.raises(
        ValueError, match=rf"{len(whole)} bytes for 2 blocks in 3 layers: expected {len(whole) * 2 // 3}"
    ):
        theirs.write_blocks([1, 3], bytearray(whole))
