# expect: saxpy_bytes(0, 4)
def saxpy_bytes(n: int, element_bytes: int) -> int:
    """Bytes that y ← a·x + y reads and writes."""
    return 3 * max(n, 1) * element_bytes
