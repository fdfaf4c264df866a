# expect: samples
# fails: chunks, trace
def fill_step(running: list[tuple[str, int, int]], budget: int) -> list[tuple[str, int, int, bool]]:
    """What the next step computes: (name, start, count, samples)."""
    chunks = []
    decoding = [each for each in running if each[2] - each[1] == 1]
    prompts = [each for each in running if each[2] - each[1] > 1]
    for name, computed, tokens in decoding + prompts:
        count = min(budget, tokens - computed)
        if count:
            chunks.append((name, computed, count, True))
            budget -= count
    return chunks
