def fill_step(running: list[tuple[str, int, int]], budget: int) -> list[tuple[str, int, int, bool]]:
    """What the next step computes: (name, start, count, samples)."""
    counts = dict.fromkeys((name for name, _, _ in running), 0)
    for name, computed, tokens in running:
        if tokens == computed + 1 and budget > 0:
            counts[name], budget = 1, budget - 1
    for name, computed, tokens in running:
        if not counts[name] and tokens != computed + 1:
            counts[name] = min(tokens - computed, budget)
            budget -= counts[name]
    return [
        (name, computed, counts[name], tokens == computed + counts[name])
        for name, computed, tokens in running
        if counts[name]
    ]
