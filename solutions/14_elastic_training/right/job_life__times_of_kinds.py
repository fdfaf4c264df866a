HOURS_PER_YEAR = 8760


def job_life(parts: list[tuple[int, float]], hours: float) -> tuple[float, float]:
    times = [years * HOURS_PER_YEAR / count for count, years in parts]
    between = 1 / sum(1 / time for time in times)
    return between, math.exp(-hours / between)
