# expect: this is the price of a thousand tokens
# fails: replicas, tokens
def cost_per_million(
    replicas: list[tuple[float, int]], end: float, attempts: list[tuple[str, int, bool]], price: float
) -> float:
    """Dollars for a million tokens that were served."""
    ends = [second for second, _ in replicas[1:]] + [end]
    seconds = sum(number * (until - second) for (second, number), until in zip(replicas, ends, strict=True))
    served = {request: tokens for request, tokens, complete in attempts if complete}
    tokens = sum(served.values())
    return seconds / 3600 * price / tokens * 1e3 if tokens else math.inf
