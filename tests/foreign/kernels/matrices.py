"""Matrix products: grouped order, split K, persistent programs, block pointers, descriptors, tables of pointers."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import FP16, FP32, INT32, INT64, case


@triton.jit
def grouped_order_kernel(
    a, b, c, M, N, K, sam, sak, sbk, sbn, scm, scn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    in_group = GROUP * across
    first = pid // in_group * GROUP
    size = min(down - first, GROUP)
    m = first + pid % in_group % size
    n = pid % in_group // size
    rm, rn, rk = (m * BM + tl.arange(0, BM)) % M, (n * BN + tl.arange(0, BN)) % N, tl.arange(0, BK)
    pa, pb = a + rm[:, None] * sam + rk[None, :] * sak, b + rk[:, None] * sbk + rn[None, :] * sbn
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        left = tl.load(pa, mask=rk[None, :] < K - k * BK, other=0.0)
        total = tl.dot(left, tl.load(pb, mask=rk[:, None] < K - k * BK, other=0.0), total)
        pa += BK * sak
        pb += BK * sbk
    if ACTIVATION == "relu":
        total = tl.maximum(total, 0.0)
    rm, rn = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN)
    inside = (rm[:, None] < M) & (rn[None, :] < N)
    tl.store(c + rm[:, None] * scm + rn[None, :] * scn, total.to(tl.float16), mask=inside)


@case(loaded=FP16 * (40 * 35 + 35 * 50), stored=FP16 * 40 * 50, tolerance=2e-3, compiles_slowly=True)
def product_in_grouped_order():
    """Order the tiles in groups of rows, wrap around at the edges, and apply an activation named by a string."""
    a, b = torch.randn(40, 35).half(), torch.randn(50, 35).half().T
    c = torch.empty(40, 50, dtype=torch.half)
    blocks = {"BM": 16, "BN": 16, "BK": 16, "GROUP": 2}
    grouped_order_kernel[(12,)](a, b, c, 40, 50, 35, *a.stride(), *b.stride(), *c.stride(), **blocks, ACTIVATION="relu")
    return c, (a.double() @ b.double()).relu()


@triton.jit
def split_k_kernel(a, b, c, M, N, K, BLOCK: tl.constexpr, SPLITS: tl.constexpr):
    m, n, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rm, rn = m * BLOCK + tl.arange(0, BLOCK), n * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(split * BLOCK, K, SPLITS * BLOCK):
        rk = k + tl.arange(0, BLOCK)
        left = tl.load(a + rm[:, None] * K + rk, mask=(rm[:, None] < M) & (rk < K), other=0.0)
        right = tl.load(b + rk[:, None] * N + rn, mask=(rk[:, None] < K) & (rn < N), other=0.0)
        total += tl.dot(left, right, allow_tf32=False)
    tl.atomic_add(c + rm[:, None] * N + rn, total, mask=(rm[:, None] < M) & (rn < N))


@case(loaded=FP32 * (20 * 70 + 70 * 24 + 20 * 24), stored=FP32 * 20 * 24, tolerance=1e-5, compiles_slowly=True)
def product_with_split_k():
    """Let three programs per tile add their parts of the inner dimension atomically."""
    a, b = torch.randn(20, 70), torch.randn(70, 24)
    c = torch.zeros(20, 24)
    split_k_kernel[(2, 2, 3)](a, b, c, 20, 24, 70, BLOCK=16, SPLITS=3)
    return c, a.double() @ b.double()


@triton.jit
def persistent_kernel(a, b, c, M, N, K, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    across = tl.cdiv(N, BLOCK)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BLOCK) * across, PROGRAMS, flatten=True):
        rm, rn = tile // across * BLOCK + tl.arange(0, BLOCK), tile % across * BLOCK + tl.arange(0, BLOCK)
        rm, rn = tl.where(rm < M, rm, 0), tl.where(rn < N, rn, 0)
        rm = tl.max_contiguous(tl.multiple_of(rm, BLOCK), BLOCK)
        total = tl.zeros((BLOCK, BLOCK), tl.float32)
        for k in range(0, K, BLOCK):
            rk = k + tl.arange(0, BLOCK)
            total = tl.dot(tl.load(a + rm[:, None] * K + rk), tl.load(b + rk[:, None] * N + rn), total)
        rm, rn = tile // across * BLOCK + tl.arange(0, BLOCK), tile % across * BLOCK + tl.arange(0, BLOCK)
        tl.store(c + rm[:, None] * N + rn, total.to(c.dtype.element_ty), mask=(rm[:, None] < M) & (rn < N))


@case(loaded=2 * (40 * 32 + 32 * 36), stored=2 * 40 * 36, tolerance=1e-2, compiles_slowly=True)
def product_by_persistent_programs():
    """Walk over nine bfloat16 tiles with four programs; rows outside are replaced by row 0."""
    a, b = torch.randn(40, 32).bfloat16(), torch.randn(32, 36).bfloat16()
    c = torch.empty(40, 36, dtype=torch.bfloat16)
    persistent_kernel[(4,)](a, b, c, 40, 36, 32, PROGRAMS=4, BLOCK=16)
    return c, a.double() @ b.double()


@triton.jit
def pointer_table_kernel(a_table, b_table, c_table, sizes, problems, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    tile, before = tl.program_id(0), 0
    for problem in range(problems):
        rows = tl.load(sizes + problem)
        tiles = tl.cdiv(rows, BLOCK)
        while tile >= before and tile < before + tiles:
            a = tl.load(a_table + problem).to(tl.pointer_type(tl.float16))
            b = tl.load(b_table + problem).to(tl.pointer_type(tl.float16))
            c = tl.load(c_table + problem).to(tl.pointer_type(tl.float16))
            r, k = (tile - before) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK)
            left = tl.load(a + r[:, None] * BLOCK + k, mask=r[:, None] < rows, other=0.0)
            total = tl.dot(left, tl.load(b + k[:, None] * BLOCK + k))
            tl.store(c + r[:, None] * BLOCK + k, total.to(tl.float16), mask=r[:, None] < rows)
            tile += PROGRAMS
        before += tiles


@case(
    loaded=3 * INT64 * 3 + INT32 * 3 + FP16 * (20 + 16 + 40 + 3 * 16) * 16,
    stored=FP16 * (20 + 16 + 40) * 16,
    tolerance=2e-3,
    compiles_slowly=True,
)
def products_of_a_table_of_pointers():
    """Load the addresses of three problems of different sizes from memory and turn them into pointers."""
    rows = [20, 16, 40]
    a, b = [torch.randn(each, 16).half() for each in rows], [torch.randn(16, 16).half() for _ in rows]
    c = [torch.empty(each, 16, dtype=torch.half) for each in rows]
    tables = [torch.tensor([each.data_ptr() for each in matrices]) for matrices in (a, b, c)]
    pointer_table_kernel[(2,)](*tables, torch.tensor(rows, dtype=torch.int32), 3, PROGRAMS=2, BLOCK=16)
    return tuple(c), tuple(left.double() @ right.double() for left, right in zip(a, b, strict=True))


@triton.jit
def block_pointer_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    left = tl.make_block_ptr(a, (M, K), (K, 1), (m, 0), (BM, BK), order=(1, 0))
    right = tl.make_block_ptr(b, (K, N), (1, K), (0, n), (BK, BN), order=(0, 1))
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K, BK):
        tile = tl.load(left, boundary_check=(0, 1), padding_option="zero")
        total += tl.dot(tile, tl.load(right, boundary_check=(0, 1), padding_option="zero"))
        left, right = tl.advance(left, (0, BK)), tl.advance(right, (BK, 0))
    out = tl.make_block_ptr(c, (M, N), (N, 1), (m, n), (BM, BN), order=(1, 0))
    tl.store(out, total.to(c.dtype.element_ty), boundary_check=(0, 1))


@case(loaded=FP16 * (20 * 40 + 40 * 50), stored=FP16 * 20 * 50, tolerance=2e-3, until="3.8", compiles_slowly=True)
def product_by_block_pointers():
    """Advance block pointers over a matrix and a transposed one, and take the dtype of the result from its pointer."""
    a, b = torch.randn(20, 40).half(), torch.randn(50, 40).half()
    c = torch.empty(20, 50, dtype=torch.half)
    block_pointer_kernel[(2, 2)](a, b, c, 20, 50, 40, BM=16, BN=32, BK=16)
    return c, a.double() @ b.double().T


@triton.jit
def host_descriptor_kernel(a, b, c, K, BLOCK: tl.constexpr):
    m, n = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        total = tl.dot(a.load([m, k]), b.load([n, k]).T, total)
    c.store([m, n], total.to(tl.float16))


@case(loaded=FP16 * (24 * 40 + 48 * 40), stored=FP16 * 24 * 48, tolerance=2e-3, compiles_slowly=True)
def product_by_descriptors_of_the_host():
    """Load and store tiles by descriptors that the launcher made, which clip at the edges."""
    a, b = torch.randn(24, 40).half(), torch.randn(48, 40).half()
    c = torch.empty(24, 48, dtype=torch.half)
    described = [TensorDescriptor.from_tensor(each, [16, 16]) for each in (a, b, c)]
    host_descriptor_kernel[(2, 3)](*described, 40, BLOCK=16)
    return c, a.double() @ b.double().T


@triton.jit
def device_descriptor_kernel(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    target = tl.make_tensor_descriptor(out, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    place = [tl.program_id(0) * BM, tl.program_id(1) * BN]
    target.store(place, tl.abs(source.load(place)))


@case(loaded=FP32 * 20 * 36, stored=FP32 * 20 * 36, compiles_slowly=True)
def absolute_values_by_descriptors_of_the_device():
    """Make descriptors in the kernel itself; tiles clip at the edges of both axes."""
    x = torch.randn(20, 36)
    out = torch.empty(20, 36)
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8))
    device_descriptor_kernel[(2, 3)](x, out, 20, 36, BM=16, BN=16)
    return out, x.abs()


@triton.autotune([triton.Config({"BR": 4, "BC": 16}), triton.Config({"BR": 8, "BC": 32})], key=["rows", "columns"])
@triton.jit
def matrix_vector_kernel(a, x, out, rows, columns, BR: tl.constexpr, BC: tl.constexpr):
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    total = tl.zeros((BR,), dtype=tl.float32)
    for start in range(0, columns, BC):
        c = start + tl.arange(0, BC)
        tile = tl.load(a + r[:, None] * columns + c, mask=(r[:, None] < rows) & (c < columns), other=0.0)
        total += tl.sum(tile * tl.load(x + c, mask=c < columns, other=0.0), axis=1)
    tl.store(out + r, total, mask=r < rows)


@case(loaded=FP32 * (10 * 40 + 40), stored=FP32 * 10, tolerance=1e-5)
def matrix_times_vector_with_autotuning():
    """Multiply and reduce without a dot, with a grid that depends on the chosen configuration."""
    a, x = torch.randn(10, 40), torch.randn(40)
    out = torch.empty(10)
    matrix_vector_kernel[lambda meta: (triton.cdiv(10, meta["BR"]),)](a, x, out, 10, 40)
    return out, a.double() @ x.double()


@triton.jit
def batched_kernel(a, b, c, K: tl.constexpr, B: tl.constexpr, BLOCK: tl.constexpr):
    batch = (tl.program_id(0) * B + tl.arange(0, B))[:, None, None]
    row, column = tl.arange(0, BLOCK)[None, :, None], tl.arange(0, BLOCK)[None, None, :]
    left = tl.load(a + batch * BLOCK * K + row * K + tl.arange(0, K)[None, None, :])
    right = tl.load(b + batch * BLOCK * K + tl.arange(0, K)[None, :, None] * BLOCK + column)
    tl.store(c + batch * BLOCK * BLOCK + row * BLOCK + column, tl.dot(left, right))


@case(loaded=FP16 * 4 * 2 * 16 * 32, stored=FP32 * 4 * 16 * 16, tolerance=1e-5, compiles_slowly=True)
def batch_of_products_in_one_tile():
    """Multiply three-dimensional tiles of two matrices at once."""
    a, b = torch.randn(4, 16, 32).half(), torch.randn(4, 32, 16).half()
    c = torch.empty(4, 16, 16)
    batched_kernel[(2,)](a, b, c, K=32, B=2, BLOCK=16)
    return c, a.double() @ b.double()


@triton.jit
def symmetric_kernel(x, out, M, K, BLOCK: tl.constexpr):
    m, n = tl.program_id(0), tl.program_id(1)
    if n > m:
        return
    rm, rn = m * BLOCK + tl.arange(0, BLOCK), n * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        rk = k + tl.arange(0, BLOCK)
        left = tl.load(x + rm[:, None] * K + rk[None, :])
        total = tl.dot(left, tl.load(x + rn[None, :] * K + rk[:, None]), total, input_precision="ieee")
    tl.store(out + rm[:, None] * M + rn[None, :], total)
    if m != n:
        tl.store(out + rn[:, None] * M + rm[None, :], total.T)


@case(loaded=FP32 * 48 * 32, stored=FP32 * 48 * 48, tolerance=1e-5, compiles_slowly=True)
def product_with_the_own_transpose():
    """Compute the lower triangle of tiles and store each one mirrored as well."""
    x = torch.randn(48, 32)
    out = torch.empty(48, 48)
    symmetric_kernel[(3, 3)](x, out, 48, 32, BLOCK=16)
    return out, x.double() @ x.double().T


@triton.jit
def low_rank_kernel(x, w, a, b, out, scale, N: tl.constexpr, K: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr):
    m, n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    k, r = tl.arange(0, K), tl.arange(0, R)
    rows = tl.load(x + m[:, None] * K + k)
    base = tl.dot(rows, tl.load(w + k[:, None] * N + n))
    inner = tl.dot(rows, tl.load(a + k[:, None] * R + r)).to(tl.float16)
    base += scale * tl.dot(inner, tl.load(b + r[:, None] * N + n))
    tl.store(out + m[:, None] * N + n, base)


@case(
    loaded=FP16 * (32 * 32 + 32 * 48 + 32 * 16 + 16 * 48), stored=FP32 * 32 * 48, tolerance=1e-2, compiles_slowly=True
)
def product_with_a_low_rank_update():
    """Add a product of two narrow matrices to a product, and round in between."""
    x, w, a, b = (torch.randn(shape).half() for shape in [(32, 32), (32, 48), (32, 16), (16, 48)])
    out = torch.empty(32, 48)
    low_rank_kernel[(2, 3)](x, w, a, b, out, 0.5, N=48, K=32, R=16, BLOCK=16)
    inner = (x.double() @ a.double()).half().double()
    return out, x.double() @ w.double() + 0.5 * inner @ b.double()
