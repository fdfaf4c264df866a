# expect: call_seconds(
# caught: hidden
def call_seconds(bytes_moved: float, overhead: float, bandwidth: float) -> float:
    """Seconds of one call that moves these bytes."""
    return round(overhead + bytes_moved / bandwidth, 9)
