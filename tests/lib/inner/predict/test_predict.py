"""Predictions against closed forms and against times that a stated model generates. No measurement is quoted here."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.hardware.accelerators import accelerator
from threeloops.inner.codegen.generated_code import Code
from threeloops.inner.codegen.occupancy import compilation_target, occupancy
from threeloops.inner.costs import Work, attention, matmul
from threeloops.inner.meter.traffic import _KINDS, Traffic
from threeloops.inner.predict import Prediction, predict
from threeloops.inner.predict.calibration import Calibration, calibrate
from threeloops.inner.predict.parts import _effective_l2

H100, A100, MI300X = (accelerator(name) for name in ("H100 SXM", "A100", "MI300X"))


def by_sheet(work, device, **options):
    """A prediction as if the device reached the bandwidth of its data sheet: its interval goes from overlap to none."""
    return predict(work, device, calibration=Calibration(device.memory_bandwidth), **options)


def code(*, target="sm_90", registers=32, warps=4, shared=0, loads=None, tensor_cores=None, **others):
    device = compilation_target(target)
    return Code(
        name="kernel",
        target=target,
        options={"num_warps": warps, "num_stages": 1},
        registers=registers,
        spilled_bytes=others.pop("spilled_bytes", 0),
        shared_bytes=shared,
        shared_limit=device.shared_limit,
        occupancy=occupancy(device, registers=registers, shared_bytes=shared, warps=warps),
        loads=loads or {128: 1},
        tensor_cores=tensor_cores,
        **others,
    )


def streamed(size, **others):
    """Traffic of a kernel that reads and writes `size` bytes, half and half, once."""
    half = size // 2
    moved = {"requested_loaded": half, "requested_stored": half, "unique_loaded": half, "unique_stored": half}
    flops = dict.fromkeys(_KINDS, 0.0) | others.pop("flops", {})
    return Traffic(**moved | others, flops=flops)


class TestStreaming:
    def test_bytes_over_bandwidth(self):
        found = by_sheet(Work(1e9, 0), H100, dtype="bf16")
        assert found.low == found.high == found.memory_seconds == pytest.approx(1e9 / H100.memory_bandwidth)
        assert found.bound == "memory" and found.compute_seconds == found.start_seconds == 0

    def test_a_calibration_replaces_the_data_sheet(self):
        found = predict(streamed(10**9), H100, dtype="fp16", calibration=Calibration(2e12, 5e-6))
        assert found.low == found.high == pytest.approx(5e-6 + 1e9 / 2e12)
        assert found.start_seconds == 5e-6

    def test_its_residual_widens_the_interval(self):
        found = predict(Work(1e9, 0), H100, dtype="bf16", calibration=Calibration(2e12, residual=0.1))
        assert (found.low, found.high) == pytest.approx((0.9 * 5e-4, 1.1 * 5e-4))

    def test_a_small_launch_is_bound_by_its_start(self):
        assert predict(Work(1e3, 0), H100, dtype="bf16", calibration=Calibration(2e12, 5e-6)).bound == "start"

    def test_arithmetic_of_the_vector_units_overlaps_at_best(self):
        traffic = streamed(10**6, flops={"add": 6e9, "special": 1e9}, programs=0)
        found = by_sheet(traffic, H100, dtype="bf16")
        arithmetic = 7e9 / H100.rate("fp32")
        assert found.low == pytest.approx(arithmetic) and found.bound == "compute"
        assert found.high == pytest.approx(arithmetic + 1e6 / H100.memory_bandwidth)


class TestRepetitions:
    """Bytes that are read again come from the L2 if it holds them: on which half of it can be relied."""

    def test_a_second_pass_within_the_effective_l2_is_free(self):
        room = _effective_l2(A100)
        assert room == A100.caches.l2_bytes / 2
        size = int(room // 2) * 2
        found = by_sheet(streamed(size, requested_loaded=size), A100, dtype="fp16")
        assert found.low == found.high == pytest.approx(size / A100.memory_bandwidth)

    def test_beyond_it_both_are_possible(self):
        size = 4 * A100.caches.l2_bytes
        found = by_sheet(streamed(size, requested_loaded=size), A100, dtype="fp16")
        assert found.low == pytest.approx(size / A100.memory_bandwidth)
        assert found.high == pytest.approx(1.5 * size / A100.memory_bandwidth)
        assert any("L2 model" in line for line in found.how)

    def test_a_model_of_the_l2_decides(self):
        size = 4 * A100.caches.l2_bytes
        traffic = streamed(size, requested_loaded=size, dram_loaded=7 * 10**8, dram_stored=10**8)
        found = by_sheet(traffic, A100, dtype="fp16")
        assert found.low == found.high == pytest.approx(8e8 / A100.memory_bandwidth)


class TestMatrixProducts:
    def test_from_overlap_to_one_after_the_other(self):
        work = matmul(8192, 8192, 8192)
        found = by_sheet(work, H100, dtype="bf16")
        compute, memory = work.flops / H100.rate("bf16"), work.bytes / H100.memory_bandwidth
        assert (found.low, found.high) == pytest.approx((compute, compute + memory))
        assert found.bound == "compute"

    def test_without_tensor_cores_the_vector_units_do_it(self):
        found = by_sheet(matmul(1024, 1024, 1024), H100, dtype="bf16", code=code(tensor_cores=None))
        assert found.compute_seconds == pytest.approx(2 * 1024**3 / H100.rate("fp32"))

    def test_dots_and_the_rest_are_counted_apart(self):
        traffic = streamed(1000, flops={"dot": 8e12, "special": 1e12})
        found = by_sheet(traffic, H100, dtype="fp8", code=code(tensor_cores="wgmma"))
        parts = 8e12 / H100.rate("fp8"), 1e12 / H100.rate("fp32")
        assert found.compute_seconds == pytest.approx(max(parts))
        assert found.high == pytest.approx(sum(parts) + 1000 / H100.memory_bandwidth)

    def test_a_dtype_without_a_rate(self):
        with pytest.raises(LookupError, match="A100 .* has no FP8"):
            by_sheet(Work(1, 1), A100, dtype="fp8")


class TestWaves:
    @pytest.mark.parametrize(
        ("programs", "resident_registers", "low", "high"),
        [
            (132, 255, 1, 1),  # one on each of 132 multiprocessors
            (133, 255, 2 * 132 / 133, 2 * 132 / 133),  # and one more
            (264, 128, 1, 1),
            (397, 128, 4 * 132 / 397, 4 * 132 / 397),  # three on most multiprocessors and four on one: a single wave
            (529, 128, 5 * 132 / 529, 2 * 528 / 529),  # four at once: the last wave holds a single program
            (661, 128, 6 * 132 / 661, 2 * 528 / 661),
            (529, 64, 5 * 132 / 529, 5 * 132 / 529),  # eight at once would fit
            (66, 255, 2, 2),  # half of the device
        ],
    )
    def test_the_busiest_multiprocessor_decides(self, programs, resident_registers, low, high):
        made = code(registers=resident_registers, warps=8 if resident_registers == 255 else 4, tensor_cores="wgmma")
        found = by_sheet(Work(0, 1e12), H100, dtype="bf16", code=made, programs=programs)
        perfect = 1e12 / H100.rate("bf16")
        assert (found.low / perfect, found.high / perfect) == pytest.approx((low, high))

    @given(programs=st.integers(1, 10**5), registers=st.sampled_from([32, 64, 128, 168, 255]))
    def test_at_best_is_never_more_than_at_worst(self, programs, registers):
        made = code(registers=registers, tensor_cores="wgmma")
        found = by_sheet(Work(1e6, 1e9), H100, dtype="bf16", code=made, programs=programs)
        perfect = 1e9 / H100.rate("bf16")
        assert perfect * (1 - 1e-9) <= found.compute_seconds and found.low <= found.high


class TestPublishedIntervals:
    """Without a calibration, the interval holds most of what NVIDIA measured on the device for kernels of this kind."""

    def test_a_product_takes_a_launch_and_more_than_the_data_sheet(self):
        work = matmul(4096, 4096, 4096)
        found = predict(work, H100, dtype="bf16")
        floor = by_sheet(work, H100, dtype="bf16").low
        assert floor < found.low < found.high < 2 * floor
        assert found.compute_seconds == pytest.approx(work.flops / H100.rate("bf16"))
        assert predict(Work(0, 0), H100, dtype="bf16").low > 1e-6

    def test_it_says_where_it_comes_from(self):
        (line,) = [line for line in predict(matmul(8, 8, 8), H100, dtype="bf16").how if "interval" in line]
        assert "86% of 1,630 kernels of the kind product bf16 on H100 SXM" in line
        assert "measured by NVIDIA (aiconfigurator-core 0.12.0), not by us" in line

    def test_kinds_differ_and_an_unnamed_one_gets_a_wider_interval(self):
        work = attention(8, 32, 1, 8192, 128, kv_heads=8, causal=True, fused=True)
        decoding = predict(work, H100, dtype="bf16")
        unnamed = predict(Work(work.bytes, work.flops), H100, dtype="bf16")
        assert decoding.high / decoding.low < unnamed.high / unnamed.low
        assert any("kernels on H100 SXM" in line for line in unnamed.how)

    def test_fp16_counts_as_bf16(self):
        found = [predict(matmul(512, 512, 512), A100, dtype=dtype) for dtype in ("fp16", "bf16")]
        assert found[0].low == found[1].low

    def test_a_device_that_nobody_measured_gets_the_interval_of_the_others(self):
        found = predict(matmul(4096, 4096, 4096), MI300X, dtype="bf16")
        assert any("five other GPUs" in line for line in found.how)
        assert found.high / found.low > 1.3

    @given(
        st.floats(0, 1e12),
        st.floats(0, 1e16),
        st.sampled_from(["", "product", "attention", "decoding"]),
        st.sampled_from([H100, A100, MI300X, *map(accelerator, ("H200 SXM", "B200", "L40S"))]),
        st.sampled_from(["bf16", "int8"]),
    )
    def test_low_is_never_above_high(self, moved, flops, kind, device, dtype):
        found = predict(Work(moved, flops, kind), device, dtype=dtype)
        assert 0 < found.low <= found.high

    def test_a_sum_of_kinds_has_none(self):
        product = matmul(8, 8, 8)
        assert (2 * product).kind == (product + product).kind == "product"
        assert (product + attention(1, 1, 8, 8, 8, fused=True)).kind == ""
        assert attention(1, 1, 8, 8, 8).kind == "", "three kernels"


class TestCalibration:
    @given(bandwidth=st.floats(1e11, 8e12), start=st.floats(0, 1e-4))
    def test_it_finds_the_model_that_made_the_times(self, bandwidth, start):
        points = [(Work(size, 0), start + size / bandwidth) for size in (2.0**20, 2.0**24, 2.0**28, 2.0**31)]
        found = calibrate(points)
        assert found.bandwidth == pytest.approx(bandwidth, rel=1e-6)
        assert found.start_seconds == pytest.approx(start, rel=1e-4, abs=1e-12)
        assert found.residual < 1e-6

    def test_noise_becomes_the_residual_and_the_fit_predicts_within_it(self):
        noise = [1.05, 0.97, 1.02, 0.95, 1.01]
        sizes = [2**20, 2**22, 2**25, 2**28, 2**31]
        times = [(4e-6 + size / 2.5e12) * factor for size, factor in zip(sizes, noise, strict=True)]
        found = calibrate(list(zip((Work(size, 0) for size in sizes), times, strict=True)), H100)
        assert 0.01 < found.residual < 0.1
        assert found.bandwidth == pytest.approx(2.5e12, rel=0.1)
        for size, seconds in zip(sizes, times, strict=True):
            assert predict(Work(size, 0), H100, dtype="bf16", calibration=found).error(seconds) == 0

    def test_it_counts_relative_errors(self):
        """10% of the smallest and 10% of the largest time weigh the same: neither end of the sizes rules."""
        points = [(Work(size, 0), size / 2e12) for size in (2.0**31, 2.0**30)]
        points.append((Work(2.0**20, 0), 1.1 * 2**20 / 2e12))
        assert calibrate(points).bandwidth == pytest.approx(2e12, rel=0.01)

    def test_a_negative_start_becomes_zero(self):
        found = calibrate([(Work(1e6, 0), 4e-7), (Work(1e9, 0), 5e-4)])
        assert found.start_seconds == 0 and 2e12 <= found.bandwidth <= 2.5e12

    def test_refusals(self):
        with pytest.raises(ValueError, match="at least two different numbers of bytes"):
            calibrate([(Work(1e6, 0), 1e-6), (Work(1e6, 0), 2e-6)])
        with pytest.raises(ValueError, match="times that grow with the bytes"):
            calibrate([(Work(1e6, 0), 3e-6), (Work(2e6, 0), 2e-6)])
        with pytest.raises(ValueError, match="came from a cache"):
            calibrate([(Work(1e6, 0), 2e-6), (Work(1e9, 0), 1e-4)], H100)
        with pytest.raises(ValueError, match="bandwidth = -1"):
            Calibration(-1)


class TestPrediction:
    def test_the_distance_of_a_measurement(self):
        made = Prediction(1.0, 2.0, 1.0, 0.5, 0.0, "memory", "H100 SXM")
        assert [made.error(seconds) for seconds in (0.5, 1, 1.5, 2, 3)] == [-0.5, 0, 0, 0, 0.5]

    def test_code_of_another_vendor_or_too_large(self):
        with pytest.raises(ValueError, match="code.target = gfx942: H100 SXM does not run it"):
            predict(Work(1, 1), H100, dtype="bf16", code=code(target="gfx942"))
        with pytest.raises(ValueError, match="code.target = sm_90: MI300X does not run it"):
            predict(Work(1, 1), MI300X, dtype="bf16", code=code())
        assert predict(Work(1, 1), MI300X, dtype="bf16", code=code(target="gfx942", tensor_cores="mfma")).low > 0
        large = replace(code(), misfits=("shared memory 2 of 1 bytes",))
        with pytest.raises(ValueError, match="shared memory 2 of 1 bytes"):
            predict(Work(1, 1), H100, dtype="bf16", code=large)

    def test_spills_are_mentioned(self):
        found = predict(Work(1, 1), H100, dtype="bf16", code=code(spilled_bytes=64))
        assert any("64 bytes per thread are spilled" in line for line in found.how)

    def test_it_says_what_it_rests_on(self):
        found = predict(matmul(4096, 4096, 4096), H100, dtype="bf16")
        assert "memory at 3350 GB/s" in found.how
        assert sum("data sheet" in line for line in found.how) == 1
