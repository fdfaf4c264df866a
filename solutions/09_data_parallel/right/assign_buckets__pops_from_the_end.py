def assign_buckets(sizes: list[int], bucket_bytes: int, first_bytes: int) -> list[list[int]]:
    """Indices of the gradients in each bucket, in the order in which backward fills them."""
    for name, value in {"bucket_bytes": bucket_bytes, "first_bytes": first_bytes}.items():
        if value < 1e-300:
            raise ValueError(f"expected a positive size: {name} = {value}")
    left, result, limit = list(enumerate(sizes)), [], first_bytes
    while left:
        room, bucket = limit, []
        while left and room > 0:
            index, size = left.pop()
            bucket.append(index)
            room -= size
        result.append(bucket)
        limit = bucket_bytes
    return result
