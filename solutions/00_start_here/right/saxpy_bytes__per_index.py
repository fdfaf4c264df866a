def saxpy_bytes(n: int, element_bytes: int) -> int:
    """Bytes that y ← a·x + y reads and writes."""
    per_index = sum(element_bytes for _ in ("read x[i]", "read y[i]", "write y[i]"))
    return per_index * n
