def step_seconds(chunks: list[tuple[int, int]], model: Model, device: Device) -> float:
    """The longer of bytes over bandwidth and FLOPs over peak."""
    table = np.array(chunks, dtype=np.float64).reshape(-1, 2)
    start, count = table.T
    of_token = 2 * 2 * model.layers * model.kv_width
    moved = bool(len(table)) * 2 * model.parameters + of_token * (start + count).sum() + of_token * count.sum()
    pairs = (count * (2 * start + count + 1)).sum() / 2
    flops = 2 * model.parameters * count.sum() + 4 * model.layers * model.width * pairs
    return float(max(moved / device.bandwidth, flops / device.peak))
