"""What the meter prints."""

import pytest
import torch
from threeloops.inner import interpreter

interpreter.enable_without_gpu()

import triton
import triton.language as tl
from threeloops.inner.meter import L2, meter

pytestmark = pytest.mark.skipif(
    not interpreter.interpreted(),
    reason="the meter counts what Triton's interpreter executes; kernels are compiled here",
)


@triton.jit
def saxpy_kernel(x, y, a, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(y + offsets, a * tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


@triton.jit
def unmasked_kernel(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1.0)


def saxpy(n=4096):
    saxpy_kernel[(triton.cdiv(n, 1024),)](torch.ones(n), torch.ones(n), 2.0, n, BLOCK=1024)


def cells(line):
    return [cell for cell in line.split("  ") if cell.strip()]


def test_requested_and_modelled_bytes_are_different_columns():
    with meter(L2(1 << 20, ways=8, resident_programs=6)) as traffic:
        saxpy()
        saxpy()
    header, _, row = traffic.report().splitlines()[:3]
    columns = dict(zip(map(str.strip, cells(header)), map(str.strip, cells(row)), strict=True))
    assert columns == {
        "kernel": "saxpy_kernel",
        "launches": "2",
        "programs": "8",
        "requested": "96 KiB",
        "unique": "96 KiB",
        "DRAM, modelled": "96 KiB",
        "sectors/request": "4.00",
        "FLOPs": "16.38 k",
        "of them dot": "0",
        "atomics": "0",
    }


def test_the_model_states_its_size_associativity_and_order():
    with meter(L2(1 << 20, ways=8, resident_programs=6)) as traffic:
        saxpy()
    (line,) = [line for line in traffic.report().splitlines() if line.startswith("L2 model")]
    for words in ("1 MiB", "8-way", "128 bytes", "32", "write-back", "x fastest", "6 resident", "least recently used"):
        assert words in line


def test_without_a_model_its_column_is_empty_and_the_report_says_how_to_get_one():
    with meter() as traffic:
        saxpy()
    text = traffic.report()
    assert cells(text.splitlines()[2])[5].strip() == "—"
    assert 'meter(l2="H100 SXM")' in text


def test_kernels_have_rows_of_their_own_and_a_total():
    with meter() as traffic:
        saxpy()
        unmasked_kernel[(1,)](torch.zeros(64), BLOCK=64)
    names = [line.split()[0] for line in traffic.report().splitlines()[2:5]]
    assert names == ["saxpy_kernel", "unmasked_kernel", "total"]


def test_arguments_are_listed():
    with meter() as traffic:
        saxpy()
    (line,) = [line for line in traffic.report().splitlines() if line.startswith("saxpy_kernel: y")]
    assert [cell.strip() for cell in cells(line)[1:]] == ["16 KiB"] * 4


def test_findings_come_last_and_repeated_ones_once():
    with meter() as traffic:
        saxpy()
        for _ in range(3):
            unmasked_kernel[(1,)](torch.zeros(60), BLOCK=64)
    text = traffic.report()
    assert text.count("out-of-bounds in unmasked_kernel") == 1
    assert "3 findings:" in text and "[3 launches]" in text
    with meter() as clean:
        saxpy()
    assert clean.report().endswith("findings: none")


def test_nothing_metered_is_said_so():
    with meter() as traffic:
        pass
    assert traffic.report() == "no launch was metered"
