class CachedAttention:
    """Memory is reserved, doubled where it is too small, and written in place."""

    def __init__(self, kv_heads):
        self.kv_heads, self.count = kv_heads, 0
        self.buffer = None

    def attend(self, q, k, v):
        batch, new, width = k.shape
        head_dim = width // self.kv_heads
        q, k, v = (each.view(batch, new, -1, head_dim) for each in (q, k, v))
        end = self.count + new
        if self.buffer is None:
            self.buffer = torch.empty(2, batch, 2 * new, self.kv_heads, head_dim, dtype=k.dtype)
        while end > self.buffer.shape[2]:
            self.buffer = torch.cat((self.buffer, torch.empty_like(self.buffer)), 2)
        self.buffer[0, :, self.count : end] = k
        self.buffer[1, :, self.count : end] = v
        k, v = (each[:, :end].transpose(1, 2) for each in self.buffer)
        sees = torch.ones(new, end, dtype=torch.bool).tril(self.count)
        self.count = end
        found = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k, v, attn_mask=sees, enable_gqa=True
        )
        return found.transpose(1, 2).reshape(batch, new, -1)

    def truncate(self, length):
        if not 0 <= length <= self.count:
            raise ValueError(f"length = {length} of {self.count} tokens can be kept")
        self.count = length
