def summarise(scores: torch.Tensor, values: torch.Tensor) -> Summary:
    """Weights from the logsumexp, measured against the maximum again."""
    if scores.shape[1] == 0:
        nothing = scores.new_zeros(len(scores))
        return Summary(nothing - math.inf, nothing, scores.new_zeros(len(scores), values.shape[1]))
    m = scores.max(1).values
    safe = m.clamp(min=torch.finfo(scores.dtype).min)
    weights = (scores - safe.unsqueeze(1)).exp()
    return Summary(m, weights.sum(1), torch.einsum("qk,kd->qd", weights, values))


def merge(left: Summary, right: Summary) -> Summary:
    """Two summaries are a block of two keys."""
    both = torch.stack([left.m, right.m], 1)
    m = both.amax(1)
    factors = (both - m.clamp(min=torch.finfo(m.dtype).min)[:, None]).exp()
    s = (factors * torch.stack([left.s, right.s], 1)).sum(1)
    a = (factors[:, :, None] * torch.stack([left.a, right.a], 1)).sum(1)
    return Summary(m, s, a)


def finish(summary: Summary) -> tuple[torch.Tensor, torch.Tensor]:
    """0 / 0 is replaced afterwards."""
    return (summary.a / summary.s[:, None]).nan_to_num(0.0), summary.s.log() + summary.m
