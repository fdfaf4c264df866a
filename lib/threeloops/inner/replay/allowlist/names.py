"""The names that an admitted kernel may use: functions of `tl`, methods of tensors, and builtins, as an allowlist.

Nothing here hands out a Python object with more to it than numbers: no submodules, no constructors that take handles,
no printing, no inline assembly. A name that the installed Triton lacks fails where it is used.
"""

__all__ = [
    "BUILTINS", "DTYPES", "FLOAT_WORDS", "MATH_FUNCTIONS", "MATH_NUMBERS", "MEMBERS", "RESERVED", "TL", "TL_FUNCTIONS",
    "TL_MATH", "TRITON",
]  # fmt: skip

DTYPES = frozenset(
    "int1 int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 "
    "float8e4nv float8e5 float8e4b8 float8e5b16 float8e4b15 pi32_t".split()
)

TL = DTYPES | frozenset(
    # programs, ranges and shapes
    "program_id num_programs arange range static_range full zeros zeros_like broadcast broadcast_to expand_dims "
    "reshape view ravel permute trans squeeze unsqueeze cat join split interleave flip gather cast to_tensor where "
    # memory
    "load store make_block_ptr advance make_tensor_descriptor load_tensor_descriptor store_tensor_descriptor "
    "atomic_add atomic_and atomic_cas atomic_max atomic_min atomic_or atomic_xchg atomic_xor debug_barrier "
    # arithmetic
    "abs add sub mul cdiv ceil floor clamp cos sin erf exp exp2 log log2 fma fdiv div_rn maximum minimum rsqrt sqrt "
    "sqrt_rn sigmoid softmax umulhi dot dot_scaled swizzle2d PropagateNan "
    # reductions, scans, sorting
    "sum max min argmax argmin xor_sum reduce_or reduce associative_scan cumsum cumprod histogram sort topk "
    "bitonic_merge "
    # random numbers
    "philox philox_impl rand rand4x randn randn4x randint randint4x uint_to_uniform_float pair_uniform_to_normal "
    # for the compiler
    "constexpr static_assert device_assert assume multiple_of max_contiguous max_constancy "
    "TRITON_MAX_TENSOR_NUMEL".split()
)

TL_MATH = frozenset("abs ceil cos div_rn erf exp exp2 fdiv floor fma log log2 rsqrt sin sqrt sqrt_rn umulhi".split())

TL_FUNCTIONS = TL - DTYPES - {"PropagateNan", "TRITON_MAX_TENSOR_NUMEL"}

MATH_NUMBERS = frozenset({"e", "pi", "tau", "inf"})

MATH_FUNCTIONS = frozenset("sqrt log log2 log10 log1p exp exp2 expm1 erf ceil floor pow fabs".split())
"""Functions of Python's math that Triton computes on compile-time numbers."""

TRITON = frozenset({"cdiv", "next_power_of_2"})

MEMBERS = frozenset(
    # tensors
    "T abs advance argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_max atomic_min atomic_or "
    "atomic_xchg atomic_xor broadcast_to cast cdiv ceil cos cumprod cumsum erf exp exp2 expand_dims flip floor gather "
    "histogram item log log2 logical_and logical_or max min permute ravel reduce reduce_or reshape rsqrt sigmoid sin "
    "softmax sort split sqrt sqrt_rn squeeze store sum to trans unsqueeze view xor_sum shape dtype type numel "
    # tensor descriptors
    "load scatter block_shape "
    # dtypes
    "element_ty scalar primitive_bitwidth itemsize int_bitwidth fp_mantissa_width is_bf16 is_fp16 is_fp32 is_fp64 "
    "is_fp8 is_fp8e4nv is_fp8e5 is_fp8e4b8 is_fp8e5b16 is_fp8e4b15 is_floating is_standard_floating is_int is_bool "
    "is_int1 is_int8 is_int16 is_int32 is_int64 is_uint8 is_uint16 is_uint32 is_uint64 is_int_signed is_int_unsigned "
    "is_ptr is_block is_const "
    # PropagateNan
    "ALL NONE".split()
)
"""Attributes of anything but modules: harmless on every object that a kernel can reach."""

BUILTINS = frozenset("range min max abs float int bool len list".split())

FLOAT_WORDS = frozenset({"inf", "+inf", "-inf", "nan"})

RESERVED = frozenset({"tl", "triton", "math", "interpreter_semantic", "interpreter_builder"})
"""Names that a cell may not rebind: the interpreter itself looks some of them up in the kernel's module."""
