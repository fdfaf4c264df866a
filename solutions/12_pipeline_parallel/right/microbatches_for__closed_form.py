def microbatches_for(stages: int, share: float) -> int:
    """The fewest microbatches with which at most `share` of a step is bubble."""
    if share <= 0 or share >= 1:
        raise ValueError(f"share = {share} is not between 0 and 1")
    return max(1, math.ceil((stages - 1) * (1 / share - 1) - 1e-9))
