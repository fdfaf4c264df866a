"""The published tables: what the files hold, in which units, and what a wrong question is told."""

import hashlib
import json
from importlib.resources import files

import numpy as np
import pytest
from threeloops.hardware.measured import MEASURED_BY, host_link_share, link_share, measured

TABLES = files("threeloops.hardware.measured") / "tables"
MANIFEST = json.loads((TABLES / "manifest.json").read_text())


def test_the_source_is_named_and_its_licence_lies_beside_the_tables():
    assert "NVIDIA" in MEASURED_BY and "not by us" in MEASURED_BY
    assert (
        MANIFEST["source"] in MEASURED_BY.replace("(", "").replace(")", "")
        or "aiconfigurator-core 0.12.0" in MEASURED_BY
    )
    assert "Apache License" in (TABLES / "LICENSE.txt").read_text()
    assert sum(len((TABLES / f"{name}.csv.gz").read_bytes()) for name in MANIFEST["tables"]) < 600_000


@pytest.mark.parametrize("name", MANIFEST["tables"])
def test_a_table_is_the_file_of_the_manifest(name):
    about = MANIFEST["tables"][name]
    assert hashlib.sha256((TABLES / f"{name}.csv.gz").read_bytes()).hexdigest() == about["sha256"]
    table = measured(name)
    assert len(table) == about["rows"]
    assert table.timing == about["timing"]


def test_messages_of_nccl_are_counted_in_bytes():
    """The file counts elements. In bytes, half and int8 reach the same bandwidth; in elements they differ by two."""
    table = measured("nccl").where(device="H100 SXM", op_name="all_gather", num_gpus=8)
    rates = {}
    for dtype in ("half", "int8"):
        rows = table.where(nccl_dtype=dtype)
        largest = rows["bytes"].argmax()
        rates[dtype] = rows["bytes"][largest] * 7 / 8 / rows["seconds"][largest]
    assert rates["half"] == pytest.approx(rates["int8"], rel=0.05)
    assert rates["half"] == pytest.approx(336e9, rel=0.05)


def test_seconds_are_those_of_one_call():
    """A product of 8,192³ in bf16 cannot beat the 989 TFLOP/s of the data sheet, and reaches more than half."""
    row = measured("gemm").where(device="H100 SXM", gemm_dtype="bfloat16", m=8192, n=8192, k=8192)
    assert 0.5 < 2 * 8192**3 / row["seconds"].min() / 989e12 < 1


def test_rows_are_chosen_by_values():
    rows = measured("gemm").where(device="A100 SXM 80GB", m=128)
    assert set(rows["device"]) == {"A100 SXM 80GB"} and set(rows["m"]) == {128}
    assert len(rows.rows(np.array([0, 2]))) == 2


def test_a_wrong_question_is_told_what_there_is():
    with pytest.raises(LookupError, match="no table is called 'gemv'; there are .*gemm"):
        measured("gemv")
    with pytest.raises(KeyError, match="gemm has no column 'rows'; it has .*tool"):
        measured("gemm").where(rows=3)
    with pytest.raises(LookupError, match="gemm: no row has device = 'H800'; there are .*H100 SXM"):
        measured("gemm").where(device="H800")


def test_the_share_of_a_link_is_that_of_the_measured_bus_bandwidth():
    """335 of 450 GB/s on eight H100; an accelerator that was not measured has the median of those that were."""
    assert link_share("H100 SXM") == pytest.approx(335.5 / 450, rel=0.005)
    shares = sorted(link_share(name) for name in ("A100 SXM 80GB", "B200", "H100 SXM", "H200 SXM"))
    assert shares[0] > 0.6 and shares[-1] < 0.8
    assert link_share("A100 PCIe 80GB") == pytest.approx((shares[1] + shares[2]) / 2)
    assert host_link_share() * 31.5 == pytest.approx(19.3, rel=0.02)
