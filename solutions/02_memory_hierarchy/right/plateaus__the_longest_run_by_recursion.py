def plateaus(sizes: list[int], nanoseconds: list[float]) -> list[Plateau]:
    """The levels of a memory hierarchy, from the smallest working set to the largest."""
    if len(sizes) < 3:
        return []
    fits = [n for n in range(1, len(sizes) + 1) if max(nanoseconds[:n]) <= 1.25 * min(nanoseconds[:n])]
    longest = fits[-1]
    if longest < 3:
        return plateaus(sizes[1:], nanoseconds[1:])
    own = Plateau(latency_ns=float(np.median(nanoseconds[:longest])), fits_bytes=sizes[longest - 1])
    return [own, *plateaus(sizes[longest:], nanoseconds[longest:])]
