def fill_step(running: list[tuple[str, int, int]], budget: int) -> list[tuple[str, int, int, bool]]:
    """What the next step computes: (name, start, count, samples)."""
    order = sorted(running, key=lambda each: each[2] - each[1] > 1)
    wanted = [(name, position) for name, computed, tokens in order for position in range(computed, tokens)][:budget]
    found = []
    for name, _, tokens in order:
        positions = [position for who, position in wanted if who == name]
        if positions:
            found.append((name, min(positions), len(positions), max(positions) == tokens - 1))
    return found
