def overlap(model: torch.nn.Module, buckets: list[list[str]]):
    """Average each bucket as soon as it is full; returns `finish`, to be called after backward."""
    parameters, size = dict(model.named_parameters()), dist.get_world_size()
    arrived, flats = {}, []

    def full_buckets():
        for bucket in buckets:
            while not arrived.keys() >= set(bucket):
                yield None
            yield bucket

    source = [full_buckets()]

    def make(name):
        def arrive(parameter):
            arrived[name] = parameter.grad
            for bucket in source[0]:
                if bucket is None:
                    return
                flat = torch.cat([arrived[each].view(-1) for each in bucket])
                flats.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

        return arrive

    for name in [name for bucket in buckets for name in bucket]:
        parameters[name].register_post_accumulate_grad_hook(make(name))

    def finish():
        missing = {name for bucket in buckets for name in bucket} - set(arrived)
        if missing:
            raise RuntimeError(f"{len(missing)} parameters have no gradient: {missing}")
        for bucket, flat, work in flats:
            work.wait()
            pieces = (flat / size).split([arrived[name].numel() for name in bucket])
            for name, piece in zip(bucket, pieces, strict=True):
                parameters[name].grad = piece.reshape(parameters[name].shape)
        arrived.clear()
        flats.clear()
        source[0] = full_buckets()

    return finish
