"""`replay` in a notebook on a GPU: values from compiled kernels there, traffic from a process that interprets them."""

import importlib.util

import pytest
import torch
from threeloops.inner import interpreter
from threeloops.lab import CheckFailed, replay

pytestmark = pytest.mark.gpu

CELL = """\
import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, 2 * tl.load(x + offsets, mask=offsets < n), mask=offsets < n)


def doubled(x):
    out = torch.empty_like(x)
    assert x.is_cuda
    double_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out


def by_torch(x):
    return x * 2
"""


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    if interpreter.interpreted():
        pytest.skip("kernels are interpreted in this process")
    path = tmp_path_factory.mktemp("cells") / "a_gpu_cell.py"
    path.write_text(CELL)
    spec = importlib.util.spec_from_file_location("a_gpu_cell", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_values_come_from_the_gpu_and_traffic_from_the_meter(cell):
    x = torch.arange(100.0, device="cuda")
    run = replay(cell.doubled, x).require(2 * x)
    assert run.outputs.is_cuda and torch.equal(run.outputs, 2 * x)
    assert run.traffic.total.unique_bytes == 800
    assert torch.equal(x, torch.arange(100.0, device="cuda"))


def test_refusals_are_the_same(cell):
    with pytest.raises(CheckFailed, match="torch made, by torch.mul"):
        replay(cell.by_torch, torch.ones(3, device="cuda"))
