# expect: which is right for short times only
# fails: chance
def job_life(parts: list[tuple[int, float]], hours: float) -> tuple[float, float]:
    """Mean hours between failures of the job, and the chance of so many hours without one."""
    rate = sum(count / (years * 8760) for count, years in parts)
    return 1 / rate, 1 - rate * hours
