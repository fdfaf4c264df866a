# expect: this is in years
# fails: mtbf, chance
def job_life(parts: list[tuple[int, float]], hours: float) -> tuple[float, float]:
    """Mean hours between failures of the job, and the chance of so many hours without one."""
    rate = sum(count / (years) for count, years in parts)
    return 1 / rate, math.exp(-rate * hours)
