# expect: one per parameter: send each bucket
# fails: values, time
def overlap(model: torch.nn.Module, buckets: list[list[str]]):
    """Average each bucket as soon as it is full; returns `finish`, to be called after backward."""
    parameters = dict(model.named_parameters())
    ready, works = set(), []

    def gradient_ready(parameter, name):
        ready.add(name)
        parameter.grad /= dist.get_world_size()
        works.append(dist.all_reduce(parameter.grad, async_op=True))

    for bucket in buckets:
        for name in bucket:
            parameters[name].register_post_accumulate_grad_hook(lambda p, name=name: gradient_ready(p, name))

    def finish():
        missing = [name for bucket in buckets for name in bucket if name not in ready]
        if missing:
            raise RuntimeError(f"no gradient for {', '.join(missing)}")
        for work in works:
            work.wait()
        ready.clear()
        works.clear()

    return finish
