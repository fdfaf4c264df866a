# expect: all 20 places are taken
# fails: status, retry
def admit(load: Load, deadline: float, bucket_wait: float) -> tuple[int, int | None]:
    """The status of the answer, and its Retry-After in whole seconds."""
    if bucket_wait > 0:
        return 429, math.ceil(bucket_wait)
    if load.running < load.seats and load.queued == 0:
        return 200, None
    if load.per_second == 0:
        return (200, None) if load.queued < load.places else (503, 1)
    in_time = math.floor(deadline * load.per_second + 1e-9) - 1  # that many may wait before it
    most = max(-1, in_time)
    if load.queued <= most:
        return 200, None
    return 503, max(1, math.ceil((load.queued - most) / load.per_second - 1e-9))
