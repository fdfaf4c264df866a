def costliest(profile: Profile) -> list[Cost]:
    open_calls, own = [], {}
    for index, event in enumerate(profile.events):
        while open_calls and open_calls[-1] != event.parent:
            open_calls.pop()
        if open_calls:
            own[open_calls[-1]] -= event.cpu_us
        own[index] = event.cpu_us
        open_calls.append(index)
    totals = {event.name: [0, 0.0, 0, 0] for event in profile.events}
    for index, event in enumerate(profile.events):
        row = totals[event.name]
        row[0] += 1
        row[1] += own[index] if profile.device == "cpu" else event.device_us
        row[2] += event.flops
        row[3] += event.bytes
    order = []
    while totals and len(order) < 3:
        best = min(totals, key=lambda name: (-totals[name][1], name))
        order.append(Cost(best, *totals.pop(best)))
    return order
