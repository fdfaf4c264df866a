# expect: dropout mask (torch
# fails: random
def capture(run) -> dict:
    """What all ranks need to continue, on rank 0."""
    import copy

    samples = run.samples
    own = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "order": list(samples.order),
        "position": samples.position,
        "generator": samples.generator.get_state(),
    }
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    parts = {name: getattr(run, name).state_dict() for name in ("model", "optimizer", "scheduler", "scaler")}
    return copy.deepcopy({"parts": parts, "ranks": ranks})


def restore(run, saved: dict) -> None:
    """Continue where `capture` was called."""
    for name, state in saved["parts"].items():
        getattr(run, name).load_state_dict(state)
    own = saved["ranks"][dist.get_rank()]
    run.samples.order, run.samples.position = own["order"], own["position"]
    run.samples.generator.set_state(own["generator"])
    random.setstate(own["python"])
