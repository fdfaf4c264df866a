def forward_prefetched(pieces: list[torch.Tensor], use, x: torch.Tensor) -> torch.Tensor:
    """Run the layers one after the other, and gather each while the one before it computes."""
    on_the_way, whole = {}, {}

    def start(layer):
        if layer < len(pieces):
            whole[layer] = pieces[layer].new_zeros(pieces[layer].numel() * dist.get_world_size())
            on_the_way[layer] = dist.all_gather_into_tensor(whole[layer], pieces[layer], async_op=True)

    start(0)
    layer = 0
    while layer in whole:
        on_the_way.pop(layer).wait()
        start(layer + 1)
        x = use(layer, whole.pop(layer), x)
        layer += 1
    return x
