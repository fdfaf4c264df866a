# expect: divide in float32
# fails: values
def next_delayed(state: Delayed, amax: float, largest: float, margin: int, window: int) -> Delayed:
    """The state after a tensor whose largest magnitude was `amax`."""
    with np.errstate(over="ignore"):
        newest = float(np.float32(amax))
    if not math.isfinite(newest):
        return state
    history = (*state.history, newest)[-window:]
    reference = max(history)
    if reference == 0:
        return Delayed(state.scale, history)
    with np.errstate(over="ignore"):
        scale = largest * 2.0**-margin / reference
    return Delayed(min(scale, LARGEST_SCALE), history)
