def capture(run) -> dict:
    """In place of an order and a position: what is left of the epoch. The rest of the state is one list per rank."""
    import copy

    own = [
        torch.get_rng_state(),
        list(random.getstate()[1]),
        random.getstate()[2],
        torch.tensor(run.samples.order[run.samples.position :], dtype=torch.int64),
        run.samples.generator.get_state(),
    ]
    ranks = [None for _ in range(dist.get_world_size())]
    dist.all_gather_object(ranks, own)
    return copy.deepcopy(
        {
            "ranks": ranks,
            "weights": dict(run.model.state_dict()),
            "others": [each.state_dict() for each in (run.optimizer, run.scheduler, run.scaler)],
        }
    )


def restore(run, saved: dict) -> None:
    """Fill the part of the epoch that is over with samples that nobody reads."""
    for name, tensor in run.model.state_dict().items():
        tensor.copy_(saved["weights"][name])
    for each, state in zip((run.optimizer, run.scheduler, run.scaler), saved["others"], strict=True):
        each.load_state_dict(state)
    of_torch, words, gauss, left, generator = saved["ranks"][dist.get_rank()]
    torch.set_rng_state(of_torch)
    random.setstate((3, tuple(words), gauss))
    samples = run.samples
    samples.position = samples.count - len(left)
    samples.order = [-1] * samples.position + left.tolist()
    samples.generator.set_state(generator)
