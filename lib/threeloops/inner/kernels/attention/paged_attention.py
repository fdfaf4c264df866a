"""Paged attention for decoding: one query per sequence, whose keys and values lie in blocks named by a block table.

Sources: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention"; Dao,
Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference"
(https://crfm.stanford.edu/2023/10/12/flashdecoding.html).

Decoding reads every key and value once and computes a few FLOPs with each, so memory's bandwidth is the limit. One
program takes all query heads that share a key head, so each key is loaded once for the whole group. It walks over the
sequence with an online softmax, BLOCK_N keys at a time. If there are too few sequences and key heads to fill the GPU,
each sequence's keys are split between several programs. Each of these stores its values and the logarithm of its sum of
exponentials, and a second kernel combines them into the result.

Slots that the table does not name, and those of the last block beyond the length, are never read.
"""

import math

import torch
import triton
import triton.language as tl

from threeloops.inner.costs import Work, require_positive
from threeloops.inner.kernels import launching
from threeloops.inner.kernels.launching import LOG2_E, Configuration, multiprocessors

__all__ = ["HEAD_DIMS", "combine_splits_kernel", "cost", "paged_attention", "paged_attention_kernel", "reference"]

HEAD_DIMS = (16, 32, 64, 128)

_SMALLEST_DOT = 16
"""Rows that the matrix units take at least. Decoding waits for memory, so the rows that are padding cost no time."""

_KEYS_PER_SPLIT = 256
"""A split of fewer keys would spend more on its partial result than it saves."""

_LARGEST_SPLITS = 64

_LOWEST = tl.constexpr(-3.4e38)
"""The running maximum before any score: finite, so that no difference is ∞ − ∞."""


@triton.jit
def paged_attention_kernel(
    q, keys, values, tables, lengths, output, log_sums,
    stride_q_sequence, stride_q_head, stride_k_slot, stride_k_head, stride_v_slot, stride_v_head, stride_table,
    group, scale,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    GROUP_TILES: tl.constexpr, SPLIT: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1) // GROUP_TILES
    split, splits = tl.program_id(2), tl.num_programs(2)
    rows = (tl.program_id(1) % GROUP_TILES) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    channels = tl.arange(0, HEAD_DIM)
    row_exists = rows < group
    head = kv_head * group + rows
    tables += sequence * stride_table
    keys += kv_head.to(tl.int64) * stride_k_head
    values += kv_head.to(tl.int64) * stride_v_head
    q_offsets = sequence * stride_q_sequence + head[:, None] * stride_q_head + channels[None, :]
    q_values = tl.load(q + q_offsets, mask=row_exists[:, None], other=0.0)

    length = tl.load(lengths + sequence).to(tl.int32)
    keys_per_split = tl.cdiv(tl.cdiv(length, BLOCK_N), splits) * BLOCK_N
    first = split * keys_per_split
    end = tl.minimum(first + keys_per_split, length)
    maximum = tl.full((BLOCK_M,), _LOWEST, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    weighted = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for start in range(first, end, BLOCK_N):
        position = start + columns
        exists = position < end
        block = tl.load(tables + position // BLOCK_SIZE, mask=exists, other=0).to(tl.int64)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        k = tl.load(keys + slot[:, None] * stride_k_slot + channels[None, :], mask=exists[:, None], other=0.0)
        v = tl.load(values + slot[:, None] * stride_v_slot + channels[None, :], mask=exists[:, None], other=0.0)
        scores = tl.dot(q_values, k.T, input_precision=INPUT_PRECISION) * scale
        scores = tl.where(exists[None, :], scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        weights = tl.exp2(scores - new_maximum[:, None])
        rescale = tl.exp2(maximum - new_maximum)
        total = total * rescale + tl.sum(weights, 1)
        weighted = tl.dot(weights.to(v.dtype), v, weighted * rescale[:, None], input_precision=INPUT_PRECISION)
        maximum = new_maximum

    sees_nothing = total == 0
    result = weighted / tl.where(sees_nothing, 1.0, total)[:, None]
    row = (sequence * (tl.num_programs(1) // GROUP_TILES) * group + head) * splits + split
    tl.store(
        output + row[:, None] * HEAD_DIM + channels[None, :],
        result.to(output.dtype.element_ty),
        mask=row_exists[:, None],
    )
    if SPLIT:
        tl.store(log_sums + row, tl.where(sees_nothing, float("-inf"), maximum + tl.log2(total)), mask=row_exists)


@triton.jit
def combine_splits_kernel(
    partial, log_sums, output, splits, HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr
):  # fmt: skip
    """Compute output = Σ partial · 2^log_sum / Σ 2^log_sum over the splits of one row. SPLITS: `splits` or a little
    more."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    channels = tl.arange(0, HEAD_DIM)
    exists = split < splits
    log_sum = tl.load(log_sums + row * splits + split, mask=exists, other=float("-inf"))
    weights = tl.exp2(log_sum - tl.max(log_sum, 0))
    parts = tl.load(
        partial + (row * splits + split[:, None]) * HEAD_DIM + channels[None, :], mask=exists[:, None], other=0.0
    )
    result = tl.sum(parts * weights[:, None], 0) / tl.sum(weights, 0)
    tl.store(output + row * HEAD_DIM + channels, result.to(output.dtype.element_ty))


def paged_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    block_size: int,
    *,
    softmax_scale: float | None = None,
    splits: int | None = None,
) -> torch.Tensor:
    """Attend from each sequence's query to its keys. The result is (sequences, heads, head_dim).

    q is (sequences, heads, head_dim), keys and values (slots, kv_heads, head_dim) with any strides of slots and heads.
    Block b of `tables`, (sequences, blocks), holds slots b · block_size to (b + 1) · block_size − 1; a sequence has
    `lengths` keys, (sequences,), at least 1, its query's own among them. Later entries of a table are not read. fp16,
    bf16 or float32; head_dim 16, 32, 64 or 128. `softmax_scale` is 1/√head_dim unless given. `splits` is the number of
    programs that share a sequence's keys, chosen to fill the GPU unless given. Raises ValueError for arguments that
    cannot be computed.

    The host does not look at lengths and tables, so nothing waits for the GPU, and the call can be captured in a CUDA
    graph.
    """
    sequences, heads, head_dim = _check(q, keys, values, tables, lengths)
    if block_size < 1 or keys.shape[0] % block_size:
        raise ValueError(f"block_size = {block_size}: expected a positive divisor of the {keys.shape[0]} slots of keys")
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    if not 0 < scale < math.inf:
        raise ValueError(f"softmax_scale = {scale}: expected a positive number; leave it out for 1/√head_dim")
    if splits is not None and not 1 <= splits <= _LARGEST_SPLITS:
        raise ValueError(f"splits = {splits}: expected 1 to {_LARGEST_SPLITS}; leave it out to fill the GPU")
    output = torch.empty_like(q, memory_format=torch.contiguous_format)
    if not sequences:
        return output
    kv_heads, group = keys.shape[1], heads // keys.shape[1]
    splits = splits or _splits(sequences * kv_heads, tables.shape[1] * block_size)
    q, keys, values = (tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (q, keys, values))
    tables = tables if tables.stride(-1) == 1 else tables.contiguous()
    partial, log_sums = output, None
    if splits > 1:
        partial = torch.empty(sequences, heads, splits, head_dim, dtype=torch.float32, device=q.device)
        log_sums = torch.empty(sequences, heads, splits, dtype=torch.float32, device=q.device)
    configuration = _configuration(q.dtype, head_dim, group)
    group_tiles = triton.cdiv(group, configuration.constants["BLOCK_M"])
    paged_attention_kernel[sequences, kv_heads * group_tiles, splits](
        q, keys, values, tables, lengths, partial, log_sums,
        *q.stride()[:2], *keys.stride()[:2], *values.stride()[:2], tables.stride(0),
        group, scale * LOG2_E,
        BLOCK_SIZE=block_size, GROUP_TILES=group_tiles, SPLIT=splits > 1, INPUT_PRECISION="ieee",
        **configuration.options(),
    )  # fmt: skip
    if splits > 1:
        combine_splits_kernel[(sequences * heads,)](
            partial, log_sums, output, splits, HEAD_DIM=head_dim, SPLITS=triton.next_power_of_2(splits), num_warps=1
        )
    return output


def reference(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    block_size: int,
) -> torch.Tensor:
    """Compute the same in PyTorch: all blocks of the tables are copied side by side, and keys beyond the length are
    masked."""
    slots = (tables[:, :, None] * block_size + torch.arange(block_size, device=tables.device)).flatten(1)
    k, v = keys[slots].transpose(1, 2), values[slots].transpose(1, 2)  # (sequences, kv_heads, keys, head_dim)
    visible = torch.arange(slots.shape[1], device=lengths.device) < lengths[:, None]
    k, v = (tensor.masked_fill(~visible[:, None, :, None], 0) for tensor in (k, v))
    grouped = q.unflatten(1, (keys.shape[1], -1))
    scores = (grouped @ k.mT * q.shape[-1] ** -0.5).masked_fill(~visible[:, None, None], -torch.inf)
    return (scores.softmax(-1) @ v).flatten(1, 2)


def cost(
    tokens: int,
    sequences: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    bytes_per_element: float = 2,
    *,
    block_size: int = 16,
    bytes_per_index: int = 4,
) -> Work:
    """Return the least work for `tokens` keys in all: each key and value is read once for the heads that share it.

    Queries are read and results written once, and so are the tables' used places (as many as if all sequences were
    equally long) and one length per sequence. FLOPs of a query and a key: 4·head_dim for the two products and 6 for
    scale and softmax.
    """
    require_positive(tokens=tokens, sequences=sequences, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    elements = 2 * (tokens * kv_heads + sequences * heads) * head_dim
    indices = sequences * (-(-tokens // (sequences * block_size)) + 1)
    return Work(elements * bytes_per_element + indices * bytes_per_index, (4 * head_dim + 6) * heads * tokens)


def _check(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tables: torch.Tensor, lengths: torch.Tensor
) -> tuple[int, int, int]:
    """Check the arguments, and return sequences, heads and head_dim."""
    launching.require_tensors(q=q, keys=keys, values=values)
    launching.require_dtypes((torch.int32, torch.int64), tables=tables, lengths=lengths)
    launching.require_one_device(q=q, tables=tables, lengths=lengths)
    launching.require_dimensions("q", q, "sequences, heads, head_dim")
    launching.require_dimensions("keys", keys, "slots, kv_heads, head_dim")
    launching.require_dimensions("tables", tables, "sequences, blocks")
    sequences, heads, head_dim = q.shape
    launching.require_head_dim(head_dim, HEAD_DIMS)
    launching.require_shape("keys", keys, (*keys.shape[:2], head_dim), "head_dim of q")
    launching.require_shape("values", values, tuple(keys.shape), "the shape of keys")
    launching.require_divides("kv_heads", keys.shape[1], "heads", heads)
    launching.require_shape("tables", tables, (sequences, tables.shape[1]), "sequences of q")
    launching.require_shape("lengths", lengths, (sequences,), "sequences of q")
    return sequences, heads, head_dim


def _splits(programs: int, keys: int) -> int:
    """Choose the number of splits: two programs per multiprocessor, each with at least `_KEYS_PER_SPLIT` keys."""
    fill = triton.cdiv(2 * multiprocessors(), programs)
    return max(1, min(fill, keys // _KEYS_PER_SPLIT, _LARGEST_SPLITS))


def _configuration(dtype: torch.dtype, head_dim: int, group: int) -> Configuration:
    """Choose tiles of 64 keys, two in flight while one is computed. float32 is multiplied without tensor cores in small
    tiles.

    A group of more heads than a tile has rows is shared out, and its keys are read for each tile. All compile without
    spills for every target; they were not tuned on a GPU.
    """
    most, keys, stages = (16, 16, 1) if dtype == torch.float32 else (64, 64, 3)
    rows = min(max(_SMALLEST_DOT, triton.next_power_of_2(group)), most)
    constants = {"HEAD_DIM": head_dim, "BLOCK_M": rows, "BLOCK_N": keys}
    return Configuration(constants, num_warps=4, num_stages=stages)
