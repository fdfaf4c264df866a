# expect: next_delayed after amax number
# caught: hidden
def quantise(x: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """x · scale in FP8, saturated."""
    return (x.float() * scale).clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype)


def next_delayed(state: Delayed, amax: float, largest: float, recipe: Recipe8) -> Delayed:
    """The state after a tensor whose largest magnitude was `amax`."""
    history = (*state.history, float(np.float32(amax)))[-recipe.window :]
    reference = max(history)
    if reference == 0 or not np.isfinite(reference):
        return Delayed(state.scale, history)
    with np.errstate(over="ignore"):
        scale = float(np.float32(largest * 2.0**-recipe.margin) / np.float32(reference))
    return Delayed(min(scale, LARGEST_SCALE), history)


def fp8_linear(
    x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, states: dict[str, Delayed], recipe: Recipe8
) -> Products:
    """y = x · weightᵀ and both gradients, all three products in FP8."""
    tensors = {"x": x, "weight": weight, "gradient": gradient}
    dtypes = {"x": torch.float8_e4m3fn, "weight": torch.float8_e4m3fn, "gradient": torch.float8_e5m2}
    quantised = {n: quantise(t, states[n].scale, dtypes[n]).float() / states[n].scale for n, t in tensors.items()}
    following = {
        n: next_delayed(states[n], float(t.abs().max()), LARGEST[dtypes[n]], recipe) for n, t in tensors.items()
    }
    qx, qw, qg = (quantised[n] for n in ("x", "weight", "gradient"))
    return Products(qx @ qw.t(), qg @ qw, qg.t() @ qx, following)
