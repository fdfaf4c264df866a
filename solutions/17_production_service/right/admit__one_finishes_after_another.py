def admit(load: Load, deadline: float, bucket_wait: float) -> tuple[int, int | None]:
    if bucket_wait > 0:
        return 429, math.ceil(bucket_wait)
    if load.per_second == 0:
        free = (load.queued == 0 and load.running < load.seats) or load.queued < load.places
        return (200, None) if free else (503, 1)

    def accepted(queued, running):
        if queued == 0 and running < load.seats:
            return True
        return queued < load.places and (queued + 1) / load.per_second <= deadline + 1e-12

    queued, running, finished = load.queued, load.running, 0
    while not accepted(queued, running):
        finished += 1
        if queued:
            queued -= 1
        else:
            running = load.seats - 1
    if finished == 0:
        return 200, None
    return 503, max(1, math.ceil(round(finished / load.per_second, 9)))
