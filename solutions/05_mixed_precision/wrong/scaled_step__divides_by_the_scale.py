# expect: divided by the scale
# fails: step
def scaled_step(
    scaler: Scaler, parameters: list[torch.Tensor], gradients: list[torch.Tensor], learning_rate: float
) -> tuple[Scaler, list[torch.Tensor], bool]:
    """One step of SGD on the gradients of a scaled loss, or none."""
    if not all(bool(torch.isfinite(g).all()) for g in gradients):
        return replace(scaler, scale=float(np.float32(scaler.scale * scaler.backoff)), clean=0), list(parameters), True
    inverse = float(np.float32(1 / scaler.scale))
    new = [p - learning_rate * (g.float() / scaler.scale) for p, g in zip(parameters, gradients, strict=True)]
    if scaler.clean + 1 < scaler.interval:
        return replace(scaler, clean=scaler.clean + 1), new, False
    with np.errstate(over="ignore"):
        grown = float(np.float32(scaler.scale * scaler.growth))
    return replace(scaler, scale=grown if math.isfinite(grown) else scaler.scale, clean=0), new, False
