def microbatches_for(stages: int, share: float) -> int:
    """The fewest microbatches with which at most `share` of a step is bubble."""

    def bubble(microbatches):
        return (stages - 1) / (microbatches + stages - 1)

    if not 0 < share < 1:
        raise ValueError(f"share = {share}: nothing to look for")
    high = 1
    while bubble(high) > share:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if bubble(middle) > share:
            low = middle
        else:
            high = middle
    return high
