# expect: four times
def epoch_seconds(objects: list, store: Store, readers: int) -> float:
    """Seconds of fetching objects of so many bytes."""
    free, link = [0.0] * readers, 0.0
    for _ in objects:
        reader = free.index(min(free))
        link = max(free[reader] + store.latency, link)
        free[reader] = link
    return link
