def lost(weights: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """Where an update that is not zero leaves a 16-bit weight as it was."""
    if weights.size() != updates.size():
        raise ValueError(f"weights have the shape {tuple(weights.size())}, updates {tuple(updates.size())}")
    answers = []
    for weight, update in zip(weights.reshape(-1), updates.reshape(-1), strict=True):
        after = (weight.float() + update).to(weights.dtype)
        answers.append(bool(update != 0) and bool(after == weight))
    return torch.tensor(answers, dtype=torch.bool).reshape(weights.shape)
