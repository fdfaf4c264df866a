# expect: < is meant, not <=
# fails: values
def accept(
    guesses: list[int], draft: torch.Tensor, model: torch.Tensor, noise: torch.Tensor
) -> tuple[int, torch.Tensor]:
    """How many guesses are kept, and what the token after them is to be drawn from."""
    for place, guess in enumerate(guesses):
        if noise[place] * draft[place, guess] > model[place, guess]:
            excess = (model[place] - draft[place]).clamp(min=0)
            return place, excess / excess.sum()
    return len(guesses), model[len(guesses)]
