def scaled_step(
    scaler: Scaler, parameters: list[torch.Tensor], gradients: list[torch.Tensor], learning_rate: float
) -> tuple[Scaler, list[torch.Tensor], bool]:
    """One step of SGD on the gradients of a scaled loss, or none."""
    skipped = any(bool((torch.isnan(g) | torch.isinf(g)).any()) for g in gradients)
    if skipped:
        return next_scaler(scaler, True), [p.clone() for p in parameters], True
    factor = np.float32(1.0 / scaler.scale).item()
    stepped = []
    for p, g in zip(parameters, gradients, strict=True):
        stepped.append(torch.add(p, g.to(torch.float32).mul(factor), alpha=-learning_rate))
    return next_scaler(scaler, False), stepped, False


def next_scaler(scaler: Scaler, skipped: bool) -> Scaler:
    scale, clean = scaler.scale, scaler.clean + 1
    if skipped:
        scale, clean = in_float32(scale * scaler.backoff), 0
    elif clean >= scaler.interval:
        grown, clean = in_float32(scale * scaler.growth), 0
        scale = scale if grown == float("inf") else grown
    return Scaler(scale, scaler.growth, scaler.backoff, scaler.interval, clean)


def in_float32(x: float) -> float:
    return torch.tensor(x, dtype=torch.float64).float().item()
