"""Which keys a tile of queries sees, for the attention kernels.

A causal mask is aligned at the last query and the last key, as in FlashAttention-2: of n queries and m keys, query i
sees keys 0 … i + m − n. So a single query after a long prefix sees all of it. With as many keys as queries this is the
usual lower triangle. Where n > m the first n − m queries see nothing.
"""

import triton
import triton.language as tl


@triton.jit
def visible_keys(first_query, queries, keys, BLOCK_M: tl.constexpr, CAUSAL: tl.constexpr):
    """For the tile of BLOCK_M queries from first_query on: the last key that each row sees (−1 or less for none), and
    how many keys the whole tile sees, and any row of it."""
    if CAUSAL:
        offset = first_query + keys - queries
        last_visible = tl.minimum(offset + tl.arange(0, BLOCK_M), keys - 1)
        seen_by_all = tl.maximum(tl.minimum(offset + 1, keys), 0)
        seen_by_any = tl.maximum(tl.minimum(offset + BLOCK_M, keys), 0)
    else:
        last_visible = tl.zeros((BLOCK_M,), tl.int32) + (keys - 1)
        seen_by_all = keys
        seen_by_any = keys
    return last_visible, seen_by_all, seen_by_any


@triton.jit
def heaviest_first(program, programs, CAUSAL: tl.constexpr):
    """The tile that this program takes. Under a causal mask the last tile sees most keys: it is started first, so that
    the short ones fill the gaps at the end."""
    if CAUSAL:
        tile = programs - 1 - program
    else:
        tile = program
    return tile
