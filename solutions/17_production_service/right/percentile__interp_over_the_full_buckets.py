def percentile(replicas: list[dict[float, int]], q: float) -> float | None:
    bounds = sorted(replicas[0])
    for replica in replicas[1:]:
        if sorted(replica) != bounds:
            raise ValueError(f"{sorted(replica)} are not {bounds}")
    counts = [sum(column) for column in zip(*([replica[b] for b in bounds] for replica in replicas), strict=True)]
    if not counts[-1]:
        return None
    rank = counts[-1] * q / 100
    points = [(0.0, 0), *zip(bounds[:-1], counts[:-1], strict=True)]
    if rank > counts[-2]:
        return bounds[-2]
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        if y0 < rank <= y1:
            return x0 + (rank - y0) / (y1 - y0) * (x1 - x0)
    return None
