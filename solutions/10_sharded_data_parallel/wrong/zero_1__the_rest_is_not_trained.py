# expect: weights on rank 0 of 4
# fails: values, traffic
def zero_1(weights: torch.Tensor, optimizer_class, **options):
    """Train flat weights with optimizer states for this rank's piece only; returns `step(gradient)`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    length = len(weights) // ranks
    piece = torch.nn.Parameter(weights[rank * length :][:length].clone())
    optimizer = optimizer_class([piece], **options)

    def step(gradient):
        piece.grad = torch.empty(length)
        dist.reduce_scatter_tensor(piece.grad, gradient[: length * ranks].clone())
        piece.grad /= ranks
        optimizer.step()
        joined = torch.empty(length * ranks)
        dist.all_gather_into_tensor(joined, piece.detach())
        weights[: length * ranks] = joined

    return step
