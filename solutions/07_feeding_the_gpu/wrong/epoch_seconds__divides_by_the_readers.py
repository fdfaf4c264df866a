# expect: requests at 0 s overlap
def epoch_seconds(objects: list, store: Store, readers: int) -> float:
    """Seconds of fetching objects of so many bytes."""
    return sum(store.latency + size / store.bandwidth for size in objects) / readers
