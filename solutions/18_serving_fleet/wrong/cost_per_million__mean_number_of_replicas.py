# expect: this takes the mean of the numbers, however long each of them ran
# fails: replicas
def cost_per_million(
    replicas: list[tuple[float, int]], end: float, attempts: list[tuple[str, int, bool]], price: float
) -> float:
    """Dollars for a million tokens that were served."""
    ends = [second for second, _ in replicas[1:]] + [end]
    seconds = (end - replicas[0][0]) * sum(number for _, number in replicas) / len(replicas)
    served = {request: tokens for request, tokens, complete in attempts if complete}
    tokens = sum(served.values())
    return seconds / 3600 * price / tokens * 1e6 if tokens else math.inf
