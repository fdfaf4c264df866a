def assign_buckets(sizes: list[int], bucket_bytes: int, first_bytes: int) -> list[list[int]]:
    """Indices of the gradients in each bucket, in the order in which backward fills them."""
    from bisect import bisect_left
    from itertools import accumulate as running

    for name, limit in (("bucket_bytes", bucket_bytes), ("first_bytes", first_bytes)):
        if limit <= 0:
            raise ValueError(f"{name} = {limit}")
    order = list(range(len(sizes)))[::-1]
    sums = list(running((sizes[i] for i in order), initial=0))
    cuts = [0]
    while cuts[-1] < len(order):
        limit = bucket_bytes if len(cuts) > 1 else first_bytes
        cuts.append(min(len(order), bisect_left(sums, sums[cuts[-1]] + limit)))
    return [order[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
