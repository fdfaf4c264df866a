def tune(loop: Loop) -> Settings:
    """Enough workers and samples in advance, and not many more."""
    most = 1.08 * seconds_per_sample(loop, Settings(16, 48))
    workers = 1
    while seconds_per_sample(loop, Settings(workers, 48)) > most:
        workers += 1
    ahead = 0
    while seconds_per_sample(loop, Settings(workers, ahead)) > most:
        ahead += 1
    return Settings(workers, ahead)
