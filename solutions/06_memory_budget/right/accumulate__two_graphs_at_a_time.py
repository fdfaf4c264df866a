def accumulated(weights: list[Tensor], tokens: Tensor, targets: Tensor, micro: int) -> tuple[Tensor, list[Tensor]]:
    """Mean loss of a batch and its gradients: each backward pass goes through two parts, the last parts first."""
    if micro < 1:
        raise ValueError(f"micro = {micro}: expected at least 1 sequence at a time")
    if tokens.shape != targets.shape:
        raise ValueError(f"targets has shape {tuple(targets.shape)}: expected {tuple(tokens.shape)}, that of tokens")
    total = int(targets.ne(-100).sum())
    if not total:
        raise ValueError("targets: all are -100, so there is no mean to take")
    parts = [slice(first, first + micro) for first in range(0, len(tokens), micro)]
    parts = [(part, int(targets[part].ne(-100).sum())) for part in parts if targets[part].ne(-100).any()]
    loss, gradients = 0.0, [torch.zeros_like(weight) for weight in weights]
    while parts:
        two = [parts.pop() for _ in parts[-2:]]
        share = sum(mean_loss(weights, tokens[part], targets[part]) * (count / total) for part, count in two)
        for gradient, more in zip(gradients, torch.autograd.grad(share, weights), strict=True):
            gradient.add_(more)
        loss, share = loss + share.detach(), None
    return loss, gradients
