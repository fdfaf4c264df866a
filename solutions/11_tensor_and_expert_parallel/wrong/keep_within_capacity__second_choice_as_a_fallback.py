# expect: a second choice counts even where the first was kept
def keep_within_capacity(experts: torch.Tensor, capacity: int) -> torch.Tensor:
    """Which choices find a place at their expert."""
    kept, taken = torch.zeros_like(experts, dtype=torch.bool), {}
    for choice in range(experts.shape[1]):
        for token, expert in enumerate(experts[:, choice].tolist()):
            if kept[token].any():
                continue
            place = taken.get(expert, 0)
            kept[token, choice] = place < capacity
            taken[expert] = place + 1
    return kept
