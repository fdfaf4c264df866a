def capture(run) -> dict:
    """Random states are tensors of bytes, so they can be gathered as tensors."""
    ranks, samples = dist.get_world_size(), run.samples
    states = torch.stack([torch.get_rng_state(), samples.generator.get_state()])
    order = samples.order or [0] * samples.count
    version, words, gauss = random.getstate()
    numbers = torch.tensor([samples.position, bool(samples.order), version, *words, *order])
    gathered = []
    for mine in (states, numbers):
        parts = [torch.empty_like(mine) for _ in range(ranks)]
        dist.all_gather(parts, mine)
        gathered.append(torch.stack(parts))
    found = [None] * ranks
    dist.all_gather_object(found, gauss)
    trained = [run.model, run.optimizer, run.scheduler, run.scaler]
    return {
        "states": gathered[0],
        "numbers": gathered[1],
        "gauss": found,
        "trained": _copied([t.state_dict() for t in trained]),
    }


def _copied(value):
    if torch.is_tensor(value):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def restore(run, saved: dict) -> None:
    """This rank's row."""
    rank, samples = dist.get_rank(), run.samples
    for part, state in zip((run.model, run.optimizer, run.scheduler, run.scaler), saved["trained"], strict=True):
        part.load_state_dict(state)
    torch.set_rng_state(saved["states"][rank, 0].clone())
    samples.generator.set_state(saved["states"][rank, 1].clone())
    position, there, version, *rest = saved["numbers"][rank].tolist()
    samples.position, samples.order = position, rest[625:] if there else []
    random.setstate((version, tuple(rest[:625]), saved["gauss"][rank]))
