def shard_gradients(model: torch.nn.Module):
    """Reduce-scatter each gradient while backward runs, and free it; returns `finish`."""
    ranks = dist.get_world_size()
    parameters = dict(model.named_parameters())
    lengths = [p.numel() // ranks for p in parameters.values()]
    waiting = []

    def new_pieces():
        return dict(zip(parameters, torch.zeros(sum(lengths)).split(lengths), strict=True))

    current = new_pieces()

    def reduce(name):
        p = parameters[name]
        if len(waiting) == 2:
            waiting[0].wait()
            del waiting[0]
        whole, p.grad = p.grad, None
        waiting.append(dist.reduce_scatter_tensor(current[name], whole.reshape(-1), async_op=True))

    for name, p in parameters.items():
        p.register_post_accumulate_grad_hook(lambda _, name=name: reduce(name))

    def finish():
        nonlocal current
        for work in waiting:
            work.wait()
        waiting.clear()
        found = {name: piece.div_(ranks) for name, piece in current.items()}
        current = new_pieces()
        return found

    return finish
