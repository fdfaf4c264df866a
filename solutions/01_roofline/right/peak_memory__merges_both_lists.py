def peak_memory(profile):
    moments = [(e.start_us, 0, e.name, 0) for e in profile.events if e.bytes > 0]
    moments += [(a.time_us, 1, "", a.bytes) for a in profile.allocations]
    held, running, best = 0, "", [0, ""]
    for _, kind, name, size in sorted(moments, key=lambda m: m[:2]):
        if kind == 0:
            running = name
        held += size
        if held > best[0]:
            best = [held, running]
    return best
