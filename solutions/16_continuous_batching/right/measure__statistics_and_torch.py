def measure(served: list[tuple[float, list[float]]], ttft_limit: float, tpot_limit: float) -> dict[str, float]:
    """What users notice of a service, in seconds and requests per second."""
    import statistics

    import torch

    arrivals_ = torch.tensor([at for at, _ in served], dtype=torch.float64)
    firsts = torch.tensor([times[0] for _, times in served], dtype=torch.float64)
    lasts = torch.tensor([times[-1] for _, times in served], dtype=torch.float64)
    counts = torch.tensor([len(times) for _, times in served])
    mean = (lasts - firsts) / (counts - 1).clamp(min=1)
    gaps = [torch.tensor(times, dtype=torch.float64).diff() for _, times in served]
    gaps = torch.cat(gaps)
    seconds = (lasts.max() - arrivals_.min()).item()
    means = mean[counts > 1].tolist()
    return {
        "ttft": statistics.median((firsts - arrivals_).tolist()),
        "itl": gaps.quantile(0.99).item() if len(gaps) else 0.0,
        "tpot": statistics.median(means) if means else 0.0,
        "in_system": (lasts - arrivals_).sum().item() / seconds,
        "goodput": ((firsts - arrivals_ <= ttft_limit) & (mean <= tpot_limit)).sum().item() / seconds,
    }
