def cost_per_million(
    replicas: list[tuple[float, int]], end: float, attempts: list[tuple[str, int, bool]], price: float
) -> float:
    """Dollars for a million tokens: each replica that is added is paid until the end, each removed one paid back."""
    dollars, before = 0.0, 0
    for second, number in replicas:
        dollars += (number - before) * (end - second) * price / 3600
        before = number
    complete = [(request, tokens) for request, tokens, done in attempts if done]
    if not complete:
        return math.inf
    return 1e6 * dollars / sum(dict(complete).values())
