def summarise(scores: torch.Tensor, values: torch.Tensor) -> Summary:
    """Works in place, on a copy."""
    work = scores.clone()
    m = work.new_full((len(work),), -math.inf)
    for column in work.T:
        m = torch.maximum(m, column)
    work -= torch.where(m > -math.inf, m, 0.0)[:, None]
    work.exp_()
    return Summary(m, work.sum(1), work @ values)


def merge(left: Summary, right: Summary) -> Summary:
    """A copy of the left side takes in the right one."""
    m = torch.where(left.m > right.m, left.m, right.m)
    base = torch.where(m > -math.inf, m, 0.0)
    s, a = left.s.clone(), left.a.clone()
    shrink = torch.exp(left.m - base)
    s.mul_(shrink)
    a.mul_(shrink[:, None])
    shrink = torch.exp(right.m - base)
    s.add_(shrink * right.s)
    a.add_(shrink[:, None] * right.a)
    return Summary(m, s, a)


def finish(summary: Summary) -> tuple[torch.Tensor, torch.Tensor]:
    """Only queries that saw something are divided."""
    out, lse = torch.zeros_like(summary.a), torch.full_like(summary.m, -math.inf)
    seen = summary.s > 0
    out[seen] = summary.a[seen] / summary.s[seen, None]
    lse[seen] = summary.m[seen] + summary.s[seen].log()
    return out, lse
