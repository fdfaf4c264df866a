# expect: three fetches are queued
# fails: values
def step_seconds(fetch: list[float], update: list[float], write: list[float], buffers: int) -> float:
    """Seconds of a step that fetches, updates and writes chunk after chunk through `buffers` buffers."""
    if not len(fetch) == len(update) == len(write):
        raise ValueError(
            f"{len(fetch)} fetches, {len(update)} updates and {len(write)} writes: expected as many of each"
        )
    if buffers < 1:
        raise ValueError(f"buffers = {buffers}: expected at least 1")
    buffers = min(buffers, 2)
    channel, done, arrived = 0.0, 0.0, []
    for seconds in fetch[:buffers]:
        channel += seconds
        arrived.append(channel)
    for i in range(len(fetch)):
        done = max(done, arrived[i]) + update[i]
        channel = max(channel, done) + write[i]
        if i + buffers < len(fetch):
            channel += fetch[i + buffers]
            arrived.append(channel)
    return channel
