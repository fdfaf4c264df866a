class _Change(torch.autograd.Function):
    """Sums over the ranks in one direction."""

    @staticmethod
    def forward(ctx, x, forward_sums):
        ctx.forward_sums = forward_sums
        return _total(x) if forward_sums else x

    @staticmethod
    def backward(ctx, gradient):
        return (gradient if ctx.forward_sums else _total(gradient)), None


def _total(x):
    y = x.contiguous().clone()
    work = dist.all_reduce(y, op=dist.ReduceOp.SUM, async_op=True)
    work.wait()
    return y


def copy_to_ranks(x: torch.Tensor) -> torch.Tensor:
    """Nothing forward, all-reduce backward."""
    return _Change.apply(x, False)


def sum_over_ranks(x: torch.Tensor) -> torch.Tensor:
    """All-reduce forward, nothing backward."""
    return _Change.apply(x, True)
