# expect: states for all elements take
# fails: memory
def zero_1(weights: torch.Tensor, optimizer_class, **options):
    """Train flat weights with optimizer states for this rank's piece only; returns `step(gradient)`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    length = -(-len(weights) // ranks)
    padding = length * ranks - len(weights)
    whole = torch.nn.Parameter(F.pad(weights, (0, padding)))
    optimizer = optimizer_class([whole], **options)

    def step(gradient):
        whole.grad = F.pad(gradient, (0, padding))
        piece = torch.empty(length)
        dist.reduce_scatter_tensor(piece, whole.grad)
        whole.grad[rank * length :][:length] = piece / ranks
        optimizer.step()
        dist.all_gather_into_tensor(whole.data, whole.data[rank * length :][:length].clone())
        weights.copy_(whole.data[: len(weights)])

    return step
