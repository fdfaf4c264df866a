def microbatches_for(stages: int, share: float) -> int:
    """The fewest microbatches with which at most `share` of a step is bubble."""
    from fractions import Fraction

    if not 0 < share < 1:
        raise ValueError(f"share = {share}: expected more than 0 and less than 1")
    exact = Fraction(str(share))
    needed = (stages - 1) * (1 - exact) / exact
    return max(1, -(-needed.numerator // needed.denominator))
