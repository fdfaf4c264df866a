# expect: come one after the other
def call_seconds(bytes_moved: float, overhead: float, bandwidth: float) -> float:
    """Seconds of one call that moves these bytes."""
    return max(overhead, bytes_moved / bandwidth)
