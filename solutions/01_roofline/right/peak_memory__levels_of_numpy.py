def peak_memory(profile):
    levels = np.cumsum([0] + [a.bytes for a in profile.allocations])
    first = int(np.argmax(levels))
    if levels[first] <= 0:
        return 0, ""
    moment = profile.allocations[first - 1].time_us
    name = ""
    for event in profile.events:
        if event.start_us <= moment and event.bytes:
            name = event.name
    return int(levels[first]), name
