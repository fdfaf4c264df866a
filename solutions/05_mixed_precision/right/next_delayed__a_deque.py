from collections import deque


def next_delayed(state: Delayed, amax: float, largest: float, margin: int, window: int) -> Delayed:
    """The state after a tensor whose largest magnitude was `amax`."""
    with np.errstate(over="ignore"):
        amax = np.float32(amax).item()
    if amax != amax or abs(amax) == float("inf"):
        return Delayed(state.scale, state.history)
    remembered = deque(state.history, maxlen=window)
    remembered.append(amax)
    top, peak = np.float32(largest / 2**margin), np.float32(max(remembered))
    scale = state.scale
    if peak > 0:
        with np.errstate(all="ignore"):
            scale = (top / peak).item()
        if math.isinf(scale):
            scale = LARGEST_SCALE
    return replace(state, scale=scale, history=tuple(remembered))
