def target_for(seats: int, before: float, after: float, lead: float, wait: float) -> int:
    """The highest target that survives a burst."""
    from fractions import Fraction

    seats_, before_, after_, lead_, wait_ = map(Fraction, (seats, before, after, lead, wait))
    share = 1 - wait_ / lead_  # of the burst that the old replicas must serve
    if share <= 0:
        return seats
    return min(seats, math.floor(before_ * seats_ / (after_ * share)))
