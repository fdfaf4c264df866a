# expect: computed in float64
# fails: precision
def master_step(
    state: Masters, gradients: torch.Tensor, learning_rate: float, momentum: float, dtype: torch.dtype
) -> tuple[Masters, torch.Tensor]:
    """One step of SGD with momentum on the masters, and the weights that the model gets."""
    velocity = momentum * state.momentum.double() + gradients.double()
    weights = state.weights.double() - learning_rate * velocity
    return Masters(weights.float(), velocity.float()), weights.to(dtype)
