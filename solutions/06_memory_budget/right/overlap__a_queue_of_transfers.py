def step_seconds(fetch: list[float], update: list[float], write: list[float], buffers: int) -> float:
    """Seconds of a step that fetches, updates and writes chunk after chunk through `buffers` buffers."""
    if not len(fetch) == len(update) == len(write):
        raise ValueError(
            f"{len(fetch)} fetches, {len(update)} updates and {len(write)} writes: expected as many of each"
        )
    if buffers < 1:
        raise ValueError(f"buffers = {buffers}: expected at least 1")
    n, free, ready, updated = len(fetch), 0.0, {}, 0.0
    for i in range(min(buffers, n)):
        free += fetch[i]
        ready[i] = free
    for i in range(n):
        updated = max(updated, ready.pop(i)) + update[i]
        for kind, chunk in (("write", i), ("fetch", i + buffers)):
            if chunk < n:
                free = max(free, updated) + (write if kind == "write" else fetch)[chunk]
                if kind == "fetch":
                    ready[chunk] = free
    return free
