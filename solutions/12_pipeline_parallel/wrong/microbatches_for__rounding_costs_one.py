# expect: 12 are enough
# fails: values
def microbatches_for(stages: int, share: float) -> int:
    """The fewest microbatches with which at most `share` of a step is bubble."""
    if not 0 < share < 1:
        raise ValueError(f"share = {share}: expected a part of the step, above 0 and below 1")
    return max(1, math.ceil((stages - 1) * (1 - share) / share))
