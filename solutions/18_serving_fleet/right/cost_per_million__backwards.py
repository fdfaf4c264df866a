def cost_per_million(
    replicas: list[tuple[float, int]], end: float, attempts: list[tuple[str, int, bool]], price: float
) -> float:
    """Dollars for a million tokens that were served."""
    hours = 0.0
    for second, number in reversed(replicas):
        hours += number * (end - second) / 3600
        end = second
    tokens, seen = 0, set()
    for request, count, complete in attempts:
        if complete and request not in seen:
            seen.add(request)
            tokens += count
    if tokens == 0:
        return float("inf")
    return hours * price / (tokens / 1_000_000)
