def zero_1(weights: torch.Tensor, optimizer_class, **options):
    """The optimizer's parameter is a slice of the weights themselves, and may be empty; only messages are padded."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    size = math.ceil(len(weights) / ranks)
    pieces = weights.split(size)
    mine = pieces[rank] if rank < len(pieces) else weights[:0]
    parameter = torch.nn.Parameter(mine.view_as(mine))
    optimizer = optimizer_class([{"params": [parameter], **options}])

    def padded(tensor, length):
        return torch.cat([tensor, tensor.new_zeros(length - len(tensor))])

    def step(gradient):
        total = padded(gradient, size * ranks)
        own = torch.empty(size)
        dist.reduce_scatter_tensor(own, total)
        parameter.grad = own[: len(mine)].div_(ranks)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_gather(list(total.split(size)), padded(parameter.data, size))
        weights.copy_(total[: len(weights)])

    return step
