def step_seconds(fetch: list[float], update: list[float], write: list[float], buffers: int) -> float:
    """Seconds of a step that fetches, updates and writes chunk after chunk through `buffers` buffers."""
    if not len(fetch) == len(update) == len(write):
        raise ValueError(
            f"{len(fetch)} fetches, {len(update)} updates and {len(write)} writes: expected as many of each"
        )
    if buffers < 1:
        raise ValueError(f"buffers = {buffers}: expected at least 1")
    n = len(fetch)
    arrived = np.zeros(n)
    arrived[:buffers] = np.cumsum(fetch[:buffers])
    channel, done = float(sum(fetch[:buffers])), 0.0
    for i in range(n):
        done = max(done, float(arrived[i])) + update[i]
        channel = max(channel, done) + write[i]
        if i + buffers < n:
            channel += fetch[i + buffers]
            arrived[i + buffers] = channel
    return channel
