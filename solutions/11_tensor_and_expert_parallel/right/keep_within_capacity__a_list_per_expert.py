from collections import defaultdict


def keep_within_capacity(experts: torch.Tensor, capacity: int) -> torch.Tensor:
    """The places of each expert, cut off at the capacity."""
    tokens, k = experts.shape
    wanted = defaultdict(list)
    for choice in range(k):
        for token in range(tokens):
            wanted[int(experts[token, choice])].append((token, choice))
    kept = {place for places in wanted.values() for place in places[:capacity]}
    return torch.tensor([[(t, c) in kept for c in range(k)] for t in range(tokens)], dtype=torch.bool).reshape(
        tokens, k
    )
