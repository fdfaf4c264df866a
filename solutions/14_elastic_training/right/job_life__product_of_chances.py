def job_life(parts: list[tuple[int, float]], hours: float) -> tuple[float, float]:
    chance = math.prod(math.exp(-hours / (years * 8760)) ** count for count, years in parts)
    per_year = sum(count / years for count, years in parts)
    return 8760 / per_year, chance
