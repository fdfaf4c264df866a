# expect: k = 0 of 4 experts
# fails: edges
def choose_experts(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best experts of each token, and their weights."""
    if not 0 <= k <= logits.shape[1]:
        raise ValueError(f"k = {k} of {logits.shape[1]} experts: expected at least 1 and at most all")
    experts = logits.detach().sort(dim=-1, descending=True, stable=True).indices[:, :k]
    scores = logits.softmax(-1).gather(-1, experts)
    return experts, scores / scores.sum(-1, keepdim=True)
