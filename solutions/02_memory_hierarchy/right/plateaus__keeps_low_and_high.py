def plateaus(sizes: list[int], nanoseconds: list[float]) -> list[Plateau]:
    """The levels of a memory hierarchy, from the smallest working set to the largest."""
    found, first = [], 0
    while first < len(sizes):
        low = high = nanoseconds[first]
        end = first + 1
        while end < len(sizes):
            low, high = min(low, nanoseconds[end]), max(high, nanoseconds[end])
            if high > 1.25 * low:
                break
            end += 1
        run = sorted(nanoseconds[first:end])
        if len(run) > 2:
            middle = len(run) // 2
            found.append(Plateau(run[middle] if len(run) % 2 else (run[middle - 1] + run[middle]) / 2, sizes[end - 1]))
        first = end if len(run) > 2 else first + 1
    return found
