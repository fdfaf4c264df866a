# expect: of type float32: expected a float
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
        scale = np.float32(largest * 2.0**-margin) / np.float32(reference)
    return Delayed(min(scale, np.float32(LARGEST_SCALE)), history)
