from bisect import bisect_right
from itertools import accumulate


def peak_memory(profile: Profile) -> tuple[int, str]:
    levels = list(accumulate(a.bytes for a in profile.allocations))
    peak = max(levels, default=0)
    if peak <= 0:
        return (0, "")
    moment = profile.allocations[levels.index(peak)].time_us
    working = [e for e in profile.events if e.bytes > 0]
    at = bisect_right([e.start_us for e in working], moment)
    return (peak, working[at - 1].name if at else "")
