def measure(served: list[tuple[float, list[float]]], ttft_limit: float, tpot_limit: float) -> dict[str, float]:
    """What users notice of a service, in seconds and requests per second."""

    def percentile(values, share):
        if not values:
            return 0.0
        values = sorted(values)
        place = share * (len(values) - 1)
        low = int(place)
        high = min(low + 1, len(values) - 1)
        return values[low] + (place - low) * (values[high] - values[low])

    ttfts, gaps, means, good, area = [], [], [], 0, 0.0
    for arrival, times in served:
        ttfts.append(times[0] - arrival)
        own = [after - before for before, after in zip(times, times[1:], strict=False)]
        gaps.extend(own)
        tpot = 0.0
        if own:
            tpot = (times[-1] - times[0]) / len(own)
            means.append(tpot)
        good += ttfts[-1] <= ttft_limit and tpot <= tpot_limit
        area += times[-1] - arrival
    span = max(times[-1] for _, times in served) - min(served)[0]
    return {
        "ttft": percentile(ttfts, 0.5),
        "itl": percentile(gaps, 0.99),
        "tpot": percentile(means, 0.5),
        "in_system": area / span,
        "goodput": good / span,
    }
