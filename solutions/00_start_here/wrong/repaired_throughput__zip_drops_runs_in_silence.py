# expect: expected   ValueError
def throughput(bytes_moved: list[float], seconds: list[float], warmup: int) -> float:
    """Sustained bytes per second of all runs except the first `warmup`."""
    for i, elapsed in enumerate(seconds):
        if elapsed <= 0:
            raise ValueError(
                f"seconds[{i}] = {elapsed:g}: a run takes more than no time; look at the clock's resolution"
            )
    if warmup >= len(seconds):
        raise ValueError(f"warmup = {warmup} of {len(seconds)} runs: nothing is left to time; run more often")
    runs = list(zip(bytes_moved, seconds, strict=False))[warmup:]
    return sum(moved for moved, _ in runs) / sum(elapsed for _, elapsed in runs)
