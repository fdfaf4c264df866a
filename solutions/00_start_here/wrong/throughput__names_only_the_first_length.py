# expect: a message that contains '7'
# fails: errors
def throughput(bytes_moved: list[float], seconds: list[float], warmup: int) -> float:
    """Sustained bytes per second of all runs except the first `warmup`."""
    if len(bytes_moved) != len(seconds):
        raise ValueError(f"bytes_moved has {len(bytes_moved)} entries: expected one for each run")
    for i, elapsed in enumerate(seconds):
        if elapsed <= 0:
            raise ValueError(f"seconds[{i}] = {elapsed:g}: expected a positive time")
    if warmup >= len(seconds):
        raise ValueError(f"warmup = {warmup} of {len(seconds)} runs: none is left to time")
    return sum(bytes_moved[warmup:]) / sum(seconds[warmup:])
