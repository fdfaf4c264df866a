def zero_1(weights: torch.Tensor, optimizer_class, **options):
    """Train flat weights with optimizer states for this rank's piece only; returns `step(gradient)`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    length = -(-weights.shape[0] // ranks)
    buffer = torch.zeros(length * ranks)
    buffer[: len(weights)] = weights
    piece = torch.nn.Parameter(buffer.chunk(ranks)[rank])
    piece.grad = torch.zeros(length)
    optimizer = optimizer_class(params=[piece], **options)

    def step(gradient):
        whole = torch.zeros(length * ranks)
        whole[: len(gradient)] = gradient
        dist.reduce_scatter_tensor(piece.grad, whole, op=dist.ReduceOp.AVG)
        del whole
        optimizer.step()
        dist.all_gather_into_tensor(buffer, piece.detach().clone(), async_op=True).wait()
        weights.copy_(buffer[: len(weights)])

    return step
