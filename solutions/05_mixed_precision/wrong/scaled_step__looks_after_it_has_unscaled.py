# expect: infinite once unscaled
# fails: skips
def scaled_step(
    scaler: Scaler, parameters: list[torch.Tensor], gradients: list[torch.Tensor], learning_rate: float
) -> tuple[Scaler, list[torch.Tensor], bool]:
    """One step of SGD on the gradients of a scaled loss, or none."""
    inverse = float(np.float32(1 / scaler.scale))
    unscaled = [g.float() * inverse for g in gradients]
    if not all(bool(torch.isfinite(g).all()) for g in unscaled):
        return replace(scaler, scale=float(np.float32(scaler.scale * scaler.backoff)), clean=0), list(parameters), True
    new = [p - learning_rate * g for p, g in zip(parameters, unscaled, strict=True)]
    if scaler.clean + 1 < scaler.interval:
        return replace(scaler, clean=scaler.clean + 1), new, False
    with np.errstate(over="ignore"):
        grown = float(np.float32(scaler.scale * scaler.growth))
    return replace(scaler, scale=grown if math.isfinite(grown) else scaler.scale, clean=0), new, False
