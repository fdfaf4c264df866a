# expect: dk of the worked example
def backward_tile(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    visible: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a tile adds to the gradients of q, k and v."""
    scale = q.shape[1] ** -0.5
    scores = (q @ k.T * scale).masked_fill(~visible, -math.inf)
    p = torch.exp(scores - torch.where(lse == -math.inf, 0.0, lse)[:, None])
    ds = p * (grad @ v.T)
    return ds @ k * scale, ds.T @ q * scale, p.T @ grad
