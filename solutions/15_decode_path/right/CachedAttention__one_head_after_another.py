import math


class CachedAttention:
    """Keys and values in one dictionary per key head."""

    def __init__(self, kv_heads):
        self.kv_heads = kv_heads
        self.kept = {}
        self.tokens = 0

    def attend(self, q, k, v):
        head_dim = k.shape[2] // self.kv_heads
        start, self.tokens = self.tokens, self.tokens + q.shape[1]
        for head, new in enumerate(zip(k.split(head_dim, 2), v.split(head_dim, 2), strict=True)):
            new = torch.stack(new)
            old = self.kept.get(head)
            self.kept[head] = new if old is None else torch.cat((old, new), 2)
        bias = torch.zeros(q.shape[1], self.tokens)
        for row in range(q.shape[1]):
            bias[row, start + row + 1 :] = -math.inf
        queries = q.split(head_dim, 2)
        results = []
        for head, query in enumerate(queries):
            keys, values = self.kept[head * self.kv_heads // len(queries)]
            scores = query @ keys.transpose(1, 2) / math.sqrt(head_dim) + bias
            results.append(scores.softmax(-1) @ values)
        return torch.cat(results, -1)

    def truncate(self, length):
        if length not in range(self.tokens + 1):
            raise ValueError(f"length = {length} of {self.tokens} tokens")
        self.tokens = length
        for head in self.kept:
            self.kept[head] = self.kept[head][:, :, :length]
