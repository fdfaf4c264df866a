def master_step(
    state: Masters, gradients: torch.Tensor, learning_rate: float, momentum: float, dtype: torch.dtype
) -> tuple[Masters, torch.Tensor]:
    """One step of SGD with momentum on the masters, by torch's optimizer."""
    weights = torch.nn.Parameter(state.weights.clone())
    optimizer = torch.optim.SGD([weights], lr=learning_rate, momentum=momentum)
    if momentum:
        optimizer.state[weights]["momentum_buffer"] = state.momentum.clone()
    weights.grad = gradients.float()
    optimizer.step()
    kept = optimizer.state[weights]["momentum_buffer"] if momentum else gradients.float()
    new = weights.detach()
    return Masters(new, kept), new.to(dtype)
