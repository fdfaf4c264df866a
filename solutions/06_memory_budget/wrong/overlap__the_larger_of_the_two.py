# expect: 1 buffer
# fails: values
def step_seconds(fetch: list[float], update: list[float], write: list[float], buffers: int) -> float:
    """Seconds of a step that fetches, updates and writes chunk after chunk through `buffers` buffers."""
    if not len(fetch) == len(update) == len(write):
        raise ValueError(
            f"{len(fetch)} fetches, {len(update)} updates and {len(write)} writes: expected as many of each"
        )
    if buffers < 1:
        raise ValueError(f"buffers = {buffers}: expected at least 1")
    return float(max(sum(fetch) + sum(write), sum(update)))
