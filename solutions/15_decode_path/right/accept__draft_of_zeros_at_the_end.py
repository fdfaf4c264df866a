def accept(
    guesses: list[int], draft: torch.Tensor, model: torch.Tensor, noise: torch.Tensor
) -> tuple[int, torch.Tensor]:
    """After all guesses the draft has no say: with q = 0 the excess is p."""
    q = torch.cat((draft, torch.zeros_like(model[:1])))
    kept = 0
    while kept < len(guesses):
        guess = guesses[kept]
        if model[kept, guess] <= noise[kept] * q[kept, guess]:
            break
        kept += 1
    excess = torch.where(model[kept] > q[kept], model[kept] - q[kept], 0)
    return kept, excess / excess.sum()
