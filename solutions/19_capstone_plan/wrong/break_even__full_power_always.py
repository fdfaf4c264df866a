# expect: this has full power in every hour, working or not
# fails: values, edges
def break_even(
    purchase: float, years: float, upkeep: float, idle_kw: float, busy_kw: float, per_kwh: float, rent: float
) -> float:
    """The utilisation above which owning is cheaper than renting."""
    if not years > 0:
        raise ValueError(f"years = {years}: expected more than 0")
    fixed = (purchase / years + upkeep) / 8760 + per_kwh * busy_kw
    saved = rent
    return fixed / saved if saved > 0 else math.inf
