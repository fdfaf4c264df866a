class CachedAttention:
    """One key and one value per token in lists, and one query at a time."""

    def __init__(self, wq, wk, wv, kv_heads):
        self.wq, self.wk, self.wv, self.kv_heads = wq, wk, wv, kv_heads
        self.keys, self.values = [], []

    def attend(self, x):
        head_dim = len(self.wk) // self.kv_heads
        queries, keys, values = (torch.matmul(x, w.T) for w in (self.wq, self.wk, self.wv))
        results = []
        for new in range(x.shape[1]):
            self.keys.append(keys[:, new])
            self.values.append(values[:, new])
            k, v = (
                torch.stack(each, 1).view(len(x), len(each), self.kv_heads, head_dim)
                for each in (self.keys, self.values)
            )
            q = queries[:, new].view(len(x), self.kv_heads, -1, head_dim)
            weights = (torch.einsum("bkgd,btkd->bkgt", q, k) * head_dim**-0.5).softmax(-1)
            results.append(torch.einsum("bkgt,btkd->bkgd", weights, v).flatten(1))
        return torch.stack(results, 1)

    def truncate(self, length):
        if length < 0 or length > len(self.keys):
            raise ValueError(f"length = {length} of {len(self.keys)} tokens")
        del self.keys[length:], self.values[length:]
