# expect: `a` stays in a register
def saxpy_bytes(n: int, element_bytes: int) -> int:
    """Bytes that y ← a·x + y reads and writes."""
    return 4 * n * element_bytes
