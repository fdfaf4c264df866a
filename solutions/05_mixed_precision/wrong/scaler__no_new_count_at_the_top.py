# expect: at the end of float32
# caught: hidden
def next_scaler(scaler: Scaler, overflow: bool) -> Scaler:
    """The scaler after a step whose gradients did, or did not, overflow."""
    if overflow:
        scale = float(np.float32(scaler.scale * scaler.backoff))
        if scale < SMALLEST_SCALE:
            raise FloatingPointError(f"scale = {scaler.scale:g}: gradients overflow even so; look for NaN in the data")
        return replace(scaler, scale=scale, clean=0)
    if scaler.clean + 1 < scaler.interval:
        return replace(scaler, clean=scaler.clean + 1)
    with np.errstate(over="ignore"):
        grown = float(np.float32(scaler.scale * scaler.growth))
    if not np.isfinite(grown):
        return replace(scaler, clean=scaler.clean + 1)
    return replace(scaler, scale=grown, clean=0)


def scaled_step(
    scaler: Scaler, parameters: list[torch.Tensor], gradients: list[torch.Tensor], learning_rate: float
) -> tuple[Scaler, list[torch.Tensor], bool]:
    """One step of SGD on the gradients of a scaled loss, or none."""
    overflow = not all(bool(torch.isfinite(g).all()) for g in gradients)
    if not overflow:
        inverse = float(np.float32(1 / scaler.scale))
        parameters = [p - learning_rate * (g.float() * inverse) for p, g in zip(parameters, gradients, strict=True)]
    return next_scaler(scaler, overflow), list(parameters), overflow
