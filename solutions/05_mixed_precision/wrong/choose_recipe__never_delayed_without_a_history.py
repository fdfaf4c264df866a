# expect: plain tokens without a history
def choose_recipe(x: torch.Tensor, weight: torch.Tensor, history: tuple[float, ...], most_error: float) -> str:
    """The cheapest recipe whose product is good enough for every token."""
    right = x.double() @ weight.double().T

    def error(recipe):
        product = stored(x, recipe, history).double() @ stored(weight, recipe).double().T
        return ((product - right).norm(dim=1) / right.norm(dim=1)).max().item()

    return next(recipe for recipe in RECIPES if (history or recipe != "delayed") and error(recipe) <= most_error)
