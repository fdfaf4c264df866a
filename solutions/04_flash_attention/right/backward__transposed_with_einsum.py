def backward_tile(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    visible: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys as rows."""
    scaled = q / q.shape[1] ** 0.5
    exponents = torch.einsum("nd,md->nm", k, scaled) - lse.nan_to_num(neginf=0.0)
    p = torch.exp(exponents) * visible.T
    ds = p * torch.einsum("nd,md->nm", v, grad) - p * delta
    return torch.einsum("nm,nd->md", ds, k) / q.shape[1] ** 0.5, ds @ scaled, p @ grad
