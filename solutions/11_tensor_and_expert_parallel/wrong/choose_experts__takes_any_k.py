# expect: expected   ValueError
# fails: edges
def choose_experts(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best experts of each token, and their weights."""
    experts = logits.detach().sort(dim=-1, descending=True, stable=True).indices[:, :k]
    scores = logits.softmax(-1).gather(-1, experts)
    return experts, scores / scores.sum(-1, keepdim=True)
