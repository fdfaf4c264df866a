def break_even(
    purchase: float, years: float, upkeep: float, idle_kw: float, busy_kw: float, per_kwh: float, rent: float
) -> float:
    """The utilisation above which owning is cheaper than renting."""
    if not years > 0:
        raise ValueError("years = " + str(years) + ", expected more than 0")
    hours = 24 * 365
    always = purchase / years + upkeep + hours * per_kwh * idle_kw
    per_share = hours * (rent - per_kwh * (busy_kw - idle_kw))
    if rent <= per_kwh * (busy_kw - idle_kw):
        return math.inf
    return always / per_share
