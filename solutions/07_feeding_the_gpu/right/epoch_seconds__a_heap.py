import heapq


def epoch_seconds(objects: list, store: Store, readers: int) -> float:
    """Seconds of fetching objects of so many bytes."""
    free = [0.0] * readers
    arrived = 0.0
    for size in objects:
        asked = heapq.heappop(free)
        arrived = max(asked + store.latency, arrived) + size / store.bandwidth
        heapq.heappush(free, arrived)
    return max(free)
