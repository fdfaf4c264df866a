def tune(loop: Loop) -> Settings:
    """Enough workers and samples in advance, and not many more."""
    workers, ahead = 16, 48
    limit = seconds_per_sample(loop, Settings(workers, ahead)) * 1.09
    while ahead > 0 and seconds_per_sample(loop, Settings(workers, ahead - 1)) <= limit:
        ahead -= 1
    while workers > 1 and seconds_per_sample(loop, Settings(workers - 1, ahead)) <= limit:
        workers -= 1
    return Settings(workers, ahead)
