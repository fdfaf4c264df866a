# expect: it was summed in place
# fails: values
def copy_to_ranks(x: torch.Tensor) -> torch.Tensor:
    """Nothing forward, all-reduce backward."""
    return _Copy.apply(x)


def sum_over_ranks(x: torch.Tensor) -> torch.Tensor:
    """All-reduce forward, nothing backward."""
    return _Sum.apply(x)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient)
        return gradient


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient
