# expect: call_seconds(8000000.0, 0.0003, 16000000000.0)
def call_seconds(bytes_moved: float, overhead: float, bandwidth: float) -> float:
    """Seconds of one call that moves these bytes."""
    return overhead + bytes_moved * bandwidth
