def assign_buckets(sizes: list[int], bucket_bytes: int, first_bytes: int) -> list[list[int]]:
    """Indices of the gradients in each bucket, in the order in which backward fills them."""
    if bucket_bytes <= 0:
        raise ValueError(f"bucket_bytes = {bucket_bytes}: must be positive")
    if first_bytes <= 0:
        raise ValueError(f"first_bytes = {first_bytes}: must be positive")
    buckets = [[]]
    for index in range(len(sizes))[::-1]:
        limit = first_bytes if len(buckets) == 1 else bucket_bytes
        buckets[-1].append(index)
        if sum(sizes[i] for i in buckets[-1]) >= limit:
            buckets.append([])
    return [bucket for bucket in buckets if bucket]
