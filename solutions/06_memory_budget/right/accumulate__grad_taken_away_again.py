def accumulated(weights: list[Tensor], tokens: Tensor, targets: Tensor, micro: int) -> tuple[Tensor, list[Tensor]]:
    """Mean loss of a batch and its gradients, `micro` sequences at a time."""
    if micro < 1:
        raise ValueError(f"micro = {micro}: expected at least 1 sequence at a time")
    if tokens.shape != targets.shape:
        raise ValueError(f"targets has shape {tuple(targets.shape)}: expected {tuple(tokens.shape)}, that of tokens")
    total = int((targets != -100).sum())
    if not total:
        raise ValueError("targets: all are -100, so there is no mean to take")
    before = [weight.grad for weight in weights]
    for weight in weights:
        weight.grad = None
    loss = 0.0
    for first in range(0, len(tokens), micro):
        goal = targets[first : first + micro]
        if (goal != -100).any():
            share = mean_loss(weights, tokens[first : first + micro], goal) * (int((goal != -100).sum()) / total)
            share.backward()
            loss += share.item()
    gradients = [weight.grad for weight in weights]
    for weight, old in zip(weights, before, strict=True):
        weight.grad = old
    return torch.tensor(loss, dtype=weights[0].dtype), gradients
