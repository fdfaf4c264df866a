# expect: fits_bytes of the plateaus
# fails: runs, latency
def plateaus(sizes: list[int], nanoseconds: list[float]) -> list[Plateau]:
    """The levels of a memory hierarchy, from the smallest working set to the largest."""
    found, first = [], 0
    while first < len(sizes):
        end = first + 1
        while (
            end < len(sizes)
            and end - first < 3
            and max(nanoseconds[first : end + 1]) <= 1.25 * min(nanoseconds[first : end + 1])
        ):
            end += 1
        if end - first >= 3:
            found.append(Plateau(float(np.median(nanoseconds[first:end])), sizes[end - 1]))
            first = end
        else:
            first += 1
    return found
