# expect: also if a seat is free
# fails: status
def admit(load: Load, deadline: float, bucket_wait: float) -> tuple[int, int | None]:
    if load.running < load.seats and load.queued == 0:
        return 200, None
    if load.per_second == 0:
        return (200, None) if load.queued < load.places else (503, 1)
    if bucket_wait > 0:
        return 429, math.ceil(bucket_wait)
    wait = (load.queued + 1) / load.per_second
    if load.queued < load.places and wait <= deadline:
        return 200, None
    q = min(load.places - 1, math.floor(deadline * load.per_second - 1))
    q = max(q, -1)
    return 503, max(1, math.ceil((load.queued - q) / load.per_second))
