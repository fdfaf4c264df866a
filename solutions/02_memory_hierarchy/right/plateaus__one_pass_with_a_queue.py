def plateaus(sizes: list[int], nanoseconds: list[float]) -> list[Plateau]:
    """The levels of a memory hierarchy, from the smallest working set to the largest."""
    found, run = [], []

    def close():
        latencies = [each for _, each in run]
        found.append(Plateau(float(np.median(latencies)), run[-1][0]))
        run.clear()

    for pair in zip(sizes, nanoseconds, strict=True):
        while run and max(each for _, each in [*run, pair]) > 1.25 * min(each for _, each in [*run, pair]):
            if len(run) >= 3:
                close()
            else:
                run.pop(0)
        run.append(pair)
    if len(run) >= 3:
        close()
    return found
