def step_seconds(chunks: list[tuple[int, int]], model: Model, device: Device) -> float:
    """The longer of bytes over bandwidth and FLOPs over peak."""
    moved, flops = 0.0, 0.0
    each_key = 4 * model.layers * model.kv_width
    if chunks:
        moved = 2 * model.parameters
    while chunks:
        start, count = chunks.pop()
        moved += (start + 2 * count) * each_key
        for place in range(start, start + count):
            flops += 2 * model.parameters + 4 * model.layers * model.width * (place + 1)
    return max(moved / device.bandwidth, flops / device.peak)
