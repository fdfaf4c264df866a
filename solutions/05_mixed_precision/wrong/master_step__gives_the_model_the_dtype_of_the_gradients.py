# expect: in bfloat16, after gradients in float16
# fails: precision
def master_step(
    state: Masters, gradients: torch.Tensor, learning_rate: float, momentum: float, dtype: torch.dtype
) -> tuple[Masters, torch.Tensor]:
    """One step of SGD with momentum on the masters, and the weights that the model gets."""
    velocity = momentum * state.momentum + gradients.float()
    weights = state.weights - learning_rate * velocity
    return Masters(weights, velocity), weights.to(gradients.dtype)
