"""Predictions against closed forms and against times that a stated model generates. No measurement is quoted here."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.hardware.accelerators import accelerator
from threeloops.inner.codegen.generated_code import Code
from threeloops.inner.codegen.occupancy import compilation_target, occupancy
from threeloops.inner.costs import Work, matmul
from threeloops.inner.meter.traffic import _KINDS, Traffic
from threeloops.inner.predict import Prediction, predict
from threeloops.inner.predict.calibration import Calibration, calibrate
from threeloops.inner.predict.parts import _effective_l2

H100, A100, MI300X = (accelerator(name) for name in ("H100 SXM", "A100", "MI300X"))


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
        found = predict(Work(1e9, 0), H100, dtype="bf16")
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
        found = predict(traffic, H100, dtype="bf16")
        arithmetic = 7e9 / H100.rate("fp32")
        assert found.low == pytest.approx(arithmetic) and found.bound == "compute"
        assert found.high == pytest.approx(arithmetic + 1e6 / H100.memory_bandwidth)


class TestRepetitions:
    """Bytes that are read again come from the L2 if it holds them: on which half of it can be relied."""

    def test_a_second_pass_within_the_effective_l2_is_free(self):
        room = _effective_l2(A100)
        assert room == A100.caches.l2_bytes / 2
        size = int(room // 2) * 2
        found = predict(streamed(size, requested_loaded=size), A100, dtype="fp16")
        assert found.low == found.high == pytest.approx(size / A100.memory_bandwidth)

    def test_beyond_it_both_are_possible(self):
        size = 4 * A100.caches.l2_bytes
        found = predict(streamed(size, requested_loaded=size), A100, dtype="fp16")
        assert found.low == pytest.approx(size / A100.memory_bandwidth)
        assert found.high == pytest.approx(1.5 * size / A100.memory_bandwidth)
        assert any("L2 model" in line for line in found.how)

    def test_a_model_of_the_l2_decides(self):
        size = 4 * A100.caches.l2_bytes
        traffic = streamed(size, requested_loaded=size, dram_loaded=7 * 10**8, dram_stored=10**8)
        found = predict(traffic, A100, dtype="fp16")
        assert found.low == found.high == pytest.approx(8e8 / A100.memory_bandwidth)


class TestMatrixProducts:
    def test_from_overlap_to_one_after_the_other(self):
        work = matmul(8192, 8192, 8192)
        found = predict(work, H100, dtype="bf16")
        compute, memory = work.flops / H100.rate("bf16"), work.bytes / H100.memory_bandwidth
        assert (found.low, found.high) == pytest.approx((compute, compute + memory))
        assert found.bound == "compute"

    def test_without_tensor_cores_the_vector_units_do_it(self):
        found = predict(matmul(1024, 1024, 1024), H100, dtype="bf16", code=code(tensor_cores=None))
        assert found.compute_seconds == pytest.approx(2 * 1024**3 / H100.rate("fp32"))

    def test_dots_and_the_rest_are_counted_apart(self):
        traffic = streamed(1000, flops={"dot": 8e12, "special": 1e12})
        found = predict(traffic, H100, dtype="fp8", code=code(tensor_cores="wgmma"))
        parts = 8e12 / H100.rate("fp8"), 1e12 / H100.rate("fp32")
        assert found.compute_seconds == pytest.approx(max(parts))
        assert found.high == pytest.approx(sum(parts) + 1000 / H100.memory_bandwidth)

    def test_a_dtype_without_a_rate(self):
        with pytest.raises(LookupError, match="A100 .* has no FP8"):
            predict(Work(1, 1), A100, dtype="fp8")


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
        found = predict(Work(0, 1e12), H100, dtype="bf16", code=made, programs=programs)
        perfect = 1e12 / H100.rate("bf16")
        assert (found.low / perfect, found.high / perfect) == pytest.approx((low, high))

    @given(programs=st.integers(1, 10**5), registers=st.sampled_from([32, 64, 128, 168, 255]))
    def test_at_best_is_never_more_than_at_worst(self, programs, registers):
        made = code(registers=registers, tensor_cores="wgmma")
        found = predict(Work(1e6, 1e9), H100, dtype="bf16", code=made, programs=programs)
        perfect = 1e9 / H100.rate("bf16")
        assert perfect * (1 - 1e-9) <= found.compute_seconds and found.low <= found.high


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
