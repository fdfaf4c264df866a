# expect: this is of the transposed gradient
# fails: values, traffic, memory
def sharded_linear(x: torch.Tensor, piece: torch.Tensor, out_features: int) -> torch.Tensor:
    """`x @ weight.T`, where each rank holds a piece of the weight, and all of it only while it is used."""
    return ShardedLinear.apply(x, piece, out_features)


class ShardedLinear(torch.autograd.Function):
    @staticmethod
    def gather(piece, out_features):
        whole = torch.empty(piece.numel() * dist.get_world_size())
        dist.all_gather_into_tensor(whole, piece)
        return whole.view(out_features, -1)

    @staticmethod
    def forward(ctx, x, piece, out_features):
        ctx.save_for_backward(x, piece)
        ctx.out_features = out_features
        return x @ ShardedLinear.gather(piece, out_features).T

    @staticmethod
    def backward(ctx, g):
        x, piece = ctx.saved_tensors
        gradient_of_x = g @ ShardedLinear.gather(piece, ctx.out_features)
        gradient = torch.empty_like(piece)
        dist.reduce_scatter_tensor(gradient, (x.T @ g).flatten() / dist.get_world_size())
        return gradient_of_x, gradient, None
