# expect: this is an all-reduce of each gradient
# fails: overlap
def shard_gradients(model: torch.nn.Module):
    """Reduce-scatter each gradient while backward runs, and free it; returns `finish`."""
    ranks = dist.get_world_size()
    pieces, under_way = {}, []

    def wait():
        work, flat, name = under_way.pop(0)
        work.wait()
        pieces[name] = flat.chunk(ranks)[dist.get_rank()].clone()

    def gradient_ready(name, parameter):
        if len(under_way) == 2:
            wait()
        flat = parameter.grad.flatten() / ranks
        parameter.grad = None
        under_way.append((dist.all_reduce(flat, async_op=True), flat, name))

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: gradient_ready(name, p))

    def finish():
        while under_way:
            wait()
        found = dict(pieces)
        pieces.clear()
        return found

    return finish
