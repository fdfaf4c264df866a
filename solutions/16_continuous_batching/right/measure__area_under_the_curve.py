def measure(served: list[tuple[float, list[float]]], ttft_limit: float, tpot_limit: float) -> dict[str, float]:
    """What users notice of a service, in seconds and requests per second."""
    changes = sorted([(at, 1) for at, _ in served] + [(times[-1], -1) for _, times in served])
    area, inside, before = 0.0, 0, changes[0][0]
    for moment, change in changes:
        area += inside * (moment - before)
        inside, before = inside + change, moment
    seconds = changes[-1][0] - changes[0][0]
    several = [times for _, times in served if len(times) > 1]
    gaps = [b - a for times in several for a, b in zip(times, times[1:], strict=False)]
    good = [
        1
        for at, times in served
        if times[0] - at <= ttft_limit and (len(times) == 1 or (times[-1] - times[0]) / (len(times) - 1) <= tpot_limit)
    ]
    return {
        "goodput": len(good) / seconds,
        "in_system": area / seconds,
        "itl": np.quantile(gaps, 0.99).item() if gaps else 0,
        "tpot": np.median([np.mean(np.diff(times)) for times in several]).item() if several else 0,
        "ttft": np.median([times[0] - at for at, times in served]).item(),
    }
