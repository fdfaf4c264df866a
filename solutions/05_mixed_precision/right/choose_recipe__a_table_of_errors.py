def choose_recipe(x: torch.Tensor, weight: torch.Tensor, history: tuple[float, ...], most_error: float) -> str:
    """The cheapest recipe whose product is good enough for every token."""
    errors = {recipe: worst_error(x, weight, history, recipe) for recipe in RECIPES}
    good = [recipe for recipe, error in errors.items() if error <= most_error]
    return good[0]


def worst_error(x, weight, history, recipe):
    exact = torch.einsum("tk,ok->to", x.double(), weight.double())
    rough = torch.einsum("tk,ok->to", stored(x, recipe, history).double(), stored(weight, recipe).double())
    difference, size = torch.linalg.vector_norm(rough - exact, dim=-1), torch.linalg.vector_norm(exact, dim=-1)
    return float(torch.max(difference / size))
