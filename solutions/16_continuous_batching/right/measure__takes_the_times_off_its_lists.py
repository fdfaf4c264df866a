def measure(served: list[tuple[float, list[float]]], ttft_limit: float, tpot_limit: float) -> dict[str, float]:
    """What users notice of a service, in seconds and requests per second."""
    begin, end = min(arrival for arrival, _ in served), max(times[-1] for _, times in served)
    firsts, gaps, means, good, inside = [], [], [], 0, 0.0
    while served:
        arrival, times = served.pop()
        inside += times[-1] - arrival
        before = times.pop(0)
        firsts.append(before - arrival)
        own = []
        while times:
            own.append(times[0] - before)
            before = times.pop(0)
        gaps += own
        if own:
            means.append(np.mean(own))
        good += firsts[-1] <= ttft_limit and (not own or means[-1] <= tpot_limit)
    return {
        "ttft": np.median(firsts),
        "itl": np.percentile(gaps, 99) if gaps else 0.0,
        "tpot": np.median(means) if means else 0.0,
        "in_system": inside / (end - begin),
        "goodput": good / (end - begin),
    }
