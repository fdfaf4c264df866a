# expect: each has several bytes
def saxpy_bytes(n: int, element_bytes: int) -> int:
    """Bytes that y ← a·x + y reads and writes."""
    return 3 * n
