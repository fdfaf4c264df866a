def summarise(scores: torch.Tensor, values: torch.Tensor) -> Summary:
    """One query after another, only its visible keys."""
    m = torch.full((scores.shape[0],), -math.inf, dtype=scores.dtype)
    s, a = torch.zeros_like(m), scores.new_zeros(scores.shape[0], values.shape[1])
    for i, row in enumerate(scores):
        seen = row > -math.inf
        if seen.any():
            m[i] = row[seen].max()
            weights = torch.exp(row[seen] - m[i])
            s[i], a[i] = weights.sum(), (weights[:, None] * values[seen]).sum(0)
    return Summary(m, s, a)


def merge(left: Summary, right: Summary) -> Summary:
    """The smaller side is scaled down to the larger one."""
    swap = right.m > left.m

    def pick(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(swap if x.ndim == 1 else swap[:, None], y, x)

    high = Summary(pick(left.m, right.m), pick(left.s, right.s), pick(left.a, right.a))
    low = Summary(pick(right.m, left.m), pick(right.s, left.s), pick(right.a, left.a))
    factor = torch.exp(low.m - high.m).nan_to_num(0.0)
    return Summary(high.m, high.s + factor * low.s, high.a + factor[:, None] * low.a)


def finish(summary: Summary) -> tuple[torch.Tensor, torch.Tensor]:
    """Multiplies by the inverse, where there is one."""
    seen = summary.s > 0
    inverse = torch.where(seen, 1 / summary.s.masked_fill(~seen, 1.0), torch.zeros_like(summary.s))
    return summary.a * inverse[:, None], torch.where(seen, summary.m + summary.s.clamp(min=1e-300).log(), summary.m)
