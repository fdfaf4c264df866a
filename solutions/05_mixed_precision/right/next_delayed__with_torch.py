def next_delayed(state: Delayed, amax: float, largest: float, margin: int, window: int) -> Delayed:
    """The state after a tensor whose largest magnitude was `amax`, in torch's float32."""
    new = torch.tensor(amax, dtype=torch.float32)
    if not torch.isfinite(new):
        return state
    history = torch.cat((torch.tensor(state.history, dtype=torch.float32), new[None]))[-window:]
    top = torch.tensor(largest, dtype=torch.float64) * 2.0**-margin
    quotient = torch.divide(top.float(), history.max())
    scale = state.scale if history.max() == 0 else quotient.clamp(max=LARGEST_SCALE).item()
    return Delayed(scale, tuple(history.tolist()))
