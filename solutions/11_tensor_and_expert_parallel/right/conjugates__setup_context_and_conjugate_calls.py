class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return _Sum.apply(gradient)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(x):
        ranks = dist.get_world_size()
        flat = torch.nn.functional.pad(x.flatten(), (0, -x.numel() % ranks))
        own = flat.new_empty(len(flat) // ranks)
        dist.reduce_scatter_tensor(own, flat)
        dist.all_gather_into_tensor(flat, own)
        return flat[: x.numel()].view(x.shape).clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return _Copy.apply(gradient)


def copy_to_ranks(x: torch.Tensor) -> torch.Tensor:
    """The backward of each is the other one."""
    return _Copy.apply(x)


def sum_over_ranks(x: torch.Tensor) -> torch.Tensor:
    """The backward of each is the other one."""
    return _Sum.apply(x)
