# expect: the busy time is device_us
# fails: times, order
def costliest(profile: Profile) -> list[Cost]:
    """The three operators that worked longest, the costliest first."""
    own = [event.cpu_us for event in profile.events]
    for event in profile.events:
        if event.parent >= 0:
            own[event.parent] -= event.cpu_us
    totals = {}
    for event, busy in zip(profile.events, own, strict=True):
        calls, busy_us, flops, moved = totals.get(event.name, (0, 0.0, 0, 0))
        totals[event.name] = (calls + 1, busy_us + busy, flops + event.flops, moved + event.bytes)
    costs = [Cost(name, *total) for name, total in totals.items()]
    return sorted(costs, key=lambda cost: (-cost.busy_us, cost.name))[:3]
