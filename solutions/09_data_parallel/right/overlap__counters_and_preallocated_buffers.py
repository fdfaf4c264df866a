def overlap(model: torch.nn.Module, buckets: list[list[str]]):
    """Average each bucket as soon as it is full; returns `finish`, to be called after backward."""
    parameters, size = dict(model.named_parameters()), dist.get_world_size()
    place = {name: number for number, bucket in enumerate(buckets) for name in bucket}
    flats = [torch.zeros(sum(parameters[name].numel() for name in bucket)) for bucket in buckets]
    views = {}
    for bucket, flat in zip(buckets, flats, strict=True):
        for name, part in zip(bucket, flat.split([parameters[name].numel() for name in bucket]), strict=True):
            views[name] = part.view_as(parameters[name])
    state = {}

    def reset():
        state.update(left=[len(bucket) for bucket in buckets], missing=set(place), works=[])

    def hook(name):
        def put(parameter):
            torch.div(parameter.grad, size, out=views[name])
            state["missing"].discard(name)
            state["left"][place[name]] -= 1
            while len(state["works"]) < len(buckets) and state["left"][len(state["works"])] == 0:
                state["works"].append(dist.all_reduce(flats[len(state["works"])], async_op=True))

        return put

    def finish():
        if state["missing"]:
            raise RuntimeError("these got no gradient: " + " ".join(sorted(state["missing"])))
        for work in state["works"]:
            work.wait()
        for name, view in views.items():
            parameters[name].grad.copy_(view)
        reset()

    reset()
    for name in place:
        parameters[name].register_post_accumulate_grad_hook(hook(name))
    return finish
