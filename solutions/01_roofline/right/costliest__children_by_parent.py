from collections import defaultdict


def costliest(profile):
    children = defaultdict(float)
    for event in profile.events:
        children[event.parent] += event.cpu_us
    groups = defaultdict(list)
    for index, event in enumerate(profile.events):
        groups[event.name].append((event, event.cpu_us - children[index]))
    found = []
    for name in sorted(groups):
        busy = sum(e.device_us if profile.device == "cuda" else own for e, own in groups[name])
        found.append(
            Cost(
                name,
                len(groups[name]),
                busy,
                sum(e.flops for e, _ in groups[name]),
                sum(e.bytes for e, _ in groups[name]),
            )
        )
    found.sort(key=lambda cost: cost.busy_us, reverse=True)
    return found[:3]
