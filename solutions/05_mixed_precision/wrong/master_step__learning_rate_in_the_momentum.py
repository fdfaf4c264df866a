# expect: the learning rate belongs to the masters' step
# fails: values, precision
def master_step(
    state: Masters, gradients: torch.Tensor, learning_rate: float, momentum: float, dtype: torch.dtype
) -> tuple[Masters, torch.Tensor]:
    """One step of SGD with momentum on the masters, and the weights that the model gets."""
    velocity = momentum * state.momentum + learning_rate * gradients.float()
    weights = state.weights - velocity
    return Masters(weights, velocity), weights.to(dtype)
