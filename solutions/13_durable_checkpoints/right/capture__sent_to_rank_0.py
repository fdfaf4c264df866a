import copy


def capture(run) -> dict:
    """Only rank 0 has all of it; the others return nothing that matters."""
    mine = {
        "own": [torch.get_rng_state(), random.getstate(), run.samples.generator.get_state()],
        "at": (list(run.samples.order), run.samples.position),
    }
    everyone = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(mine, everyone, dst=0)
    if everyone is None:
        return {}
    saved = {f"rank {rank}": each for rank, each in enumerate(everyone)}
    for name in ("model", "optimizer", "scheduler", "scaler"):
        saved[name] = copy.deepcopy(getattr(run, name).state_dict())
    return saved


def restore(run, saved: dict) -> None:
    """The reverse."""
    run.model.load_state_dict(saved["model"])
    run.optimizer.load_state_dict(saved["optimizer"])
    run.scheduler.load_state_dict(saved["scheduler"])
    run.scaler.load_state_dict(saved["scaler"])
    mine = saved[f"rank {dist.get_rank()}"]
    torch.set_rng_state(mine["own"][0])
    random.setstate(mine["own"][1])
    run.samples.generator.set_state(mine["own"][2])
    run.samples.order, run.samples.position = mine["at"]
