# expect: weights on rank
# fails: values, traffic, memory
def zero_1(weights: torch.Tensor, optimizer_class, **options):
    """Train flat weights with optimizer states for this rank's piece only; returns `step(gradient)`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    length = -(-len(weights) // ranks)
    padding = length * ranks - len(weights)
    piece = torch.nn.Parameter(F.pad(weights, (0, padding))[rank * length :][:length].clone())
    optimizer = optimizer_class([piece], **options)

    def step(gradient):
        piece.grad = torch.empty(length)
        dist.reduce_scatter_tensor(piece.grad, F.pad(gradient, (0, padding)))
        piece.grad /= ranks
        optimizer.step()
        weights[rank * length :][:length] = piece.detach()[: max(0, len(weights) - rank * length)]

    return step
