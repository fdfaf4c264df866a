from collections import deque


def step_seconds(fetch: list[float], update: list[float], write: list[float], buffers: int) -> float:
    """Seconds of a step that fetches, updates and writes chunk after chunk through `buffers` buffers."""
    if not len(fetch) == len(update) == len(write):
        raise ValueError(
            f"{len(fetch)} fetches, {len(update)} updates and {len(write)} writes: expected as many of each"
        )
    if buffers < 1:
        raise ValueError(f"buffers = {buffers}: expected at least 1")
    arrived, channel, done = deque(), 0.0, 0.0
    coming = deque(fetch)
    for _ in range(min(buffers, len(fetch))):
        channel += coming.popleft()
        arrived.append(channel)
    for work, back in zip(update, write, strict=True):
        done = work + (done if done > arrived[0] else arrived[0])
        arrived.popleft()
        channel = back + (channel if channel > done else done)
        if coming:
            channel += coming.popleft()
            arrived.append(channel)
    return float(channel)
