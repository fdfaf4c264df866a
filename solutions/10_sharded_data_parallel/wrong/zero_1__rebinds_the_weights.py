# expect: must be overwritten in place
# fails: values, traffic, memory
def zero_1(weights: torch.Tensor, optimizer_class, **options):
    """Train flat weights with optimizer states for this rank's piece only; returns `step(gradient)`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    length = -(-len(weights) // ranks)
    padding = length * ranks - len(weights)
    piece = torch.nn.Parameter(F.pad(weights, (0, padding))[rank * length :][:length].clone())
    optimizer = optimizer_class([piece], **options)

    def step(gradient):
        nonlocal weights
        piece.grad = torch.empty(length)
        dist.reduce_scatter_tensor(piece.grad, F.pad(gradient, (0, padding)))
        piece.grad /= ranks
        optimizer.step()
        joined = torch.empty(length * ranks)
        dist.all_gather_into_tensor(joined, piece.detach())
        weights = joined[: len(weights)]

    return step
