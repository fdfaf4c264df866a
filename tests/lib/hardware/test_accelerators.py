"""The hardware table: complete, sourced, and consistent with the architecture that it describes."""

import json
import math
import subprocess
import sys
from importlib.resources import files

import pytest
import torch
from threeloops.hardware import DTYPES, Accelerator, accelerator, accelerators

TABLE = json.loads((files("threeloops.hardware") / "accelerators.json").read_text(encoding="utf-8"))
ENTRIES = {entry["name"]: entry for entry in TABLE["accelerators"]}
ALL = accelerators()
FIELDS = {
    "name", "vendor", "year", "aliases", "memory_bytes", "memory_bandwidth", "rates", "caches", "multiprocessors",
    "clock_hz", "matrix_clock_hz", "fp32_lanes", "matrix_units", "matrix_fma", "link_name", "link_bandwidth",
    "host_link_name", "host_link_bandwidth", "link_topology", "link_neighbours", "power_watts",
}  # fmt: skip
CACHES = {"l1_bytes", "shared_memory_bytes", "shared_memory_per_block_bytes", "l2_bytes", "l3_bytes"}


def cells(entry):
    """Every sourced value of an entry: (field, cell)."""
    for name, cell in entry.items():
        if name in ("rates", "caches"):
            yield from ((f"{name}.{inner}", each) for inner, each in cell.items())
        elif isinstance(cell, dict):
            yield name, cell


def test_the_accelerators_of_the_course_are_there():
    assert set(ALL) >= {
        "V100 SXM2 16GB", "V100 SXM2 32GB", "T4", "A100 SXM 40GB", "A100 SXM 80GB", "A100 PCIe 80GB", "H100 PCIe",
        "H100 SXM", "H200 SXM", "B200", "L4", "L40S", "RTX A6000", "RTX 4090", "MI250X", "MI300X", "TPU v4", "TPU v5e",
        "TPU v5p", "Trainium2", "Gaudi 3", "B300", "MI325X", "MI355X", "TPU v6e", "TPU7x", "Trainium3",
        "H100 NVL", "H20", "H200 NVL", "GH200", "GB200", "GB300", "Rubin", "A10", "A10G", "A40", "RTX 3090", "RTX 5090",
        "RTX 6000 Ada", "RTX PRO 6000 Blackwell", "DGX Spark", "MI300A", "MI350X", "Trainium1", "Inferentia2", "M4 Max",
        "M3 Ultra",
    }  # fmt: skip


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_is_complete_and_every_value_names_its_document(name):
    entry = ENTRIES[name]
    assert set(entry) == FIELDS
    assert set(entry["caches"]) == CACHES
    assert set(entry["rates"]) >= set(DTYPES)
    for field, cell in cells(entry):
        assert set(cell) <= {"value", "source", "note", "absent"}, field
        assert cell["source"] in TABLE["documents"], field
        if cell["value"] is None:
            assert cell["note"], f"{field}: nothing is published, and nothing says so"
        elif field.endswith(("_name", "_topology")):
            assert isinstance(cell["value"], str), field
        else:
            assert isinstance(cell["value"], int) and cell["value"] > 0, field
        assert field in ALL[name].sources
    assert ENTRIES[name]["memory_bytes"]["value"] and ENTRIES[name]["memory_bandwidth"]["value"]


@pytest.mark.parametrize("name", ENTRIES)
def test_links_lead_somewhere(name):
    one = ALL[name]
    assert one.link_topology in ("switch", "mesh", "pair", "torus", None)
    assert (one.link_topology is None) == (one.link_bandwidth is None)
    assert (one.link_neighbours is None) == (one.link_topology in ("switch", None))
    if one.link_topology == "torus":
        assert one.link_neighbours == (6 if "3D" in one.link_name else 4)


def test_every_document_is_used_and_described():
    used = {cell["source"] for entry in ENTRIES.values() for _, cell in cells(entry)}
    assert used == set(TABLE["documents"])
    for each in TABLE["documents"].values():
        assert set(each) - {"url"} == {"title", "publisher", "year"} and all(each.values())
        assert 2010 < each["year"] < 2030 and each.get("url", "https://").startswith("https://")


def test_names_and_aliases_are_unique_and_find_their_entry():
    spellings = [(alias, entry["name"]) for entry in ENTRIES.values() for alias in (entry["name"], *entry["aliases"])]
    folded = ["".join(letter for letter in alias.lower() if letter.isalnum()) for alias, _ in spellings]
    assert len(set(folded)) == len(folded)
    for alias, name in spellings:
        assert accelerator(alias).name == accelerator(alias.upper()).name == name


PUBLISHED_ARCHITECTURE = [name for name, one in ALL.items() if one.matrix_fma and one.clock_hz and one.fp32_lanes]


def test_most_gpus_publish_enough_to_derive_their_rates():
    assert len(PUBLISHED_ARCHITECTURE) >= 19


@pytest.mark.parametrize("name", PUBLISHED_ARCHITECTURE)
def test_rates_follow_from_the_architecture(name):
    """Units × multiply-adds a clock × 2 × clock. A sparse rate would be off by two and could not pass."""
    one = ALL[name]
    assert one.multiprocessors and one.matrix_units
    matrix_clock = one.matrix_clock_hz or one.clock_hz
    assert one.rate("fp16") == pytest.approx(
        one.multiprocessors * one.matrix_units * one.matrix_fma * 2 * matrix_clock, rel=0.03
    )
    assert one.rate("fp32") == pytest.approx(one.multiprocessors * one.fp32_lanes * 2 * one.clock_hz, rel=0.03)


@pytest.mark.parametrize("name", ["TPU v4", "TPU v5e"])
def test_tpu_rates_follow_from_the_systolic_arrays(name):
    one = ALL[name]
    derived = one.multiprocessors * one.matrix_units * 128 * 128 * 2 * one.clock_hz
    assert one.rate("bf16") == pytest.approx(derived, rel=0.03)


@pytest.mark.parametrize(
    ("name", "cores", "array"), [("Gaudi 3", 8, 256), ("Trainium1", 2, 128), ("Trainium2", 8, 128)]
)
def test_other_rates_follow_from_their_systolic_arrays(name, cores, array):
    """A slide of Gaudi 3 prints 1,835 TFLOP/s, which 1.60 GHz cannot give; Trainium2's sheet is 6% above its clock."""
    one = ALL[name]
    derived = cores * array * array * 2 * one.matrix_clock_hz
    assert one.rate("bf16") == pytest.approx(derived, rel=0.07)


def test_a_tensor_core_does_64_256_512_multiply_adds_a_clock():
    assert [accelerator(name).matrix_fma for name in ("V100", "A100", "H100")] == [64, 256, 512]
    assert [accelerator(name).matrix_units for name in ("V100", "A100", "H100")] == [8, 4, 4]


def test_published_dense_rates_in_teraflops():
    published = {
        "V100": 125,
        "T4": 65,
        "A100": 312,
        "H100": 989.4,
        "H200": 989.5,
        "B200": 2250,
        "L40S": 362.05,
        "B300": 2250,
        "MI300X": 1307.4,
        "MI325X": 1307.4,
        "MI355X": 2516.6,
        "H200 NVL": 835.5,
        "H20": 147,
        "GB300": 2500,
        "A10": 125,
        "A40": 149.7,
        "3090": 71,
        "5090": 209.5,
        "RTX PRO 6000": 503.8,
        "MI300A": 980.6,
        "MI350X": 2309.6,
        "Trainium1": 190,
    }
    assert {name: accelerator(name).rate("fp16") / 1e12 for name in published} == published
    pods = {"TPU v4": (275, 4096, 1.1e18), "TPU v5p": (459, 8960, 4.1e18)}
    for name, (teraflops, chips, pod) in pods.items():
        assert accelerator(name).rate("bf16") == teraflops * 1e12
        assert accelerator(name).rate("bf16") * chips == pytest.approx(pod, rel=0.03)
    assert accelerator("4090").rate("fp16") == pytest.approx(
        accelerator("4090").rate("fp16_fp16_accumulate") / 2, rel=1e-3
    )


UNEVEN = {"B300": {"fp64", "int8", "fp4"}, "GB300": {"fp64", "int8", "fp4"}, "Rubin": {"fp64", "int8", "fp8"}}
"""Dtypes whose units are fewer (FP64 and INT8) or more (FP4, and Rubin's FP8) than their widths say."""


@pytest.mark.parametrize("one", ALL.values(), ids=list(ALL))
def test_half_the_bits_run_at_most_twice_as_fast(one):
    """A sparse rate beside a dense one would show as a factor of four, or as one where two is due."""
    rates = dict(one.rates)
    if "fp16_fp16_accumulate" in rates:  # GeForce: INT8 has no accumulation that could be halved
        assert rates["int8"] / rates["fp16_fp16_accumulate"] == pytest.approx(2, rel=0.03)
        del rates["int8"]
    for wide, narrow in (
        ("fp64", "fp32"),
        ("bf16", "fp8"),
        ("bf16", "int8"),
        ("fp64", "fp64_matrix"),
        ("fp32", "fp32_matrix"),
        ("fp8", "fp6"),
        ("fp6", "fp4"),
    ):
        if {wide, narrow} & UNEVEN.get(one.name, set()):
            continue
        if {wide, narrow} <= set(rates):
            assert 1 <= rates[narrow] / rates[wide] <= 2.06, (wide, narrow)
    if "tf32" in rates and one.vendor not in ("AWS", "Intel"):
        assert rates["bf16"] / rates["tf32"] == pytest.approx(2, rel=0.03)
    if "fp16" in rates and "bf16" in rates and one.vendor != "Intel":
        assert rates["bf16"] == rates["fp16"]


def test_links_are_per_direction():
    assert [accelerator(name).link_bandwidth / 1e9 for name in ("V100", "A100", "H100", "H200", "B200")] == [
        150,
        300,
        450,
        450,
        900,
    ]
    assert accelerator("L40S").link_bandwidth is accelerator("L40S").link_name is None
    generations = {"PCIe 3.0 x16": 8e9, "PCIe 4.0 x16": 16e9, "PCIe 5.0 x16": 32e9}
    linked = {name: int(rate * 16 * 128 / 130 / 8) for name, rate in generations.items()} | {"NVLink-C2C": 450e9}
    for one in ALL.values():
        if one.host_link_name:
            assert one.host_link_bandwidth == linked[one.host_link_name]
    assert accelerator("H100").host_link_bandwidth == pytest.approx(63.0e9, rel=1e-3)


def test_sizes_on_the_chip():
    a100, h100 = accelerator("A100"), accelerator("H100")
    assert [each.caches.shared_memory_bytes // 1024 for each in (a100, h100)] == [164, 228]
    assert [each.caches.shared_memory_per_block_bytes // 1024 for each in (a100, h100)] == [163, 227]
    assert h100.multiprocessors * h100.fp32_lanes == 16_896 and accelerator("H100 PCIe").multiprocessors * 128 == 14_592
    for one in ALL.values():
        caches = one.caches
        if one.vendor == "NVIDIA" and caches.l1_bytes:
            assert caches.shared_memory_per_block_bytes <= caches.shared_memory_bytes <= caches.l1_bytes
            assert (one.multiprocessors or 1) * caches.l1_bytes < one.memory_bytes
        assert (caches.last_level_bytes or 0) < one.memory_bytes / 10
    assert accelerator("MI300X").caches.last_level_bytes == 256 * 2**20


def test_capacity_is_in_bytes_of_dram():
    gibibytes = {"H200": 141, "H100": 80, "B200": 180, "MI300X": 192, "TPU v5p": 95, "B300": 270, "TPU7x": 192}
    assert {name: accelerator(name).memory_bytes / 2**30 for name in gibibytes} == gibibytes


def test_the_driver_reports_the_capacity_of_the_table():
    """NVIDIA's own counts in MiB, which are a little less: 0.5% is reserved. GB taken for GiB would be off by 7%."""
    mebibytes = {"B300": 275_040, "GB200": 189_471, "GB300": 284_208, "RTX PRO 6000 Blackwell": 97_887}
    for name, reported in mebibytes.items():
        assert reported * 2**20 == pytest.approx(ALL[name].memory_bytes, rel=6e-3)


def test_the_power_of_a_board():
    watts = {"H100": 700, "H100 NVL": 400, "B200": 1000, "B300": 1100, "GB300": 1400, "MI355X": 1400, "RTX 5090": 575}
    assert {name: accelerator(name).power_watts for name in watts} == watts
    assert all(40 <= one.power_watts <= 1400 for one in ALL.values() if one.power_watts)
    assert sum(one.power_watts is None for one in ALL.values()) <= 16
    assert accelerator("TPU v5p").power_watts is None and accelerator("TPU v5p").note("power_watts") == "not published"


def test_an_unknown_name_gets_the_closest_ones():
    with pytest.raises(LookupError, match="'H1000'.*did you mean H100 SXM"):
        accelerator("H1000")
    with pytest.raises(LookupError, match="MI300X"):
        accelerator("MI-300")
    with pytest.raises(LookupError, match=f"lists all {len(ALL)}"):
        accelerator("")


def test_a_rate_is_found_by_torch_dtype_and_by_name():
    h100 = accelerator("h100")
    assert h100.rate(torch.bfloat16) == h100.rate("BF16") == h100.rate("bfloat16") == h100.rates["bf16"]
    assert h100.rate(torch.float32) == h100.rates["fp32"] < h100.rate("tf32")
    assert h100.rate(torch.float8_e4m3fn) == h100.rates["fp8"]


def test_a_missing_rate_says_why():
    with pytest.raises(LookupError, match="V100 SXM2 16GB has no TF32: .*Ampere; it has fp64, fp32, fp16"):
        accelerator("V100").rate("tf32")
    with pytest.raises(LookupError, match="RTX 4090: no fp64 rate is known"):
        accelerator("RTX 4090").rate("fp64")
    with pytest.raises(LookupError, match="'fp12': H100 SXM has no rate of that name"):
        accelerator("H100").rate("fp12")
    with pytest.raises(LookupError, match="M4 Max: no bf16 rate is known .*; none of its rates is in the table"):
        accelerator("M4 Max").rate("bf16")
    assert all(set(one.rates).isdisjoint(one.absent) for one in ALL.values())


def test_the_table_cannot_be_spoilt_by_its_reader():
    accelerator("H100").rates["bf16"] = 1.0
    accelerators()["H100 SXM"].rates.clear()
    assert accelerator("H100").rate("bf16") > 9e14
    with pytest.raises(AttributeError):
        accelerator("H100").memory_bytes = 0


def test_an_accelerator_can_be_a_key_and_made_by_hand():
    made = Accelerator(name="toy", vendor="none", year=None, memory_bytes=1, memory_bandwidth=10.0, rates={"fp32": 5.0})
    assert {made: 1}[made] == 1 and {accelerator("T4"): 2}[accelerator("Tesla T4")] == 2
    assert made.rate("fp32") == 5.0 and made.caches.last_level_bytes is None and math.isfinite(made.memory_bandwidth)


def test_importing_the_table_imports_no_torch():
    script = (
        "import sys, threeloops.hardware as hardware; hardware.accelerator('H100').rate('bf16'); "
        "assert not {'torch', 'matplotlib', 'triton'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
