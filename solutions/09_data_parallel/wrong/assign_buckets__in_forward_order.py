# expect: filled from the first parameter
# fails: values
def assign_buckets(sizes: list[int], bucket_bytes: int, first_bytes: int) -> list[list[int]]:
    """Indices of the gradients in each bucket, in the order in which backward fills them."""
    for name, limit in (("bucket_bytes", bucket_bytes), ("first_bytes", first_bytes)):
        if limit <= 0:
            raise ValueError(f"{name} = {limit}: expected more than 0")

    buckets, current, held, limit = [], [], 0, first_bytes
    for index in range(len(sizes)):
        current.append(index)
        held += sizes[index]
        if held >= limit:
            buckets.append(current)
            current, held, limit = [], 0, bucket_bytes
    return [*buckets, current] if current else buckets
