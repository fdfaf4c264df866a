"""The code inspector: real kernels, compiled for GPUs that are not here, and what is read from their machine code.

Numbers of registers and instructions move with the compiler's version: bounds are asserted where they do. Some kernels
are interpreted in this process and some are not, as its other tests left it; the inspector must not care.
"""

import json

import pytest
import torch
import triton
import triton.language as tl
from described_launch import described_launch
from threeloops.inner.codegen import CompileError, compile_launches, from_source, inspect
from threeloops.inner.codegen.occupancy import COMPILATION_TARGETS, compilation_target, occupancy
from threeloops.inner.kernels.launching import TARGETS
from threeloops.inner.launches import Launch, record
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction


@triton.jit
def saxpy(x, y, a, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(y + offsets, a * tl.load(x + offsets, mask=inside) + tl.load(y + offsets, mask=inside), mask=inside)


@triton.jit
def matmul(a, b, c, k, stride, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, columns, inner = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for first in range(0, k, K):
        left = tl.load(a + rows * stride + first + inner[None, :])
        right = tl.load(b + (first + inner[:, None]) * stride + columns)
        total = tl.dot(left, right, total)
    tl.store(c + rows * stride + columns, total.to(c.dtype.element_ty))


@triton.jit
def twice(x, FACTOR: tl.constexpr = 2):
    return FACTOR * x


@triton.jit
def annotated(x: "a tensor", n: "i64", N: "tl.constexpr"):  # noqa: F722, F821
    offsets = tl.arange(0, N)
    tl.store(x + offsets, n)


@triton.jit
def copy_tile(source, destination):
    destination.store([0, 0], source.load([0, 0]))


@triton.jit(do_not_specialize=["kept"])
def many(aligned, unaligned, multiple, odd, one, kept, nothing, flag, wide, unsigned, real, tile: tl.constexpr = 4):
    if flag:
        tl.store(aligned, tl.load(unaligned) + multiple + odd + one + kept + wide + unsigned + real)


HALVES = dict.fromkeys("abc", "*bfloat16") | {"k": 4096, "stride": 4096}
VECTORS = {"x": "*float32", "y": "*float32", "a": 2.0, "n": 4096}
BIG, SMALL = {"M": 128, "N": 256, "K": 64}, {"M": 64, "N": 64, "K": 32}


def one(kernel, arguments, constants, target, **options):
    (code,) = compile_launches([described_launch(kernel, arguments, constants, **options)], [target])
    return code


@pytest.fixture(scope="module")
def spilling():
    return one(matmul, HALVES, BIG, "sm_90", num_warps=4, num_stages=3)


class TestAccesses:
    """A thread moves 16 bytes at once where the compiler can prove that the address allows it."""

    @pytest.mark.parametrize("target", ["sm_75", *TARGETS])
    def test_aligned_vectors_are_read_128_bits_at_a_time(self, target):
        code = one(saxpy, VECTORS, {"BLOCK": 1024}, target, num_warps=4)
        each = 1024 // (4 * (64 if target == "gfx942" else 32)) // 4
        assert code.loads == {128: 2 * each}
        assert code.stores == {128: each}
        assert (code.widest_load, min(code.stores)) == (128, 128)
        assert code.spilled_bytes == code.scratch_bytes == code.shared_bytes == 0 and code.fits
        assert 4 < code.registers < 64
        assert code.occupancy.limited_by == "warps" and code.occupancy.fraction == 1
        assert code.tensor_cores is None and code.tensor_core_instructions == code.tma == code.async_copies == 0

    @pytest.mark.parametrize("target", ["sm_90", "gfx942"])
    def test_without_alignment_every_access_is_scalar(self, target):
        code = one(saxpy, VECTORS | {"x": "*float32:4", "y": "*float32:8"}, {"BLOCK": 1024}, target, num_warps=4)
        each = 1024 // (4 * (64 if target == "gfx942" else 32))
        assert code.loads[32] >= each and sum(bits * n for bits, n in code.loads.items()) == 2 * each * 32
        assert max(code.stores) < 128

    def test_a_length_that_16_does_not_divide_keeps_scalar_masks(self):
        code = one(saxpy, VECTORS | {"n": 4095}, {"BLOCK": 1024}, "sm_90", num_warps=4)
        assert code.loads == {32: 16} and code.stores == {32: 8}

    def test_small_elements(self):
        halves = VECTORS | {"x": "*float16:2", "y": "*int8:1"}
        code = one(saxpy, halves, {"BLOCK": 128}, "sm_90", num_warps=4)
        assert code.loads == {8: 1, 16: 1} and code.stores == {8: 1}
        assert min(code.loads) == 8


class TestTensorCores:
    @pytest.mark.parametrize(
        ("target", "kind"), [("sm_80", "mma"), ("sm_90", "wgmma"), ("sm_100", "tcgen05"), ("gfx942", "mfma")]
    )
    def test_each_target_has_its_own(self, target, kind):
        code = one(matmul, HALVES, SMALL, target, num_warps=4, num_stages=2)
        assert code.tensor_cores == kind and code.tensor_core_instructions >= 1
        assert code.fits and not code.spills
        assert code.widest_load == 128
        assert (code.async_copies > 0) == (target != "gfx942")
        assert code.shared_bytes > 0 and code.barriers >= 1
        if target == "gfx942":  # LLVM's own count of what the registers admit, and ours
            needs = {"registers": code.registers, "shared_bytes": code.shared_bytes, "warps": 4}
            assert code.occupancy == occupancy(compilation_target(target), **needs)
        texts = {name for name in ("ptx", "sass", "amdgcn") if getattr(code, name)}
        assert texts == ({"amdgcn"} if target == "gfx942" else {"ptx", "sass"})
        assert "#ttg.blocked<{sizePerThread" in code.ttgir

    def test_four_warps_spill_what_eight_hold(self, spilling):
        assert spilling.spills and spilling.spilled_bytes >= 64
        assert spilling.registers == 255
        assert spilling.local_loads > 0 and spilling.local_stores > 0
        clean = one(matmul, HALVES, BIG, "sm_90", num_warps=8, num_stages=3)
        assert not clean.spills and clean.local_stores == 0
        assert 128 < clean.registers < 255
        assert clean.occupancy.resident_programs == 1 and clean.occupancy.resident_warps == 8

    def test_compiling_is_not_fitting(self):
        code = one(matmul, HALVES, {"M": 128, "N": 128, "K": 64}, "sm_90", num_warps=8, num_stages=8)
        assert not code.fits and code.shared_bytes > code.shared_limit == 227 * 1024
        assert code.occupancy.resident_programs == 0 and code.occupancy.limited_by == "shared memory"
        assert "shared memory" in code.misfits[0] and "does not fit sm_90" in code.report()


class TestDescriptors:
    def descriptors(self):
        tensor = torch.empty(256, 256, dtype=torch.float16)
        from triton.tools.tensor_descriptor import TensorDescriptor

        return [TensorDescriptor.from_tensor(tensor, [64, 64]) for _ in range(2)]

    def test_hopper_copies_tiles_by_tma_and_ampere_by_pointers(self):
        with record(execute=False) as launches:
            copy_tile[(1,)](*self.descriptors(), num_warps=4)
        hopper, ampere = compile_launches(launches, ["sm_90", "sm_80"])
        assert hopper.tma == 2 and hopper.loads == {}
        assert hopper.widest_load is None and hopper.shared_bytes >= 64 * 64 * 2
        assert ampere.tma == 0 and ampere.widest_load == 16  # of a descriptor's address nothing is known there
        assert hopper.signature["source"].startswith("tensordesc<fp16[64, 64]")


class TestSpecialisation:
    """Arguments are specialised as Triton's just-in-time compiler does it, because it does it."""

    ARGUMENTS = {
        "aligned": ("*float16", "*fp16"),
        "unaligned": ("*float16:8", "*fp16"),
        "multiple": (4096, "i32"),
        "odd": (17, "i32"),
        "one": (1, "constexpr"),
        "kept": (1, "i32"),
        "nothing": (None, "constexpr"),
        "flag": (True, "u1"),
        "wide": (2**40, "i64"),
        "unsigned": (2**63 + 1, "u64"),
        "real": (1.0, "fp32"),
    }

    @pytest.fixture
    def code(self):
        given = {name: value for name, (value, _) in self.ARGUMENTS.items()}
        return one(many, given, {"tile": 4}, "sm_90")

    def test_types(self, code):
        assert code.signature == {name: kind for name, (_, kind) in self.ARGUMENTS.items()} | {"tile": "constexpr"}
        assert code.divisible_by_16 == ("aligned", "multiple", "wide")

    def test_equal_to_what_triton_makes_of_the_arguments_themselves(self, code):
        from triton._C.libtriton import native_specialize_impl
        from triton.backends.compiler import BaseBackend

        memory = torch.empty(64, dtype=torch.float16)
        start = -(memory.data_ptr() // 2) % 8
        real = {"aligned": memory[start:], "unaligned": memory[start + 4 :]}
        for name, (given, _) in self.ARGUMENTS.items():
            kind, divisible = native_specialize_impl(BaseBackend, real.get(name, given), False, name != "kept", True)
            assert code.signature[name] == kind
            assert (name in code.divisible_by_16) == (divisible == "D")

    def test_a_constant_may_be_the_call_s_and_not_the_kernel_s(self):
        with record(execute=False) as launches:
            saxpy[(1,)](torch.empty(64), torch.empty(64), 2.0, tl.constexpr(32), BLOCK=32)
        (code,) = compile_launches(launches, ["sm_90"])
        assert code.signature["n"] == "constexpr"

    def test_a_recorded_launch(self):
        x = torch.empty(8192, device="meta")
        with record(execute=False) as launches:
            saxpy[(8,)](x, x[1:], 2.0, 4096, BLOCK=1024, num_warps=4)
            saxpy[(9,)](x, x[1:], 2.0, 4096, BLOCK=1024, num_warps=4)
        (code,) = compile_launches(launches, ["sm_90"])  # another grid is the same code
        assert code.loads == {32: 8, 128: 2} and code.stores == {32: 8}
        assert code.options == {"num_warps": 4, "num_stages": 3}


class TestFindingKernels:
    """A kernel is its text and the names in it, wherever it was defined."""

    def test_closures_helpers_defaults_and_autotuners(self):
        scale = tl.constexpr(3.0)

        @triton.jit
        def scaled(x):
            return twice(x) * scale

        @triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
        @triton.heuristics({"EVEN": lambda given: given["n"] % given["BLOCK"] == 0})
        @triton.jit
        def kernel(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr, function: tl.constexpr = twice):
            offsets = tl.arange(0, BLOCK)
            tl.store(x + offsets, function(scaled(tl.load(x + offsets))) + tl.cdiv(n, BLOCK), mask=offsets < n)

        constants = {"BLOCK": 512, "EVEN": True}
        assert one(kernel, {"x": "*float32", "n": 512}, constants, "sm_90", num_warps=4).loads == {128: 1}
        with_another = one(kernel, {"x": "*float32", "n": 512}, constants | {"function": scaled}, "sm_90", num_warps=4)
        assert with_another.loads == {128: 1}

    def test_annotations_may_be_text(self):
        code = one(annotated, {"x": "*float32", "n": 16}, {"N": 16}, "sm_90")
        assert code.signature == {"x": "*fp32", "n": "i64", "N": "constexpr"}

    def test_interpreted_and_compiled_kernels_are_one(self):
        function = saxpy.fn
        codes = [
            one(decorated(function), VECTORS, {"BLOCK": 1024}, "sm_90")
            for decorated in (InterpretedFunction, JITFunction)
        ]
        assert codes[0].sass == codes[1].sass

    def test_source_text(self):
        text = "from __future__ import annotations\nimport triton\nfrom triton import language as tl\n"
        text += "N = tl.constexpr(64)\n\n"
        text += "@triton.jit\ndef fill(x, value):\n    tl.store(x + tl.arange(0, N), value)\n"
        code = one(from_source(text, "fill", "cell.py"), {"x": "*float32", "value": 1.0}, {}, "gfx942", num_warps=1)
        assert code.name == "fill" and sum(code.stores.values()) == 1
        with pytest.raises(LookupError, match="name = 'full': cell.py defines fill"):
            from_source(text, "full", "cell.py")
        with pytest.raises(SyntaxError):
            from_source("def fill(:", "fill")

    def test_a_launch_that_was_plain_data(self):
        from threeloops.inner.kernels.rows.softmax import softmax

        with record(execute=False) as launches:
            softmax(torch.empty(64, 1024, device="meta"))
        plain = [Launch.from_dict(json.loads(json.dumps(each.to_dict()))) for each in launches]
        assert plain[0].kernel is None
        assert compile_launches(plain, ["sm_90"])[0].sass == compile_launches(launches, ["sm_90"])[0].sass

    def test_a_function_is_no_kernel(self):
        with pytest.raises(TypeError, match="decorated with triton.jit"):
            one(len, {}, {}, "sm_80")


class TestInspect:
    def test_launchers_choose_for_the_target(self):
        from threeloops.inner.kernels.rows.softmax import softmax

        x = torch.empty(512, 4096, dtype=torch.bfloat16, device="meta")
        for target in ("sm_90", "gfx942"):
            (code,) = inspect(lambda: softmax(x), target)
            assert code.target == target and code.widest_load == 128 and not code.spills

    def test_every_configuration_of_an_autotuned_kernel(self):
        configurations = [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((256, 4), (64, 1))]
        kernel = triton.autotune(configurations, key=["n"])(saxpy)
        x = torch.empty(8192, device="meta")
        codes = inspect(lambda: kernel[(8,)](x, x, 2.0, 8192), "sm_90", configs="all")
        assert [(code.name, code.configuration) for code in codes] == [
            ("saxpy", "BLOCK=64, num_warps=1, num_stages=3"),
            ("saxpy", "BLOCK=256, num_warps=4, num_stages=3"),
        ]
        assert [code.options["num_warps"] for code in codes] == [1, 4]
        assert "saxpy[BLOCK=64, num_warps=1, num_stages=3]" in codes[0].report()
        assert [code.configuration for code in inspect(lambda: kernel[(8,)](x, x, 2.0, 8192), "sm_90")] == [""]

    def test_targets(self):
        assert set(TARGETS) <= set(COMPILATION_TARGETS)
        with pytest.raises(ValueError, match="target = 'sm_60': expected one of sm_75, sm_80"):
            one(saxpy, VECTORS, {"BLOCK": 64}, "sm_60")
        with pytest.raises(ValueError, match="target = 'h100'"):
            inspect(lambda: None, "h100")


class TestErrors:
    def test_the_line_of_the_innermost_function(self):
        @triton.jit
        def helper(x):
            y = x + 1
            return y.unheard_of

        @triton.jit
        def kernel(x):
            tl.store(x, helper(tl.load(x)))

        with pytest.raises(CompileError, match="kernel does not compile for sm_80") as raised:
            one(kernel, {"x": "*float32"}, {}, "sm_80")
        error = raised.value
        assert (error.kernel, error.target, error.file) == ("kernel", "sm_80", __file__)
        assert error.line == helper.fn.__code__.co_firstlineno + 3
        assert "unheard_of" in error.reason and "return y.unheard_of" in str(error)

    def test_names_that_the_kernel_cannot_use(self):
        @triton.jit
        def kernel(x):
            tl.store(x, unknown_name)  # noqa: F821

        with pytest.raises(CompileError, match="unknown_name"):
            one(kernel, {"x": "*float32"}, {}, "sm_80")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"num_warps": 3}, "power of 2"),
            ({"waves_per_eu": 2}, "waves_per_eu"),  # an option of AMD's compiler
        ],
    )
    def test_options(self, changes, message):
        with pytest.raises(CompileError, match=message):
            one(saxpy, VECTORS, {"BLOCK": 64}, "sm_90", **changes)

    def test_arguments(self):
        with pytest.raises(CompileError, match="missing 1 required positional argument: 'n'"):
            one(saxpy, {name: VECTORS[name] for name in "xya"}, {"BLOCK": 64}, "sm_80")
        with pytest.raises(TypeError, match="argument a = {}: expected a tensor"):
            one(saxpy, VECTORS | {"a": {}}, {"BLOCK": 64}, "sm_80")


class TestShowing:
    def test_report(self, spilling):
        text = spilling.report()
        assert text.splitlines()[0].split()[:4] == ["kernel", "target", "warps", "registers"]
        assert f"{spilling.spilled_bytes} B" in text and "wgmma" in text and "144 KB of 227 KB" in text


@pytest.mark.gpu
def test_the_driver_counts_the_same_registers():
    """On a GPU: what the driver says of the loaded kernel, against what was read from the code."""
    major, minor = torch.cuda.get_device_capability()
    target = f"sm_{major}{minor}"
    a = torch.empty(256, 4096, device="cuda", dtype=torch.bfloat16)
    for warps in (4, 8):
        kernel = JITFunction(matmul.fn)
        loaded = kernel[(1,)](a, a, a, 64, 4096, **BIG, num_warps=warps, num_stages=1)
        arguments = dict.fromkeys("abc", "*bfloat16") | {"k": 64, "stride": 4096}
        code = one(kernel, arguments, BIG, target, num_warps=warps, num_stages=1)
        assert code.registers == loaded.n_regs
        assert code.spills == (loaded.n_spills > 0)
