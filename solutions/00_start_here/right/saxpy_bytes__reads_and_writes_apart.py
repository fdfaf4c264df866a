def saxpy_bytes(n: int, element_bytes: int) -> int:
    """Bytes that y ← a·x + y reads and writes."""
    vector = n * element_bytes
    read = vector + vector
    written = vector
    return read + written
