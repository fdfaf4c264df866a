def epoch_seconds(objects: list, store: Store, readers: int) -> float:
    """Answers arrive in the order of the requests, so the readers are free in turns."""
    arrived = []
    for number, size in enumerate(objects):
        asked = arrived[number - readers] if number >= readers else 0.0
        before = arrived[-1] if arrived else 0.0
        arrived.append(max(asked + store.latency, before) + size / store.bandwidth)
    return arrived[-1] if arrived else 0.0
