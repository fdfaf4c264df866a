# expect: the first kind of part
# fails: mtbf, chance
def job_life(parts: list[tuple[int, float]], hours: float) -> tuple[float, float]:
    """Mean hours between failures of the job, and the chance of so many hours without one."""
    rate = parts[0][0] / (parts[0][1] * 8760)
    return 1 / rate, math.exp(-rate * hours)
