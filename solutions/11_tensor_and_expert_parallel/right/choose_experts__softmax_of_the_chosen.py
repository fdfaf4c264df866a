def choose_experts(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The softmax after the choice."""
    if k < 1 or k > logits.size(-1):
        raise ValueError(f"k = {k} of {logits.size(-1)} experts")
    experts = torch.argsort(-logits, dim=-1, stable=True)[..., :k]
    return experts, torch.softmax(torch.gather(logits, -1, experts), -1)
