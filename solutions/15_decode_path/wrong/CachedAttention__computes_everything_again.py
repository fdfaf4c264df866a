# expect: that is a pass over all tokens so far
# fails: cost
class CachedAttention:
    """Attention of one layer that keeps the keys and values of earlier tokens."""

    def __init__(self, wq: torch.Tensor, wk: torch.Tensor, wv: torch.Tensor, kv_heads: int):
        self.weights, self.kv_heads, self.head_dim = (wq, wk, wv), kv_heads, len(wk) // kv_heads
        self.x = None

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Attention of the new tokens over all tokens so far."""
        self.x = x if self.x is None else torch.cat((self.x, x), 1)
        return whole_attention(self.x, *self.weights, self.kv_heads)[:, -x.shape[1] :]

    def truncate(self, length: int) -> None:
        """Forget all tokens from position `length` on."""
        kept = 0 if self.x is None else self.x.shape[1]
        if not 0 <= length <= kept:
            raise ValueError(f"length = {length} of {kept} tokens: expected 0 to {kept}")
        if kept:
            self.x = self.x[:, :length]
