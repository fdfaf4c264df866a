# expect: expected   a message that contains
# fails: truncate
class CachedAttention:
    """Attention of one layer that keeps the keys and values of earlier tokens."""

    def __init__(self, kv_heads: int):
        self.kv_heads, self.keys, self.values = kv_heads, None, None

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention of the new tokens over all tokens so far."""
        head_dim = k.shape[-1] // self.kv_heads
        q, k, v = (each.unflatten(-1, (-1, head_dim)).transpose(1, 2) for each in (q, k, v))
        if self.keys is not None:
            k, v = torch.cat((self.keys, k), 2), torch.cat((self.values, v), 2)
        self.keys, self.values = k, v
        group = q.shape[1] // self.kv_heads
        scores = q @ k.repeat_interleave(group, 1).mT / head_dim**0.5
        positions = torch.arange(k.shape[2])
        future = positions > positions[-q.shape[2] :, None]
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        return (weights @ v.repeat_interleave(group, 1)).transpose(1, 2).flatten(2)

    def truncate(self, length: int) -> None:
        """Forget all tokens from position `length` on."""
        kept = 0 if self.keys is None else self.keys.shape[2]
        if not 0 <= length <= kept:
            raise ValueError("too long")
        if kept:
            self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]
