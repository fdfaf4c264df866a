def job_life(parts: list[tuple[int, float]], hours: float) -> tuple[float, float]:
    counts, years = torch.tensor(parts, dtype=torch.float64).T
    rate = (counts / years).sum() / 8760
    return (1 / rate).item(), torch.exp(-rate * hours).item()
