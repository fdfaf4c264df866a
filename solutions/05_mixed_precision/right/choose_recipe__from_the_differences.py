def choose_recipe(x: torch.Tensor, weight: torch.Tensor, history: tuple[float, ...], most_error: float) -> str:
    """The cheapest recipe whose product is good enough for every token."""
    wide_x, wide_weight = x.to(torch.float64), weight.to(torch.float64)
    right = torch.nn.functional.linear(wide_x, wide_weight)
    names = iter(RECIPES)
    while True:
        name = next(names)
        product = torch.nn.functional.linear(stored(x, name, history).double(), stored(weight, name).double())
        if ((product - right).square().sum(1) / right.square().sum(1)).sqrt().max() <= most_error:
            return name
