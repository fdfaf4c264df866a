import math


class CachedAttention:
    """Keys and values in one dictionary per key head."""

    def __init__(self, wq, wk, wv, kv_heads):
        self.head_dim = wk.shape[0] // kv_heads
        self.wq = wq.split(self.head_dim)
        self.wk, self.wv = wk.split(self.head_dim), wv.split(self.head_dim)
        self.kept = {}
        self.tokens = 0

    def attend(self, x):
        start, self.tokens = self.tokens, self.tokens + x.shape[1]
        for head, (wk, wv) in enumerate(zip(self.wk, self.wv, strict=True)):
            new = torch.stack((x @ wk.T, x @ wv.T))
            old = self.kept.get(head)
            self.kept[head] = new if old is None else torch.cat((old, new), 2)
        bias = torch.zeros(x.shape[1], self.tokens)
        for row in range(x.shape[1]):
            bias[row, start + row + 1 :] = -math.inf
        results = []
        for head, wq in enumerate(self.wq):
            keys, values = self.kept[head * len(self.wk) // len(self.wq)]
            scores = (x @ wq.T) @ keys.transpose(1, 2) / math.sqrt(self.head_dim) + bias
            results.append(scores.softmax(-1) @ values)
        return torch.cat(results, -1)

    def truncate(self, length):
        if length not in range(self.tokens + 1):
            raise ValueError(f"length = {length} of {self.tokens} tokens")
        self.tokens = length
        for head in self.kept:
            self.kept[head] = self.kept[head][:, :, :length]
