def assign_buckets(sizes: list[int], bucket_bytes: int, first_bytes: int) -> list[list[int]]:
    """Indices of the gradients in each bucket, in the order in which backward fills them."""
    for name, limit in (("bucket_bytes", bucket_bytes), ("first_bytes", first_bytes)):
        if not limit > 0:
            raise ValueError(f"{name} = {limit}")

    def cut(indices, limit):
        for end in range(1, len(indices) + 1):
            if sum(sizes[i] for i in indices[:end]) >= limit:
                return [indices[:end], *cut(indices[end:], bucket_bytes)]
        return [indices] if indices else []

    return cut(list(range(len(sizes) - 1, -1, -1)), first_bytes)
