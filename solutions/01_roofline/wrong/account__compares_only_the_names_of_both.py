# expect: a name that is missing costs 0
# caught: hidden
def account(profile: Profile) -> Account:
    """The three costliest operators, what bounds each, and the peak of activation memory."""
    totals = totals_by_name(profile)
    ranked = sorted(totals, key=lambda name: (-totals[name]["cost"], name))
    costliest = []
    for name in ranked[:3]:
        total = totals[name]
        floors = {
            "compute": total["flops"] / profile.machine.peak_flops * 1e6,
            "memory": total["bytes"] / profile.machine.bandwidth * 1e6,
            "overhead": total["calls"] * profile.machine.launch_us,
        }
        costliest.append(Cost(name, total["calls"], total["cpu_us"], total["device_us"], max(floors, key=floors.get)))
    return Account(costliest, *peak_memory(profile))


def compare(eager: Profile, compiled: Profile) -> Comparison:
    """What compiling changed."""
    before, after = totals_by_name(eager), totals_by_name(compiled)
    saved = {
        name: before.get(name, {"cost": 0})["cost"] - after.get(name, {"cost": 0})["cost"]
        for name in before
        if name in after
    }
    return Comparison(
        speedup=eager.wall_us / compiled.wall_us,
        passes_saved=sum(e.bytes > 0 for e in eager.events) - sum(e.bytes > 0 for e in compiled.events),
        bytes_saved=sum(e.bytes for e in eager.events) - sum(e.bytes for e in compiled.events),
        peak_saved=peak_memory(eager)[0] - peak_memory(compiled)[0],
        largest_saving=min(saved, key=lambda name: (-saved[name], name)),
    )


def totals_by_name(profile: Profile) -> dict:
    own = [event.cpu_us for event in profile.events]
    for event in profile.events:
        if event.parent >= 0:
            own[event.parent] -= event.cpu_us
    totals = {}
    for event, own_us in zip(profile.events, own, strict=True):
        total = totals.setdefault(event.name, dict.fromkeys(("calls", "cpu_us", "device_us", "bytes", "flops"), 0))
        total["calls"] += 1
        total["cpu_us"] += own_us
        for field in ("device_us", "bytes", "flops"):
            total[field] += getattr(event, field)
    for total in totals.values():
        total["cost"] = total["device_us"] if profile.device == "cuda" else total["cpu_us"]
    return totals


def peak_memory(profile: Profile) -> tuple:
    held = peak = 0
    when = None
    for allocation in profile.allocations:
        held += allocation.bytes
        if held > peak:
            peak, when = held, allocation.time_us
    working = [event for event in profile.events if event.bytes > 0 and when is not None and event.start_us <= when]
    return peak, max(working, key=lambda event: event.start_us).name if working else ""
