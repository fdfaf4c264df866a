def overlap(model: torch.nn.Module, buckets: list[list[str]]):
    """Average each bucket as soon as it is full; returns `finish`, to be called after backward."""
    parameters = dict(model.named_parameters())
    works = []

    def look(_=None):
        while len(works) < len(buckets):
            gradients = [parameters[name].grad for name in buckets[len(works)]]
            if any(gradient is None for gradient in gradients):
                return
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            works.append((gradients, flat, dist.all_reduce(flat, async_op=True)))

    def finish():
        missing = [name for bucket in buckets for name in bucket if parameters[name].grad is None]
        if missing:
            raise RuntimeError(str(missing))
        while works:
            gradients, flat, work = works.pop(0)
            work.wait()
            flat = flat / dist.get_world_size()
            for gradient in gradients:
                piece, flat = flat[: gradient.numel()], flat[gradient.numel() :]
                gradient.copy_(piece.reshape(gradient.shape))

    for parameter in parameters.values():
        parameter.register_post_accumulate_grad_hook(look)
    return finish
