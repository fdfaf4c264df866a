# expect: expected   ValueError with
# fails: errors
def throughput(bytes_moved: list[float], seconds: list[float], warmup: int) -> float:
    """Sustained bytes per second of all runs except the first `warmup`."""
    for i, elapsed in enumerate(seconds):
        if elapsed <= 0:
            raise ValueError(f"seconds[{i}] = {elapsed:g}: expected a positive time")
    if warmup >= len(seconds):
        raise ValueError(f"warmup = {warmup} of {len(seconds)} runs: none is left to time")
    runs = list(zip(bytes_moved, seconds, strict=False))[warmup:]
    return sum(moved for moved, _ in runs) / sum(elapsed for _, elapsed in runs)
