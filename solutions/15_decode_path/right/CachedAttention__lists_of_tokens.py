class CachedAttention:
    """One key and one value per token in lists, and one query at a time."""

    def __init__(self, kv_heads):
        self.kv_heads = kv_heads
        self.keys, self.values = [], []

    def attend(self, queries, keys, values):
        head_dim = keys.shape[2] // self.kv_heads
        results = []
        for new in range(keys.shape[1]):
            self.keys.append(keys[:, new])
            self.values.append(values[:, new])
            k, v = (
                torch.stack(each, 1).view(len(keys), len(each), self.kv_heads, head_dim)
                for each in (self.keys, self.values)
            )
            q = queries[:, new].view(len(keys), self.kv_heads, -1, head_dim)
            weights = (torch.einsum("bkgd,btkd->bkgt", q, k) * head_dim**-0.5).softmax(-1)
            results.append(torch.einsum("bkgt,btkd->bkgd", weights, v).flatten(1))
        return torch.stack(results, 1)

    def truncate(self, length):
        if length < 0 or length > len(self.keys):
            raise ValueError(f"length = {length} of {len(self.keys)} tokens")
        del self.keys[length:], self.values[length:]
