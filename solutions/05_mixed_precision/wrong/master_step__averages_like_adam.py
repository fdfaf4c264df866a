# expect: that is Adam's average
# fails: values, precision
def master_step(
    state: Masters, gradients: torch.Tensor, learning_rate: float, momentum: float, dtype: torch.dtype
) -> tuple[Masters, torch.Tensor]:
    """One step of SGD with momentum on the masters, and the weights that the model gets."""
    velocity = momentum * state.momentum + (1 - momentum) * gradients.float()
    weights = state.weights - learning_rate * velocity
    return Masters(weights, velocity), weights.to(dtype)
