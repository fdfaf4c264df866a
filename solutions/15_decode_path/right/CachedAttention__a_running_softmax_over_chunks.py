class CachedAttention:
    """Each call keeps a chunk of its own; a running softmax goes from chunk to chunk."""

    def __init__(self, kv_heads):
        self.kv_heads, self.chunks = kv_heads, []

    def attend(self, q, k, v):
        head_dim = k.shape[-1] // self.kv_heads
        q = q.unflatten(-1, (self.kv_heads, -1, head_dim)).movedim(1, 3)  # batch, kv head, group, new, head_dim
        self.chunks.append(
            tuple(each.unflatten(-1, (self.kv_heads, head_dim)).transpose(1, 2)[:, :, None] for each in (k, v))
        )
        largest = torch.full(q.shape[:-1], -torch.inf, dtype=q.dtype)
        total, result = torch.zeros_like(largest), torch.zeros_like(q)
        for keys, values in self.chunks:
            scores = q @ keys.mT / head_dim**0.5
            if keys is self.chunks[-1][0]:
                scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
            before, largest = largest, torch.maximum(largest, scores.amax(-1))
            shares, kept = (scores - largest[..., None]).exp(), (before - largest).exp()
            total = total * kept + shares.sum(-1)
            result = result * kept[..., None] + shares @ values
        return (result / total[..., None]).movedim(3, 1).flatten(2)

    def truncate(self, length):
        count = sum(keys.shape[-2] for keys, _ in self.chunks)
        if not 0 <= length <= count:
            raise ValueError(f"length = {length} of {count} tokens")
        while count > length:
            chunk = self.chunks.pop()
            count -= chunk[0].shape[-2]
            if count < length:
                self.chunks.append(tuple(each[..., : length - count, :] for each in chunk))
                return
