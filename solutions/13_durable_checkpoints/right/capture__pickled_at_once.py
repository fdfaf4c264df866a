import pickle


def capture(run) -> dict:
    """Bytes cannot change any more."""
    shared = {name: getattr(run, name).state_dict() for name in ("model", "optimizer", "scheduler", "scaler")}
    mine = vars(run.samples) | {"generator": run.samples.generator.get_state()}
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, pickle.dumps((mine, torch.get_rng_state(), random.getstate())))
    return {"shared": pickle.dumps(shared), "ranks": found}


def restore(run, saved: dict) -> None:
    """From this rank's bytes."""
    for name, state in pickle.loads(saved["shared"]).items():
        getattr(run, name).load_state_dict(state)
    mine, for_torch, for_python = pickle.loads(saved["ranks"][dist.get_rank()])
    run.samples.generator.set_state(mine.pop("generator"))
    vars(run.samples).update(mine)
    torch.random.set_rng_state(for_torch)
    random.setstate(for_python)
