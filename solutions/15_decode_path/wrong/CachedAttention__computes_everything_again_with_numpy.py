# expect: of memory, expected less than
# fails: cost
class CachedAttention:
    """Attention of one layer that keeps the keys and values of earlier tokens."""

    def __init__(self, kv_heads: int):
        self.kv_heads, self.tokens = kv_heads, None

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention of the new tokens over all tokens so far."""
        new, head_dim = q.shape[1], k.shape[-1] // self.kv_heads
        tokens = (q, k, v)
        if self.tokens is not None:
            tokens = tuple(torch.cat(pair, 1) for pair in zip(self.tokens, tokens, strict=True))
        self.tokens = tokens
        q, k, v = (each.unflatten(-1, (-1, head_dim)).transpose(1, 2) for each in tokens)
        group = q.shape[1] // self.kv_heads
        scores = torch.from_numpy(q.numpy() @ k.repeat_interleave(group, 1).mT.numpy()) / head_dim**0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        results = torch.from_numpy(weights.numpy() @ v.repeat_interleave(group, 1).numpy())
        return results.transpose(1, 2).flatten(2)[:, -new:]

    def truncate(self, length: int) -> None:
        """Forget all tokens from position `length` on."""
        kept = 0 if self.tokens is None else self.tokens[0].shape[1]
        if not 0 <= length <= kept:
            raise ValueError(f"length = {length} of {kept} tokens: expected 0 to {kept}")
        if kept:
            self.tokens = tuple(each[:, :length] for each in self.tokens)
