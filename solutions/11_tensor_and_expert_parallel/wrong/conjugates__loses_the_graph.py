# expect: must be part of the graph
# fails: values, traffic
def copy_to_ranks(x: torch.Tensor) -> torch.Tensor:
    """Nothing forward, all-reduce backward."""
    return _Copy.apply(x)


def sum_over_ranks(x: torch.Tensor) -> torch.Tensor:
    """All-reduce forward, nothing backward."""
    total = x.detach().clone()
    dist.all_reduce(total)
    return total


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient
