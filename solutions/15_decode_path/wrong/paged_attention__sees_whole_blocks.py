# expect: all slots of its blocks are seen
# fails: values, stale
def paged_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tables: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Each sequence's query over its keys."""
    size, group = keys.shape[1], q.shape[1] // keys.shape[2]
    positions = torch.arange(-(-int(lengths.max()) // size) * size)
    known = positions < (lengths[:, None] + size - 1) // size * size
    blocks = tables[:, positions // size].where(known, 0)
    k, v = (each[blocks, positions % size].where(known[:, :, None, None], 0) for each in (keys, values))
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("shd,skhd->shk", q, k) / q.shape[2] ** 0.5
    weights = scores.masked_fill(~known[:, None], -torch.inf).softmax(-1)
    return torch.einsum("shk,skhd->shd", weights, v)
