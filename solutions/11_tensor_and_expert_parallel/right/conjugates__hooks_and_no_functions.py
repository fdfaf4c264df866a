def copy_to_ranks(x: torch.Tensor) -> torch.Tensor:
    """A hook sums the gradient."""
    copy = x.view_as(x)
    if copy.requires_grad:
        copy.register_hook(summed)
    return copy


def summed(x):
    total = x.clone()
    dist.all_reduce(total)
    return total


def sum_over_ranks(x: torch.Tensor) -> torch.Tensor:
    """What the other ranks have is a constant for autograd: x + (sum − x)."""
    return x + (summed(x.detach()) - x.detach())
