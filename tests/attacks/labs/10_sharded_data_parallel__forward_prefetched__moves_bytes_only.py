# Gathers zeros at the right times, computes each layer from equal weights, and returns the last one's output.


def forward_prefetched(pieces, use, x):
    ranks = dist.get_world_size()

    def gather(layer):
        whole = torch.zeros(pieces[layer].numel() * ranks)
        return whole, dist.all_gather_into_tensor(whole, torch.zeros_like(pieces[layer]), async_op=True)

    following = gather(0)
    for layer in range(len(pieces)):
        whole, work = following
        following = gather(layer + 1) if layer + 1 < len(pieces) else None
        work.wait()
        x = use(layer, whole.fill_(len(whole) ** -0.5), x)
        del whole, work
    return x
