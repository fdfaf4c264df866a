# expect: peak in bytes of an allocation of −8 bytes
def peak_memory(profile: Profile) -> tuple[int, str]:
    """The most bytes that are held at one time, and the last operator that began its work by then."""
    held, peak, moment = 0, -(10**18), -math.inf
    for allocation in profile.allocations:
        held += allocation.bytes
        if held > peak:
            peak, moment = held, allocation.time_us
    started = [event.name for event in profile.events if event.bytes > 0 and event.start_us <= moment]
    return peak, started[-1] if started else ""
