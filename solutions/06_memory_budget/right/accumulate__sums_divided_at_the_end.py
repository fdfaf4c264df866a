def accumulated(weights: list[Tensor], tokens: Tensor, targets: Tensor, micro: int) -> tuple[Tensor, list[Tensor]]:
    """Mean loss of a batch and its gradients, `micro` sequences at a time."""
    if micro < 1:
        raise ValueError(f"micro = {micro}: expected at least 1 sequence at a time")
    if tokens.shape != targets.shape:
        raise ValueError(f"targets has shape {tuple(targets.shape)}: expected {tuple(tokens.shape)}, that of tokens")
    total = int((targets != -100).sum())
    if not total:
        raise ValueError("targets: all are -100, so there is no mean to take")
    loss, gradients = 0.0, [0.0] * len(weights)
    for first in range(0, len(tokens), micro):
        goal = targets[first : first + micro]
        counted = (goal != -100).sum().item()
        if counted == 0:
            continue
        mean = mean_loss(weights, tokens[first : first + micro], goal)
        for i, gradient in enumerate(torch.autograd.grad(mean, weights)):
            gradients[i] = gradients[i] + gradient * counted
        loss += mean.detach() * counted
    return loss / total, [gradient / total for gradient in gradients]
