# expect: saxpy_bytes(1000, 4)
def saxpy_bytes(n: int, element_bytes: int) -> int:
    """Bytes that y ← a·x + y reads and writes."""
    return 3 * n * element_bytes + element_bytes
