def throughput(bytes_moved: list[float], seconds: list[float], warmup: int) -> float:
    """Sustained bytes per second of all runs except the first `warmup`."""
    if len(bytes_moved) != len(seconds):
        lengths = f"{len(bytes_moved)} and {len(seconds)} long"
        raise ValueError(f"bytes_moved and seconds are {lengths}: expected one of each per run")
    area = width = 0.0
    for i, (moved, elapsed) in enumerate(zip(bytes_moved, seconds, strict=True)):
        if elapsed <= 0:
            raise ValueError(f"seconds[{i}] = {elapsed}")
        if i >= warmup:
            area, width = area + moved, width + elapsed
    if width == 0:
        raise ValueError(f"warmup = {warmup}, and there are {len(seconds)} runs")
    return area / width
