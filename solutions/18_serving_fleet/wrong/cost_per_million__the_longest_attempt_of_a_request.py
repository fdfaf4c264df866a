# expect: a longer attempt that broke off replaces the complete one
# fails: tokens
def cost_per_million(
    replicas: list[tuple[float, int]], end: float, attempts: list[tuple[str, int, bool]], price: float
) -> float:
    """Dollars for a million tokens that were served."""
    times = [t for t, _ in replicas] + [end]
    seconds = sum(n * (times[i + 1] - t) for i, (t, n) in enumerate(replicas))
    tokens = sum({r: max(m for q, m, _ in attempts if q == r) for r, n, done in attempts if done}.values())
    return seconds / 3600 * price / tokens * 1e6 if tokens else math.inf
