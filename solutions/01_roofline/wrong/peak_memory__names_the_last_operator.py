# expect: no operator has done work by then
def peak_memory(profile: Profile) -> tuple[int, str]:
    """The most bytes that are held at one time, and the last operator that began its work by then."""
    held, peak, moment = 0, 0, -math.inf
    for allocation in profile.allocations:
        held += allocation.bytes
        if held > peak:
            peak, moment = held, allocation.time_us
    working = [event for event in profile.events if event.bytes > 0]
    started = [event.name for event in working if event.start_us <= moment] or working
    return peak, started[-1] if peak else ""
