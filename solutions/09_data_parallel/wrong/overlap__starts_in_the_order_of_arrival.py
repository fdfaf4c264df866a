# expect: layers used in the orders
# fails: values, time
def overlap(model: torch.nn.Module, buckets: list[list[str]]):
    """Average each bucket as soon as it is full; returns `finish`, to be called after backward."""
    parameters = dict(model.named_parameters())
    ready, started = set(), []

    def gradient_ready(name):
        ready.add(name)
        for bucket in buckets:
            if name in bucket and ready.issuperset(bucket):
                flat = torch.cat([parameters[each].grad.reshape(-1) for each in bucket])
                flat /= dist.get_world_size()
                started.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

    for bucket in buckets:
        for name in bucket:
            parameters[name].register_post_accumulate_grad_hook(lambda _, name=name: gradient_ready(name))

    def finish():
        missing = [name for bucket in buckets for name in bucket if name not in ready]
        if missing:
            raise RuntimeError(f"no gradient for {', '.join(missing)}")
        for bucket, flat, work in started:
            work.wait()
            for name, piece in zip(bucket, flat.split([parameters[name].numel() for name in bucket]), strict=True):
                parameters[name].grad.copy_(piece.view(parameters[name].shape))
        ready.clear()
        started.clear()

    return finish
