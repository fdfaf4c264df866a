from collections import deque


def epoch_seconds(objects: list, store: Store, readers: int) -> float:
    """Seconds of fetching objects of so many bytes."""
    free, link = deque([0] * readers), 0
    for size in objects:
        first_byte = free.popleft() + store.latency
        if first_byte < link:
            first_byte = link
        link = first_byte + size / store.bandwidth
        free.append(link)
    return float(link)
