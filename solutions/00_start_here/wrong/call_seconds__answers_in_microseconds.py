# expect: that is in microseconds
def call_seconds(bytes_moved: float, overhead: float, bandwidth: float) -> float:
    """Seconds of one call that moves these bytes."""
    return 1e6 * (overhead + bytes_moved / bandwidth)
