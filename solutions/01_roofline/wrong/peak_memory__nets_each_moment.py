# expect: one at a time
def peak_memory(profile: Profile) -> tuple[int, str]:
    """The most bytes that are held at one time, and the last operator that began its work by then."""
    held, peak, moment = 0, 0, -math.inf
    for when in sorted({allocation.time_us for allocation in profile.allocations}):
        held += sum(allocation.bytes for allocation in profile.allocations if allocation.time_us == when)
        if held > peak:
            peak, moment = held, when
    started = [event.name for event in profile.events if event.bytes > 0 and event.start_us <= moment]
    return peak, started[-1] if started else ""
