# expect: gradient of layers
# fails: values, time
def overlap(model: torch.nn.Module, buckets: list[list[str]]):
    """Average each bucket as soon as it is full; returns `finish`, to be called after backward."""
    parameters = dict(model.named_parameters())
    ready, started = set(), []

    def gradient_ready(name):
        ready.add(name)
        while len(started) < len(buckets) and ready.issuperset(buckets[len(started)]):
            flat = torch.cat([parameters[each].grad.reshape(-1) for each in buckets[len(started)]])
            flat /= dist.get_world_size()
            started.append((flat, dist.all_reduce(flat, async_op=True)))

    for bucket in buckets:
        for name in bucket:
            parameters[name].register_post_accumulate_grad_hook(lambda _, name=name: gradient_ready(name))

    def finish():
        missing = [name for bucket in buckets for name in bucket if name not in ready]
        if missing:
            raise RuntimeError(f"no gradient for {', '.join(missing)}: each parameter must take part in the loss")
        for bucket, (flat, work) in zip(buckets, started, strict=True):
            work.wait()
            for name, piece in zip(
                sorted(bucket), flat.split([parameters[name].numel() for name in sorted(bucket)]), strict=True
            ):
                parameters[name].grad.copy_(piece.view(parameters[name].shape))
        ready.clear()
        started.clear()

    return finish
