def overlap(model: torch.nn.Module, buckets: list[list[str]]):
    """After finish, gradients are views of the buckets, which are new ones in every step."""
    named, ranks = dict(model.named_parameters()), dist.get_world_size()
    state = {"left": [], "next": 0, "works": []}

    def begin():
        state.update(left=[set(bucket) for bucket in buckets], next=0, works=[])

    def arrived(which, name):
        def hook(parameter):
            state["left"][which].discard(name)
            while state["next"] < len(buckets) and not state["left"][state["next"]]:
                bucket = buckets[state["next"]]
                flat = torch.nn.utils.parameters_to_vector([named[each].grad for each in bucket])
                state["works"].append((bucket, flat, dist.all_reduce(flat, async_op=True)))
                state["next"] += 1

        return hook

    for which, bucket in enumerate(buckets):
        for name in bucket:
            named[name].register_post_accumulate_grad_hook(arrived(which, name))
    begin()

    def finish():
        absent = sorted(set().union(*state["left"])) if state["left"] else []
        if absent:
            raise RuntimeError("these parameters took no part in the loss: " + ", ".join(absent))
        for bucket, flat, work in state["works"]:
            work.wait()
            flat.div_(ranks)
            start = 0
            for name in bucket:
                parameter = named[name]
                parameter.grad = flat.narrow(0, start, parameter.numel()).view_as(parameter)
                start += parameter.numel()
        begin()

    return finish
