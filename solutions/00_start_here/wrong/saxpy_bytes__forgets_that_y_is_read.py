# expect: list every access in the loop's body
def saxpy_bytes(n: int, element_bytes: int) -> int:
    """Bytes that y ← a·x + y reads and writes."""
    return 2 * n * element_bytes
