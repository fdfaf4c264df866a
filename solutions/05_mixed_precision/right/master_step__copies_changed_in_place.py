def master_step(
    state: Masters, gradients: torch.Tensor, learning_rate: float, momentum: float, dtype: torch.dtype
) -> tuple[Masters, torch.Tensor]:
    """One step of SGD with momentum on copies of the masters."""
    masters, velocity = state.weights.clone(), state.momentum.clone()
    velocity.mul_(momentum).add_(gradients.to(torch.float32))
    masters.sub_(velocity, alpha=learning_rate)
    model = torch.empty_like(masters, dtype=dtype)
    model.copy_(masters)
    return Masters(weights=masters, momentum=velocity), model
