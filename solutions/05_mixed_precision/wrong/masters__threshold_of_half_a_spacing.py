# expect: twice as close
# caught: hidden
def lost(weights: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """Where an update that is not zero leaves a 16-bit weight as it was."""
    require_same_shape(weights, updates)
    digits = -torch.log2(torch.tensor(torch.finfo(weights.dtype).eps)).int() + 1
    spacing = 2.0 ** (torch.frexp(weights.float())[1] - digits).float()
    return (updates.abs() <= spacing / 2) & (updates != 0)


def begin(weights: torch.Tensor) -> Masters:
    """Float32 masters of 16-bit weights."""
    return Masters(weights.float(), torch.zeros(weights.shape))


def master_step(
    state: Masters, gradients: torch.Tensor, learning_rate: float, momentum: float, dtype: torch.dtype
) -> tuple[Masters, torch.Tensor]:
    """One step of SGD with momentum on the masters, and the weights that the model gets."""
    require_same_shape(state.weights, gradients)
    velocity = momentum * state.momentum + gradients.float()
    weights = state.weights - learning_rate * velocity
    return Masters(weights, velocity), weights.to(dtype)


def require_same_shape(first: torch.Tensor, second: torch.Tensor) -> None:
    if first.shape != second.shape:
        raise ValueError(f"shapes {tuple(first.shape)} and {tuple(second.shape)}: expected the same")
