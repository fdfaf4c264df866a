# expect: that master_step was given, after it
# fails: values
def master_step(
    state: Masters, gradients: torch.Tensor, learning_rate: float, momentum: float, dtype: torch.dtype
) -> tuple[Masters, torch.Tensor]:
    """One step of SGD with momentum on the masters, and the weights that the model gets."""
    velocity = state.momentum.mul_(momentum).add_(gradients.float())
    weights = state.weights - learning_rate * velocity
    return Masters(weights, velocity), weights.to(dtype)
