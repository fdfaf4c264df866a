# expect: after an amax of 0
# fails: limits
def next_delayed(state: Delayed, amax: float, largest: float, margin: int, window: int) -> Delayed:
    """The state after a tensor whose largest magnitude was `amax`."""
    with np.errstate(over="ignore"):
        newest = float(np.float32(amax))
    if not math.isfinite(newest):
        return state
    history = (*state.history, newest)[-window:]
    reference = max(history)
    if reference == 0:
        return state
    with np.errstate(over="ignore"):
        scale = float(np.float32(largest * 2.0**-margin) / np.float32(reference))
    return Delayed(min(scale, LARGEST_SCALE), history)
