import heapq


def costliest(profile):
    times = np.array([e.cpu_us if profile.device == "cpu" else e.device_us for e in profile.events], dtype=float)
    if profile.device == "cpu":
        parents = np.array([e.parent for e in profile.events], dtype=int)
        called = parents >= 0
        np.subtract.at(times, parents[called], np.array([e.cpu_us for e in profile.events])[called])
    names = sorted({e.name for e in profile.events})
    costs = []
    for name in names:
        rows = [i for i, e in enumerate(profile.events) if e.name == name]
        costs.append(
            Cost(
                name=name,
                calls=len(rows),
                busy_us=float(np.cumsum(times[rows])[-1]),
                flops=sum(profile.events[i].flops for i in rows),
                bytes=sum(profile.events[i].bytes for i in rows),
            )
        )
    return heapq.nsmallest(3, costs, key=lambda c: (-c.busy_us, c.name))
