# expect: m of a block of no keys
# fails: edges
def summarise(scores: torch.Tensor, values: torch.Tensor) -> Summary:
    """The summary of one block of keys."""
    m = scores.amax(1) if scores.shape[1] else torch.full((len(scores),), -math.inf)
    weights = torch.exp(scores - reference_of(m)[:, None])
    return Summary(m, weights.sum(1), weights @ values)


def merge(left: Summary, right: Summary) -> Summary:
    """The summary of both blocks."""
    m = torch.maximum(left.m, right.m)
    of_left, of_right = (torch.exp(each.m - reference_of(m)) for each in (left, right))
    return Summary(m, of_left * left.s + of_right * right.s, of_left[:, None] * left.a + of_right[:, None] * right.a)


def reference_of(m: torch.Tensor) -> torch.Tensor:
    """What to subtract: the maximum, or 0 where there is none, since −inf − (−inf) is NaN."""
    return torch.where(m == -math.inf, torch.zeros_like(m), m)


def finish(summary: Summary) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and logsumexp."""
    nothing = summary.s == 0
    divisor = torch.where(nothing, torch.ones_like(summary.s), summary.s)
    return summary.a / divisor[:, None], summary.m + torch.log(summary.s)
