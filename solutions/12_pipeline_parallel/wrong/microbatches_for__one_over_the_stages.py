# expect: microbatches_for(8, 0.25)
# fails: values
def microbatches_for(stages: int, share: float) -> int:
    """The fewest microbatches with which at most `share` of a step is bubble."""
    if not 0 < share < 1:
        raise ValueError(f"share = {share}: expected a part of the step, above 0 and below 1")
    microbatches = 1
    while 1 / stages > share:
        return math.ceil(1 / share)
    return microbatches
