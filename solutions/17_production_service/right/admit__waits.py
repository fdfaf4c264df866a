def admit(load: Load, deadline: float, bucket_wait: float) -> tuple[int, int | None]:
    if bucket_wait > 0:
        return 429, int(-(-bucket_wait // 1))
    idle = load.running < load.seats and not load.queued
    place = load.queued < load.places
    wait = (load.queued + 1) / load.per_second if load.per_second else 0.0
    if idle or (place and wait <= deadline):
        return 200, None
    if not load.per_second:
        return 503, 1
    for_a_place = load.queued - load.places + 1
    in_time = load.queued + 1 - int(deadline * load.per_second)
    needed = min(load.queued + 1, max(for_a_place, in_time))
    return 503, max(1, math.ceil(needed / load.per_second))
