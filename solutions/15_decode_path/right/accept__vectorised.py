def accept(
    guesses: list[int], draft: torch.Tensor, model: torch.Tensor, noise: torch.Tensor
) -> tuple[int, torch.Tensor]:
    count = len(guesses)
    if not count:
        return 0, model[0]
    places, chosen = torch.arange(count), torch.tensor(guesses)
    good = noise * draft[places, chosen] < model[places, chosen]
    kept = int(good.int().cumprod(0).sum())
    if kept == count:
        return count, model[-1]
    excess = torch.relu(model[kept] - draft[kept])
    return kept, torch.nn.functional.normalize(excess, p=1, dim=0)
