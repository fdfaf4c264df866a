def scaled_step(
    scaler: Scaler, parameters: list[torch.Tensor], gradients: list[torch.Tensor], learning_rate: float
) -> tuple[Scaler, list[torch.Tensor], bool]:
    """One step of SGD on the gradients of a scaled loss, or none: the scale is a tensor on the way."""
    scale = torch.tensor(scaler.scale, dtype=torch.float64)
    skipped = sum(int((~torch.isfinite(g)).sum()) for g in gradients) > 0
    inverse = scale.reciprocal().float()
    new = [
        p if skipped else p - (g.float() * inverse) * learning_rate for p, g in zip(parameters, gradients, strict=True)
    ]
    clean = 0 if skipped else scaler.clean + 1
    if skipped:
        scale = (scale * scaler.backoff).float()
    elif clean == scaler.interval:
        clean = 0
        larger = (scale * scaler.growth).float()
        scale = larger if larger.isfinite() else scale
    return replace(scaler, scale=scale.item(), clean=clean), new, skipped
