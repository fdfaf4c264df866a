def throughput(bytes_moved: list[float], seconds: list[float], warmup: int) -> float:
    """Sustained bytes per second of all runs except the first `warmup`."""
    if len(seconds) != len(bytes_moved):
        raise ValueError(f"seconds: {len(seconds)}, bytes_moved: {len(bytes_moved)}")
    bad = [place for place in range(len(seconds)) if not seconds[place] > 0]
    if bad:
        raise ValueError(" and ".join(f"seconds[{place}]" for place in bad))
    if len(seconds) - warmup < 1:
        raise ValueError(f"no run left with warmup = {warmup}")
    rates = [moved / elapsed for moved, elapsed in zip(bytes_moved, seconds, strict=True)][warmup:]
    return statistics.harmonic_mean(rates, weights=bytes_moved[warmup:])
