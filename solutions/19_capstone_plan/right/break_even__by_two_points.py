def break_even(
    purchase: float, years: float, upkeep: float, idle_kw: float, busy_kw: float, per_kwh: float, rent: float
) -> float:
    """The utilisation above which owning is cheaper than renting."""
    if not years > 0:
        raise ValueError(f"years = {years} must be positive")

    def gain(share):
        owned = (purchase / years + upkeep) / (365 * 24) + per_kwh * (idle_kw + share * (busy_kw - idle_kw))
        return share * rent - owned

    slope = gain(1) - gain(0)
    return -gain(0) / slope if rent > per_kwh * (busy_kw - idle_kw) else float("inf")
