# expect: that leaves out the new amax
# fails: values, limits
def next_delayed(state: Delayed, amax: float, largest: float, margin: int, window: int) -> Delayed:
    """The state after a tensor whose largest magnitude was `amax`."""
    with np.errstate(over="ignore"):
        newest = float(np.float32(amax))
    if not math.isfinite(newest):
        return state
    history = (*state.history, newest)[-window:]
    reference = max(state.history, default=0.0)
    if reference == 0:
        return Delayed(state.scale, history)
    with np.errstate(over="ignore"):
        scale = float(np.float32(largest * 2.0**-margin) / np.float32(reference))
    return Delayed(min(scale, LARGEST_SCALE), history)
