# expect: nothing was prefetched
# fails: time
def forward_prefetched(pieces: list[torch.Tensor], use, x: torch.Tensor) -> torch.Tensor:
    """Run the layers one after the other, and gather each while the one before it computes."""

    def gather(layer):
        whole = torch.empty(pieces[layer].numel() * dist.get_world_size())
        return whole, dist.all_gather_into_tensor(whole, pieces[layer], async_op=True)

    for layer in range(len(pieces)):
        whole, work = gather(layer)
        work.wait()
        x = use(layer, whole, x)
        del whole, work
    return x
