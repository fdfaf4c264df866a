# expect: utilisation for purchase 5000
# fails: values
def break_even(
    purchase: float, years: float, upkeep: float, idle_kw: float, busy_kw: float, per_kwh: float, rent: float
) -> float:
    """The utilisation above which owning is cheaper than renting."""
    if not years > 0:
        raise ValueError(f"years = {years}: expected more than 0")
    fixed = (purchase / years + upkeep) / 8760 + per_kwh * idle_kw
    margin = rent - per_kwh * (busy_kw - idle_kw)
    return fixed / margin if rent > per_kwh * busy_kw else math.inf
