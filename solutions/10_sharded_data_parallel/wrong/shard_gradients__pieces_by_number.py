# expect: names that finish() returned
# fails: values, overlap, memory
def shard_gradients(model: torch.nn.Module):
    """Reduce-scatter each gradient while backward runs, and free it; returns `finish`."""
    ranks = dist.get_world_size()
    pieces, under_way = {}, []

    def gradient_ready(name, parameter):
        if len(under_way) == 2:
            under_way.pop(0)[0].wait()
        flat = parameter.grad.flatten() / ranks
        parameter.grad = None
        pieces[name] = torch.empty(flat.numel() // ranks)
        under_way.append((dist.reduce_scatter_tensor(pieces[name], flat, async_op=True), flat))

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: gradient_ready(name, p))

    def finish():
        while under_way:
            under_way.pop(0)[0].wait()
        found = dict(enumerate(reversed(list(pieces.values()))))
        pieces.clear()
        return found

    return finish
