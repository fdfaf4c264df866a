def break_even(
    purchase: float, years: float, upkeep: float, idle_kw: float, busy_kw: float, per_kwh: float, rent: float
) -> float:
    """The utilisation above which owning is cheaper than renting."""
    if math.isnan(years) or years <= 0:
        raise ValueError(f"years = {years}")
    life = 8760 * years
    owned = purchase + upkeep * years + life * per_kwh * idle_kw
    work = rent - per_kwh * (busy_kw - idle_kw)
    return owned / (life * work) if work > 0 else np.inf
