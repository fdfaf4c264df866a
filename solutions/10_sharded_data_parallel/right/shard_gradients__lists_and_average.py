def shard_gradients(model: torch.nn.Module):
    """Reduce-scatter each gradient while backward runs, and free it; returns `finish`."""
    names = {p: name for name, p in model.named_parameters()}
    state = {"started": 0, "jobs": []}

    def ready(p):
        jobs = state["jobs"]
        if len(jobs) >= 2:
            jobs[-2][1].wait()
        parts = list(p.grad.flatten().chunk(dist.get_world_size()))
        piece = torch.empty_like(parts[0])
        work = dist.reduce_scatter(piece, parts, op=dist.ReduceOp.AVG, async_op=True)
        jobs.append((names[p], work, piece))
        p.grad = None

    for p in names:
        p.register_post_accumulate_grad_hook(ready)

    def finish():
        jobs, state["jobs"] = state["jobs"], []
        for _, work, _ in jobs[-2:]:
            work.wait()
        return {name: piece for name, _, piece in jobs}

    return finish
