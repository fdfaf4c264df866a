# expect: value      None
# fails: replicas, tokens
def cost_per_million(
    replicas: list[tuple[float, int]], end: float, attempts: list[tuple[str, int, bool]], price: float
) -> float:
    """Dollars for a million tokens that were served."""
    ends = [second for second, _ in replicas[1:]] + [end]
    seconds = sum(number * (until - second) for (second, number), until in zip(replicas, ends, strict=True))
    tokens = sum({request: tokens for request, tokens, complete in attempts if complete}.values())
    print(seconds / 3600 * price / tokens * 1e6 if tokens else math.inf)
