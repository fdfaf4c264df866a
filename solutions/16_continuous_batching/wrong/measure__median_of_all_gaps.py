# expect: take each request's mean gap first
# fails: latencies
def measure(served: list[tuple[float, list[float]]], ttft_limit: float, tpot_limit: float) -> dict[str, float]:
    """What users notice of a service, in seconds and requests per second."""
    first = [times[0] - arrival for arrival, times in served]
    gaps = [np.diff(times) for _, times in served]
    every = np.concatenate(gaps)
    mean_gaps = [each.mean() for each in gaps if len(each)]
    good = sum(
        ttft <= ttft_limit and (len(each) == 0 or each.mean() <= tpot_limit)
        for ttft, each in zip(first, gaps, strict=True)
    )
    seconds = max(times[-1] for _, times in served) - min(arrival for arrival, _ in served)
    return {
        "ttft": float(np.median(first)),
        "itl": float(np.percentile(every, 99)) if len(every) else 0.0,
        "tpot": float(np.median(every)) if len(every) else 0.0,
        "in_system": sum(times[-1] - arrival for arrival, times in served) / seconds,
        "goodput": good / seconds,
    }
