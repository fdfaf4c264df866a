# expect: guesses are not compared with the likeliest token
# fails: values, distribution
def accept(
    guesses: list[int], draft: torch.Tensor, model: torch.Tensor, noise: torch.Tensor
) -> tuple[int, torch.Tensor]:
    """How many guesses are kept, and what the token after them is to be drawn from."""
    for place, guess in enumerate(guesses):
        if guess != int(model[place].argmax()):
            excess = (model[place] - draft[place]).clamp(min=0)
            return place, excess / excess.sum()
    return len(guesses), model[len(guesses)]
