def scaled_step(
    scaler: Scaler, parameters: list[torch.Tensor], gradients: list[torch.Tensor], learning_rate: float
) -> tuple[Scaler, list[torch.Tensor], bool]:
    """One step of SGD on the gradients of a scaled loss, or none, with the operators that GradScaler calls."""
    found = torch.zeros(1)
    inverse = torch.tensor([scaler.scale], dtype=torch.float64).reciprocal().float()
    copies = [g.float().clone() for g in gradients]
    if copies:
        torch._amp_foreach_non_finite_check_and_unscale_(copies, found, inverse)
    skipped = bool(found.item())
    scale, tracker = torch.tensor([scaler.scale], dtype=torch.float32), torch.tensor([scaler.clean], dtype=torch.int32)
    torch._amp_update_scale_(scale, tracker, found, scaler.growth, scaler.backoff, scaler.interval)
    new = [p.clone() if skipped else p - learning_rate * g for p, g in zip(parameters, copies, strict=True)]
    return replace(scaler, scale=scale.item(), clean=int(tracker.item())), new, skipped
