def tune(loop: Loop) -> Settings:
    """Enough workers and samples in advance, and not many more."""
    slowest = 1.1 * seconds_per_sample(loop, Settings(16, 48))
    found = []
    for workers in range(1, 17):
        for ahead in range(max(workers - 2, 0), workers + 3):
            if seconds_per_sample(loop, Settings(workers, ahead)) <= slowest:
                found.append(Settings(workers, ahead))
                break
    return min(found, key=lambda settings: memory_bytes(loop, settings))
