def fill_step(running: list[tuple[str, int, int]], budget: int) -> list[tuple[str, int, int, bool]]:
    """What the next step computes: (name, start, count, samples)."""
    reserve = sum(tokens - computed == 1 for _, computed, tokens in running)
    for_prompts = max(0, budget - reserve)
    chunks = []
    for name, computed, tokens in running:
        left = tokens - computed
        if left == 1:
            count = 1 if budget else 0
            budget -= count
        else:
            count = min(left, for_prompts)
            for_prompts -= count
        if count > 0:
            chunks.append([name, computed, count, count == left])
    return chunks[::-1]
