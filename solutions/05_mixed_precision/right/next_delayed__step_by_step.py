def next_delayed(state: Delayed, amax: float, largest: float, margin: int, window: int) -> Delayed:
    """The state after a tensor whose largest magnitude was `amax`."""
    rounded = torch.tensor(amax).item()
    if math.isnan(rounded) or math.isinf(rounded):
        return state
    history = list(state.history)
    history.append(rounded)
    while len(history) > window:
        history.pop(0)
    return Delayed(scale_for(max(history), largest, margin, state.scale), tuple(history))


def scale_for(peak: float, largest: float, margin: int, old: float) -> float:
    if not peak:
        return old
    quotient = largest / 2.0**margin / peak  # in float64, it is finite
    if quotient > LARGEST_SCALE:
        return LARGEST_SCALE
    return float(np.divide(np.float32(largest / 2.0**margin), np.float32(peak), dtype=np.float32))
