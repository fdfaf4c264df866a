"""Measuring this machine. What is asserted is what must hold on any machine, never how fast it is."""

import pytest
import torch
from threeloops.hardware import (
    Caches,
    Measured,
    cpu_caches,
    device,
    measure_copy_bandwidth,
    measure_matmul_rate,
    this_machine,
)
from threeloops.hardware.inventory import _parse_size
from threeloops.hardware.measure import default_buffer_bytes


@pytest.fixture
def no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_device_takes_what_it_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for told, taken in (
        (None, "cuda"),
        ("", "cuda"),
        ("cuda", "cuda"),
        ("CUDA", "cuda"),
        ("cpu", "cpu"),
        (" cpu ", "cpu"),
    ):
        if told is None:
            monkeypatch.delenv("THREELOOPS_DEVICE", raising=False)
        else:
            monkeypatch.setenv("THREELOOPS_DEVICE", told)
        assert device() == taken


def test_device_without_cuda(monkeypatch, no_cuda):
    monkeypatch.delenv("THREELOOPS_DEVICE", raising=False)
    assert device() == "cpu"
    monkeypatch.setenv("THREELOOPS_DEVICE", "cuda")
    with pytest.raises(RuntimeError, match="THREELOOPS_DEVICE = 'cuda'.*no CUDA device.*threeloops doctor"):
        device()


def test_device_refuses_another_name(monkeypatch):
    monkeypatch.setenv("THREELOOPS_DEVICE", "gpu")
    with pytest.raises(ValueError, match="THREELOOPS_DEVICE = 'gpu': expected 'cpu' or 'cuda'"):
        device()


def test_copy_bandwidth_counts_reads_and_writes(monkeypatch):
    """With a clock that ticks once a reading, one copy takes one second: the rate is twice the buffer."""
    clock = iter(range(1000))
    monkeypatch.setattr("threeloops.hardware.measure.time.perf_counter", lambda: float(next(clock)))
    measured = measure_copy_bandwidth("cpu", buffer_bytes=12_345, runs=3)
    assert measured.samples == (24_690.0,) * 3 and measured.value == 24_690.0
    assert measured.unit == "bytes/s" and "3 copies" in measured.how


def test_matmul_rate_counts_two_operations_a_multiply_add(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("threeloops.hardware.measure.time.perf_counter", lambda: float(next(clock)))
    assert measure_matmul_rate("fp32", "cpu", size=33, runs=2).samples == (2.0 * 33**3,) * 2


def test_one_interrupted_run_does_not_stop_the_doubling(monkeypatch):
    """The first run of each size is slow; the others say whether the matrix is large enough."""
    sizes = []

    def time_runs(run, on, runs):
        size = run().shape[0]
        sizes.append((size, runs))
        return [0.5] + [0.001 if size < 512 else 0.02] * (runs - 1)

    monkeypatch.setattr("threeloops.hardware.measure._time_runs", time_runs)
    measure_matmul_rate("fp32", "cpu", runs=5)
    assert sizes == [(256, 3), (512, 3), (512, 5)]


def test_the_value_is_the_median():
    assert Measured((1.0, 100.0, 3.0), "bytes/s", "made up").value == 3.0


@pytest.mark.parametrize("dtype", ["fp32", torch.bfloat16])
def test_matmul_rate_of_this_cpu_is_a_rate(dtype):
    measured = measure_matmul_rate(dtype, "cpu", size=192, runs=3)
    assert all(1e6 < sample < 1e16 for sample in measured.samples) and len(measured.samples) == 3


def test_measuring_leaves_torch_as_it_was():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    before = torch.get_float32_matmul_precision()
    measure_matmul_rate("fp32", "cpu", size=64, runs=1)
    measure_copy_bandwidth("cpu", buffer_bytes=1024, runs=1)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_float32_matmul_precision() == before


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="dtype = 'tf32': expected one of fp64, fp32, bf16, fp16 on cpu"):
        measure_matmul_rate("tf32", "cpu")
    with pytest.raises(ValueError, match="dtype = 'int4'"):
        measure_matmul_rate("int4", "cpu")
    with pytest.raises(ValueError, match="size = 0"):
        measure_matmul_rate("fp32", "cpu", size=0)
    with pytest.raises(ValueError, match="buffer_bytes = 0"):
        measure_copy_bandwidth("cpu", buffer_bytes=0)
    with pytest.raises(ValueError, match="on = 'mps': expected 'cpu', 'cuda'"):
        this_machine("mps")
    with pytest.raises(ValueError, match="runs = 0"):
        measure_copy_bandwidth("cpu", buffer_bytes=8, runs=0)


def test_the_copied_buffers_outgrow_the_last_level_cache(monkeypatch):
    class Plenty:
        available = 2**40

    monkeypatch.setattr("threeloops.hardware.measure.psutil.virtual_memory", lambda: Plenty)
    for cache in (None, 2**20, 2**30):
        monkeypatch.setattr("threeloops.hardware.measure.cpu_caches", lambda cache=cache: Caches(l3_bytes=cache))
        assert 2 * default_buffer_bytes("cpu") >= max(4 * (cache or 0), 128 * 2**20)
    Plenty.available = 2**28
    assert default_buffer_bytes("cpu") == 2**25


def test_this_cpu_as_a_row_of_the_table():
    here = this_machine("cpu")
    assert set(here.rates) == {"fp32", "bf16"} and all(1e6 < rate < 1e16 for rate in here.rates.values())
    assert 1e7 < here.memory_bandwidth < 1e14 and here.memory_bytes > 2**28 and here.multiprocessors >= 1
    assert here.name and here.link_bandwidth is None
    for field in ("memory_bandwidth", "rates.fp32", "rates.bf16"):
        assert here.sources[field].startswith("measured here: median of ")
    assert here.sources["memory_bytes"].startswith("read here")


def cache_index(sysfs, core, index, level, kind, size, shared):
    folder = sysfs / f"cpu{core}" / "cache" / f"index{index}"
    folder.mkdir(parents=True)
    for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
        (folder / name).write_text(f"{text}\n")


def test_shared_caches_are_counted_once(tmp_path, monkeypatch):
    monkeypatch.setattr("threeloops.hardware.inventory.os.sched_getaffinity", lambda _: {0, 1, 2})
    for core in range(4):
        cache_index(tmp_path, core, 0, 1, "Data", "48K", core)
        cache_index(tmp_path, core, 1, 1, "Instruction", "32K", core)
        cache_index(tmp_path, core, 2, 2, "Unified", "1M", core)
        cache_index(tmp_path, core, 3, 3, "Unified", "32768K", "0-1" if core < 2 else "2-3")
    caches = cpu_caches(tmp_path)
    assert caches == Caches(l1_bytes=48 * 2**10, l2_bytes=3 * 2**20, l3_bytes=64 * 2**20)
    assert caches.last_level_bytes == 64 * 2**20


def test_a_machine_that_hides_its_caches(tmp_path):
    assert cpu_caches(tmp_path) == Caches()
    assert (_parse_size("48K"), _parse_size("2M"), _parse_size("1G"), _parse_size("512")) == (49152, 2**21, 2**30, 512)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_this_gpu_as_a_row_of_the_table():
    here = this_machine("cuda")
    assert {"fp32", "bf16"} <= set(here.rates) and here.rates["bf16"] > 0
    assert here.memory_bytes == torch.cuda.get_device_properties(0).total_memory
    assert 1e10 < here.memory_bandwidth < 1e14 and here.caches.l2_bytes > 0
