"""Each fault does what it says, and nothing else."""

import errno
import io
import math
import signal
import subprocess
import sys
import time

import pytest
import torch
from threeloops.module_process import command
from threeloops.training.checkpoint import LocalStore
from threeloops.training.elastic import (
    corrupt_gradient,
    flip_bit,
    flip_bit_in_file,
    full_disk,
    kill_once,
    slow_disk,
    torn_write,
)


def test_a_process_is_killed_once(tmp_path):
    folder = command("x")[-1]
    program = (
        f"import sys; sys.path.insert(0, {folder!r}); from threeloops.training.elastic.failures import kill_once; "
        f"kill_once({str(tmp_path / 'marker')!r})"
    )
    first = subprocess.run([sys.executable, "-c", program], timeout=60)
    assert first.returncode == -signal.SIGKILL and (tmp_path / "marker").exists()
    kill_once(tmp_path / "marker")  # and this process goes on


def test_a_torn_write_keeps_the_first_part(tmp_path):
    (tmp_path / "x").write_bytes(bytes(range(11)))
    torn_write(tmp_path / "x", keep=0.3)
    assert (tmp_path / "x").read_bytes() == bytes(range(3))
    with pytest.raises(ValueError, match="keep = 1"):
        torn_write(tmp_path / "x", keep=1)


@pytest.mark.parametrize("bit", [0, 7, 8, 23])
def test_a_bit_of_a_file_is_flipped(bit, tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    flip_bit_in_file(tmp_path / "x", bit)
    before, after = (int.from_bytes(data, "little") for data in (b"abc", (tmp_path / "x").read_bytes()))
    assert before ^ after == 1 << bit
    for wrong in (-1, 24):
        with pytest.raises(ValueError, match="bits 0 to 23"):
            flip_bit_in_file(tmp_path / "x", wrong)


@pytest.mark.parametrize("layout", [lambda x: x, lambda x: x.T, lambda x: x[:, 1:3]])
def test_a_bit_of_a_tensor_is_flipped(layout):
    x = layout(torch.arange(12.0).view(3, 4) + 1)
    before = x.clone()
    flip_bit(x, 4, 31)
    assert x.flatten()[4] == -before.flatten()[4]
    flip_bit(x, 4, 31)
    assert torch.equal(x, before)
    flip_bit(x, 0, 0)
    assert x.flatten()[0] == math.nextafter(1, 2) or x.flatten()[0] != before.flatten()[0]
    assert torch.equal(x.flatten()[1:], before.flatten()[1:])
    with pytest.raises(ValueError, match="element = 99"):
        flip_bit(x, 99, 0)
    with pytest.raises(ValueError, match="bit = 32"):
        flip_bit(x, 0, 32)
    flip_bit(scalar := torch.tensor(2.0), 0, 31)
    assert scalar == -2


def test_a_gradient_is_corrupted_in_one_backward():
    weight = torch.nn.Parameter(torch.ones(3))
    seen = []
    with corrupt_gradient(weight, lambda gradient: gradient.mul_(-2), step=1) as happened:
        for _ in range(3):
            weight.grad = None
            (weight * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
            seen.append(weight.grad.tolist())
    assert seen == [[1, 2, 3], [-2, -4, -6], [1, 2, 3]] and happened == [1]
    weight.grad = None
    weight.sum().backward()
    assert weight.grad.tolist() == [1, 1, 1]


def test_a_disk_is_full_after_so_many_bytes(tmp_path):
    (tmp_path / "disk").mkdir()
    with full_disk(tmp_path / "disk", remaining=10):
        with open(tmp_path / "disk" / "a", "wb") as file:
            file.write(b"1234567")
        with open(tmp_path / "elsewhere", "wb") as file:
            file.write(bytes(1000))
        assert (tmp_path / "disk" / "a").read_bytes() == b"1234567"
        with pytest.raises(OSError, match="No space left") as full, open(tmp_path / "disk" / "b", "wb") as file:
            file.write(b"abcdef")
        assert full.value.errno == errno.ENOSPC
    assert (tmp_path / "disk" / "b").read_bytes() == b"abc", "what fitted was written"
    with open(tmp_path / "disk" / "b", "wb") as file:
        file.write(bytes(100))
    assert (tmp_path / "disk" / "b").stat().st_size == 100


def write_bytes(folder, data):
    (folder / "x").write_bytes(data)


def path_open(folder, data):
    with (folder / "x").open("xb") as file:
        file.write(data)


def local_store(folder, data):
    store = LocalStore(folder)
    store.begin("step 1")
    store.write("step 1", "x", [memoryview(data)[:4], memoryview(data)[4:]])


@pytest.mark.parametrize("write", [write_bytes, path_open, local_store])
def test_files_that_pathlib_opens_are_on_the_same_disk(write, tmp_path):
    with full_disk(tmp_path, remaining=10), pytest.raises(OSError, match="No space left"):
        write(tmp_path, b"0123456789abc")
    (written,) = tmp_path.rglob("x")
    assert written.read_bytes() == b"0123456789"
    with slow_disk(tmp_path / "slow", bandwidth=10_000):
        (tmp_path / "slow").mkdir()
        begin = time.perf_counter()
        write(tmp_path / "slow", bytes(1000))
        assert time.perf_counter() - begin >= 0.1
    assert io.open is open and (tmp_path / "x").write_bytes(bytes(100)) == 100


def test_a_disk_is_slow(tmp_path):
    with slow_disk(tmp_path, bandwidth=10_000):
        begin = time.perf_counter()
        with open(tmp_path / "a", "wb") as file:
            file.write(bytes(1000))
        assert time.perf_counter() - begin >= 0.1
    assert (tmp_path / "a").stat().st_size == 1000
    with pytest.raises(ValueError, match="bandwidth = 0"):
        slow_disk(tmp_path, 0)
