def admit(load: Load, deadline: float, bucket_wait: float) -> tuple[int, int | None]:
    if bucket_wait > 0:
        return 429, math.ceil(bucket_wait)
    if load.queued == 0 and load.seats > load.running:
        return 200, None
    if not load.per_second:
        return (503, 1) if load.queued >= load.places else (200, None)
    good = [q for q in range(load.queued + 1) if q < load.places and (q + 1) <= deadline * load.per_second]
    wait = (load.queued - max(good, default=-1)) / load.per_second
    return (503, max(1, math.ceil(wait))) if wait else (200, None)
