def choose_experts(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Python's sort is stable."""
    count = logits.shape[1]
    if k not in range(1, count + 1):
        raise ValueError(f"k = {k} of {count} experts")
    rows = [sorted(range(count), key=lambda e, row=row: (-row[e], e))[:k] for row in logits.tolist()]
    experts = torch.tensor(rows, dtype=torch.int64).reshape(-1, k)
    chosen = torch.zeros_like(logits).scatter(1, experts, 1.0)
    exponentials = (logits - logits.detach().amax(1, keepdim=True)).exp() * chosen
    return experts, (exponentials / exponentials.sum(1, keepdim=True)).gather(1, experts)
