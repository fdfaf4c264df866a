# expect: a guess after a rejected one was counted
# fails: values, distribution
def accept(
    guesses: list[int], draft: torch.Tensor, model: torch.Tensor, noise: torch.Tensor
) -> tuple[int, torch.Tensor]:
    """How many guesses are kept, and what the token after them is to be drawn from."""
    kept = [i for i, guess in enumerate(guesses) if noise[i] * draft[i, guess] < model[i, guess]]
    if len(kept) == len(guesses):
        return len(guesses), model[len(guesses)]
    place = next(i for i in range(len(guesses)) if i not in kept)
    excess = (model[place] - draft[place]).clamp(min=0)
    return len(kept), excess / excess.sum()
