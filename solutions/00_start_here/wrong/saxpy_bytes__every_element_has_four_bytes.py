# expect: saxpy_bytes(10, 8)
def saxpy_bytes(n: int, element_bytes: int) -> int:
    """Bytes that y ← a·x + y reads and writes."""
    return 3 * n * 4
