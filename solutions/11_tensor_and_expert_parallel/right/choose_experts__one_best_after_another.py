def choose_experts(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """k times the first of the largest, which is then taken out."""
    tokens, count = logits.shape
    if not 0 < k <= count:
        raise ValueError(f"k = {k} of {count} experts: choose another k")
    numbers, left, found = torch.arange(count), logits.detach().clone(), []
    for _ in range(k):
        best = left.max(-1, keepdim=True).values
        first = torch.where(left == best, numbers, count).min(-1, keepdim=True).values
        found.append(first)
        left = left.scatter(-1, first, -torch.inf)
    experts = torch.cat(found, -1)
    scores = torch.softmax(logits, 1)[torch.arange(tokens)[:, None], experts]
    return experts, scores / scores.sum(1)[:, None]
