def cost_per_million(
    replicas: list[tuple[float, int]], end: float, attempts: list[tuple[str, int, bool]], price: float
) -> float:
    """Dollars for a million tokens that were served."""
    seconds, numbers = (np.array(column, dtype=float) for column in zip(*replicas, strict=True))
    paid = float(np.dot(np.diff(seconds, append=end), numbers)) * price / 3600
    served = sum({(request, count) for request, count, complete in attempts if complete}, ())
    tokens = sum(served[1::2])
    return paid * 1e6 / tokens if tokens else math.inf
