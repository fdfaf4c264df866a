def accept(
    guesses: list[int], draft: torch.Tensor, model: torch.Tensor, noise: torch.Tensor
) -> tuple[int, torch.Tensor]:
    if len(guesses) == 0:
        return 0, model[0]
    p, q = model[0], draft[0]
    if float(noise[0]) * float(q[guesses[0]]) < float(p[guesses[0]]):
        kept, chances = accept(guesses[1:], draft[1:], model[1:], noise[1:])
        return kept + 1, chances
    left = torch.maximum(p - q, torch.zeros_like(p))
    return 0, left / left.sum()
