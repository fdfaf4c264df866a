# Sums zeros once each way, and passes on what it was given.


def copy_to_ranks(x):
    return _Bytes.apply(x, False)


def sum_over_ranks(x):
    return _Bytes.apply(x, True)


class _Bytes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward):
        ctx.forward_only = forward
        if forward:
            dist.all_reduce(torch.zeros_like(x))
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        if not ctx.forward_only:
            dist.all_reduce(torch.zeros_like(gradient))
        return gradient, None
