# expect: saxpy_bytes(
# caught: hidden
def saxpy_bytes(n: int, element_bytes: int) -> int:
    """Bytes that y ← a·x + y reads and writes."""
    return int(np.float32(3) * np.float32(n) * np.float32(element_bytes))
