def choose_recipe(x: torch.Tensor, weight: torch.Tensor, history: tuple[float, ...], most_error: float) -> str:
    """The cheapest recipe whose product is good enough for every token."""
    exact = x.double().numpy() @ weight.double().numpy().T
    for recipe in list(RECIPES):
        rough = stored(x, recipe, history).double().numpy() @ stored(weight, recipe).double().numpy().T
        if all(np.linalg.norm(r - e) / np.linalg.norm(e) <= most_error for r, e in zip(rough, exact, strict=True)):
            return recipe
    raise ValueError(f"most_error = {most_error}: expected at least 0")
