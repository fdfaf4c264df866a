# expect: of experts with equal logits the lower number comes first
# fails: values
def choose_experts(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best experts of each token, and their weights."""
    if not 1 <= k <= logits.shape[1]:
        raise ValueError(f"k = {k} of {logits.shape[1]} experts: expected at least 1 and at most all")
    experts = logits.detach().topk(k).indices
    scores = logits.softmax(-1).gather(-1, experts)
    return experts, scores / scores.sum(-1, keepdim=True)
