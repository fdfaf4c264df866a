def accumulated(weights: list[Tensor], tokens: Tensor, targets: Tensor, micro: int) -> tuple[Tensor, list[Tensor]]:
    """Mean loss of a batch and its gradients, `micro` sequences at a time."""
    if micro < 1:
        raise ValueError(f"micro = {micro}: expected at least 1 sequence at a time")
    if tokens.shape != targets.shape:
        raise ValueError(f"targets has shape {tuple(targets.shape)}: expected {tuple(tokens.shape)}, that of tokens")
    total = int((targets != -100).sum())
    if not total:
        raise ValueError("targets: all are -100, so there is no mean to take")
    copies = [weight.detach().clone().requires_grad_() for weight in weights]
    sums = []
    for part, goal in zip(tokens.split(micro), targets.split(micro), strict=True):
        counted = int((goal != -100).sum())
        if counted:
            share = mean_loss(copies, part, goal) * counted / total
            share.backward()
            sums.append(share.item())
    return torch.tensor(sum(sums), dtype=weights[0].dtype), [copy.grad for copy in copies]
