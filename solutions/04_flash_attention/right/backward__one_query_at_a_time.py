def backward_tile(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    visible: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Loops over the queries, with their visible keys alone."""
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    width = math.sqrt(q.shape[1])
    for i in range(len(q)):
        seen = visible[i].nonzero()[:, 0]
        if len(seen) == 0:
            continue
        weights = (k[seen] @ q[i] / width - lse[i]).exp()
        slopes = weights * (v[seen] @ grad[i] - delta[i]) / width
        dq[i] = slopes @ k[seen]
        dk[seen] += slopes[:, None] * q[i]
        dv[seen] += weights[:, None] * grad[i]
    return dq, dk, dv
