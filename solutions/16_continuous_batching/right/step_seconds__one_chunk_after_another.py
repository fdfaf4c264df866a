def step_seconds(chunks: list[tuple[int, int]], model: Model, device: Device) -> float:
    """The longer of bytes over bandwidth and FLOPs over peak."""
    moved = flops = 0.0
    for start, count in chunks:
        for position in range(start, start + count):
            flops += 2 * model.parameters + 4 * model.layers * model.width * (position + 1)
        moved += (start + 2 * count) * 2 * 2 * model.layers * model.kv_width
    if chunks:
        moved += 2 * model.parameters
    return max(moved / device.bandwidth, flops / device.peak)
