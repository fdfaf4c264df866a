# expect: four times
def epoch_seconds(objects: list, store: Store, readers: int) -> float:
    """Seconds of fetching objects of so many bytes."""
    free, link = [0.0] * readers, 0.0
    for size in objects:
        reader = free.index(min(free))
        link = max(store.latency, link) + size / store.bandwidth
        free[reader] = link
    return link
