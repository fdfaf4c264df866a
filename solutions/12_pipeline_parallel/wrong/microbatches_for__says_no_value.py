# expect: share = 0
# fails: edges
def microbatches_for(stages: int, share: float) -> int:
    """The fewest microbatches with which at most `share` of a step is bubble."""
    if not 0 < share < 1:
        raise ValueError("the share must be above 0 and below 1")
    microbatches = 1
    while stages - 1 > share * (microbatches + stages - 1):
        microbatches += 1
    return microbatches
