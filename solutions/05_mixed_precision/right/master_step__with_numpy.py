def master_step(
    state: Masters, gradients: torch.Tensor, learning_rate: float, momentum: float, dtype: torch.dtype
) -> tuple[Masters, torch.Tensor]:
    """One step of SGD with momentum on the masters, in NumPy's float32."""
    factor, rate = np.float32(momentum), np.float32(learning_rate)
    velocity = factor * state.momentum.numpy() + gradients.float().numpy()
    weights = torch.from_numpy(state.weights.numpy() - rate * velocity)
    return replace(state, weights=weights, momentum=torch.from_numpy(velocity)), weights.to(dtype)
