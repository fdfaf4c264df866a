def zero_1(weights: torch.Tensor, optimizer_class, **options):
    """The piece, the sum and the gathered weights are all parts of two padded buffers."""
    ranks, rank, length = dist.get_world_size(), dist.get_rank(), len(weights)
    buffer = F.pad(weights, (0, -length % ranks)).clone()
    piece = torch.nn.Parameter(buffer.view(ranks, -1)[rank])
    optimizer = optimizer_class([piece], **options)

    def step(gradient):
        mean = F.pad(gradient / ranks, (0, -length % ranks))
        piece.grad = mean.view(ranks, -1)[rank]
        dist.reduce_scatter_tensor(piece.grad, mean, async_op=True).wait()
        optimizer.step()
        dist.all_gather_into_tensor(buffer, piece.data, async_op=True).wait()
        weights.data[:] = buffer[:length]

    return step
