# expect: places were given token by token
def keep_within_capacity(experts: torch.Tensor, capacity: int) -> torch.Tensor:
    """Which choices find a place at their expert."""
    kept, taken = torch.zeros_like(experts, dtype=torch.bool), {}
    for token, row in enumerate(experts.tolist()):
        for choice, expert in enumerate(row):
            place = taken.get(expert, 0)
            kept[token, choice] = place < capacity
            taken[expert] = place + 1
    return kept
