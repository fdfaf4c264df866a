# expect: the chance of a single GPU
# fails: chance
def job_life(parts: list[tuple[int, float]], hours: float) -> tuple[float, float]:
    """Mean hours between failures of the job, and the chance of so many hours without one."""
    rate = sum(count / (years * 8760) for count, years in parts)
    return 1 / rate, math.exp(-hours / parts[0][1] / 8760)
