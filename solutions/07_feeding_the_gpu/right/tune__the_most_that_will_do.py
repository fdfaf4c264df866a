def tune(loop: Loop) -> Settings:
    """The largest memory of all settings that are fast enough and small enough."""
    slowest, found = 1.1 * seconds_per_sample(loop, Settings(16, 48)), []
    for workers in range(1, 17):
        if seconds_per_sample(loop, Settings(workers, 48)) <= slowest:
            low, high = 0, 48
            while low < high:
                middle = (low + high) // 2
                fast = seconds_per_sample(loop, Settings(workers, middle)) <= slowest
                low, high = (low, middle) if fast else (middle + 1, high)
            found += [Settings(workers, ahead) for ahead in range(low, 49)]
    most = 1.5 * min(memory_bytes(loop, settings) for settings in found)
    return max(
        (settings for settings in found if memory_bytes(loop, settings) <= most),
        key=lambda settings: memory_bytes(loop, settings),
    )
