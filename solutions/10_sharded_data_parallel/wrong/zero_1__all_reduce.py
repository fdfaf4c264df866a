# expect: an all-reduce of the gradients and an all-gather
# fails: traffic
def zero_1(weights: torch.Tensor, optimizer_class, **options):
    """Train flat weights with optimizer states for this rank's piece only; returns `step(gradient)`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    length = -(-len(weights) // ranks)
    padding = length * ranks - len(weights)
    piece = torch.nn.Parameter(F.pad(weights, (0, padding))[rank * length :][:length].clone())
    optimizer = optimizer_class([piece], **options)

    def step(gradient):
        whole = F.pad(gradient, (0, padding))
        dist.all_reduce(whole)
        piece.grad = whole[rank * length :][:length].clone()
        piece.grad /= ranks
        optimizer.step()
        joined = torch.empty(length * ranks)
        dist.all_gather_into_tensor(joined, piece.detach())
        weights.copy_(joined[: len(weights)])

    return step
