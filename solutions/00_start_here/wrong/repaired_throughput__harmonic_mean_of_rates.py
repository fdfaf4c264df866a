# expect: total over total
def throughput(bytes_moved: list[float], seconds: list[float], warmup: int) -> float:
    """Sustained bytes per second of all runs except the first `warmup`."""
    if len(bytes_moved) != len(seconds):
        raise ValueError(
            f"bytes_moved has {len(bytes_moved)} runs and seconds has {len(seconds)}: expected one of each a run"
        )
    for i, elapsed in enumerate(seconds):
        if elapsed <= 0:
            raise ValueError(
                f"seconds[{i}] = {elapsed:g}: a run takes more than no time; look at the clock's resolution"
            )
    if warmup >= len(seconds):
        raise ValueError(f"warmup = {warmup} of {len(seconds)} runs: nothing is left to time; run more often")
    rates = [moved / elapsed for moved, elapsed in zip(bytes_moved[warmup:], seconds[warmup:], strict=True)]
    return len(rates) / sum(1 / rate for rate in rates)
