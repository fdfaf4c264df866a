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
        work = dist.reduce_scatter_tensor(pieces[name], flat, async_op=True)
        under_way.append((work.get_future().then(lambda done: done.value()), flat))

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: gradient_ready(name, p))

    def finish():
        while under_way:
            under_way.pop(0)[0].wait()
        found = dict(pieces)
        pieces.clear()
        return found

    return finish
