"""Measured products below their roof, computed from the packed table and the data sheets by hand."""

import csv
import gzip
import io
from importlib.resources import files

import pytest
from threeloops.lab.drawings.measured import products

SHEETS = {"A100 SXM 80GB": (312e12, 2.039e12), "H100 SXM": (989.4e12, 3.35e12), "B200": (2250e12, 7.7e12)}
KEYS = {"A100 SXM 80GB": "a100_sxm", "H100 SXM": "h100_sxm", "B200": "b200_sxm"}


def by_rows(device, columns, depth, dtype="bfloat16"):
    packed = (files("threeloops.hardware.measured") / "tables" / "gemm.csv.gz").read_bytes()
    wanted = {"device": KEYS[device], "gemm_dtype": dtype, "n": str(columns), "k": str(depth)}
    lines = csv.DictReader(io.StringIO(gzip.decompress(packed).decode()))
    return {
        int(line["m"]): float(line["us"]) / 1e6
        for line in lines
        if line["tool"].startswith("trtllm") and all(line[key] == value for key, value in wanted.items())
    }


@pytest.mark.parametrize("device", sorted(SHEETS))
def test_seconds_and_shares_are_those_of_the_table(device):
    peak, bandwidth = SHEETS[device]
    for side in products.SIDES:
        expected = by_rows(device, side, side)
        got = products.product_seconds(device, side, side)
        assert got == pytest.approx(expected, rel=1e-12)
        assert list(got) == sorted(expected)
        for rows, seconds in expected.items():
            floor = max(2 * rows * side**2 / peak, 2 * (2 * rows * side + side**2) / bandwidth)
            assert products.share_of_roof(device, rows, side, side) == pytest.approx(floor / seconds)
    assert products.product_source(device).startswith(f"{device}, TensorRT-LLM 1.")
    assert products.product_source(device).endswith("not by us")


def test_rows_without_a_product_are_refused():
    with pytest.raises(LookupError, match="3000"):
        products.product_seconds("H100 SXM", 3000, 4096)


def test_what_lab_01_says():
    """Shares of 16, 61 and 81% with 16 rows; the deep product is 12% slower; the 257th row costs 21%."""
    shares = [100 * products.share_of_roof("H100 SXM", 16, side, side) for side in (1024, 4096, 8192)]
    assert shares == pytest.approx([16, 61, 81], abs=0.5)
    deep, wide = by_rows("H100 SXM", 4096, 16384)[256], by_rows("H100 SXM", 16384, 4096)[256]
    assert deep / wide == pytest.approx(1.117, abs=1e-3)
    square = by_rows("H100 SXM", 4096, 4096)
    assert square[257] / square[256] == pytest.approx(1.205, abs=1e-3)
    assert pytest.approx(10.0e-6, abs=0.05e-6) == 2 * 4096**2 / 3.35e12


@pytest.mark.parametrize("device", sorted(SHEETS))
@pytest.mark.parametrize("side", products.SIDES)
def test_no_dot_lies_above_its_roof(device, side):
    fig = products.draw_below_roof(device, side)
    roof, dots = fig.axes[0].get_lines()[-2:]
    assert len(dots.get_xdata()) == len(by_rows(device, side, side))
    corners = dict(zip(roof.get_xdata(), roof.get_ydata(), strict=True))
    peak = max(corners.values())
    slope = roof.get_ydata()[0] / roof.get_xdata()[0]
    assert all(y <= min(peak, slope * x) for x, y in zip(dots.get_xdata(), dots.get_ydata(), strict=True))
