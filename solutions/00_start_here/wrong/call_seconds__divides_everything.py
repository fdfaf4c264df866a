# expect: that is the transfer alone
def call_seconds(bytes_moved: float, overhead: float, bandwidth: float) -> float:
    """Seconds of one call that moves these bytes."""
    return (overhead + bytes_moved) / bandwidth
