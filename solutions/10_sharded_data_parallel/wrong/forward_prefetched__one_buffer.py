# expect: would overwrite a weight that the layer before
# fails: values
def forward_prefetched(pieces: list[torch.Tensor], use, x: torch.Tensor) -> torch.Tensor:
    """Run the layers one after the other, and gather each while the one before it computes."""

    buffer = torch.empty(max(piece.numel() for piece in pieces) * dist.get_world_size())

    def gather(layer):
        whole = buffer[: pieces[layer].numel() * dist.get_world_size()]
        return whole, dist.all_gather_into_tensor(whole, pieces[layer], async_op=True)

    following = gather(0)
    for layer in range(len(pieces)):
        whole, work = following
        following = gather(layer + 1) if layer + 1 < len(pieces) else None
        work.wait()
        x = use(layer, whole, x)
        del whole, work
    return x
