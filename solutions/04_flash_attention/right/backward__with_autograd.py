def backward_tile(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    visible: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Autograd through the scores, with their gradient given."""
    with torch.enable_grad():
        leaves = [each.detach().clone().requires_grad_() for each in (q, k, v)]
        scores = leaves[0] @ leaves[1].T / math.sqrt(q.shape[1])
        p = torch.where(visible, scores.detach() - lse[:, None], torch.full_like(scores, -math.inf)).exp()
        loss = (scores * (p * (grad @ v.T - delta[:, None]))).sum() + ((p @ leaves[2]) * grad).sum()
        loss.backward()
    return tuple(each.grad for each in leaves)
