# expect: nothing was hidden
# fails: time
def overlap(model: torch.nn.Module, buckets: list[list[str]]):
    """Average each bucket as soon as it is full; returns `finish`, to be called after backward."""
    parameters = dict(model.named_parameters())
    ready = set()

    for bucket in buckets:
        for name in bucket:
            parameters[name].register_post_accumulate_grad_hook(lambda _, name=name: ready.add(name))

    def finish():
        missing = [name for bucket in buckets for name in bucket if name not in ready]
        if missing:
            raise RuntimeError(f"no gradient for {', '.join(missing)}")
        flats = [torch.cat([parameters[name].grad.reshape(-1) for name in bucket]) for bucket in buckets]
        works = [dist.all_reduce(flat, async_op=True) for flat in flats]
        for bucket, flat, work in zip(buckets, flats, works, strict=True):
            work.wait()
            flat /= dist.get_world_size()
            for name, piece in zip(bucket, flat.split([parameters[name].numel() for name in bucket]), strict=True):
                parameters[name].grad.copy_(piece.view(parameters[name].shape))
        ready.clear()

    return finish
