class Zero1:
    def __init__(self, weights, optimizer_class, options):
        self.weights, self.ranks = weights, dist.get_world_size()
        self.length = (len(weights) + self.ranks - 1) // self.ranks
        start = self.length * dist.get_rank()
        self.mine = weights[start : start + self.length].detach().clone().requires_grad_()
        self.optimizer = optimizer_class([self.mine], **options)

    def step(self, gradient):
        sent = torch.nn.functional.pad(gradient, [0, self.length * self.ranks - len(gradient)]).div_(self.ranks)
        piece = sent.new_zeros(self.length)
        dist.reduce_scatter_tensor(piece, sent)
        del sent
        self.mine.grad = piece[: len(self.mine)]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        piece = piece.new_zeros(self.length)
        piece[: len(self.mine)] = self.mine.detach()
        joined = piece.new_empty(self.length * self.ranks)
        dist.all_gather_into_tensor(joined, piece)
        with torch.no_grad():
            self.weights[:] = joined[: len(self.weights)]


def zero_1(weights: torch.Tensor, optimizer_class, **options):
    """Train flat weights with optimizer states for this rank's piece only; returns `step(gradient)`."""
    return Zero1(weights, optimizer_class, options).step
