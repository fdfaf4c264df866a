# expect: assign_buckets([4, 4, 2, 6, 1], 6, 2)
# fails: values
def assign_buckets(sizes: list[int], bucket_bytes: int, first_bytes: int) -> list[list[int]]:
    """Indices of the gradients in each bucket, in the order in which backward fills them."""
    for name, limit in (("bucket_bytes", bucket_bytes), ("first_bytes", first_bytes)):
        if limit <= 0:
            raise ValueError(f"{name} = {limit}: expected more than 0")

    buckets, current, held = [], [], 0
    for index in reversed(range(len(sizes))):
        current.append(index)
        held += sizes[index]
        if held >= first_bytes:
            buckets.append(current)
            current, held = [], 0
    return [*buckets, current] if current else buckets
