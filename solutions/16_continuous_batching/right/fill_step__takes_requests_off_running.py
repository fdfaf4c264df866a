def fill_step(running: list[tuple[str, int, int]], budget: int) -> list[tuple[str, int, int, bool]]:
    """What the next step computes: (name, start, count, samples)."""
    chunks, prompts = [], []
    while running:
        name, computed, tokens = running.pop(0)
        if tokens - computed > 1:
            prompts.append((name, computed, tokens))
        elif budget:
            chunks.append((name, computed, 1, True))
            budget -= 1
    while prompts and budget:
        name, computed, tokens = prompts.pop(0)
        count = min(budget, tokens - computed)
        chunks.append((name, computed, count, computed + count == tokens))
        budget -= count
    return chunks
