# expect: activations of
def accumulated(weights: list[Tensor], tokens: Tensor, targets: Tensor, micro: int) -> tuple[Tensor, list[Tensor]]:
    """Mean loss of a batch and its gradients, `micro` sequences at a time."""
    if micro < 1:
        raise ValueError(f"micro = {micro}: expected at least 1 sequence at a time")
    if tokens.shape != targets.shape:
        raise ValueError(f"targets has shape {tuple(targets.shape)}: expected {tuple(tokens.shape)}, that of tokens")
    total = int((targets != -100).sum())
    if not total:
        raise ValueError("targets: all are -100, so there is no mean to take")
    loss = torch.zeros((), dtype=weights[0].dtype)
    for first in range(0, len(tokens), micro):
        part = targets[first : first + micro]
        counted = int((part != -100).sum())
        if counted:
            loss = loss + mean_loss(weights, tokens[first : first + micro], part) * (counted / total)
    return loss.detach(), list(torch.autograd.grad(loss, weights))
