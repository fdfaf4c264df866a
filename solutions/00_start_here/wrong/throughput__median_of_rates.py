# expect: throughput([24000000.0
# fails: values
def throughput(bytes_moved: list[float], seconds: list[float], warmup: int) -> float:
    """Sustained bytes per second of all runs except the first `warmup`."""
    if len(bytes_moved) != len(seconds):
        lengths = f"{len(bytes_moved)} and {len(seconds)} long"
        raise ValueError(f"bytes_moved and seconds are {lengths}: expected one of each per run")
    for i, elapsed in enumerate(seconds):
        if elapsed <= 0:
            raise ValueError(f"seconds[{i}] = {elapsed:g}: expected a positive time")
    if warmup >= len(seconds):
        raise ValueError(f"warmup = {warmup} of {len(seconds)} runs: none is left to time")
    rates = [moved / elapsed for moved, elapsed in zip(bytes_moved[warmup:], seconds[warmup:], strict=True)]
    return statistics.median(rates)
