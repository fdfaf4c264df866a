# expect: take the longer of the two sums
# fails: decode, prompts
def step_seconds(chunks: list[tuple[int, int]], model: Model, device: Device) -> float:
    """The longer of bytes over bandwidth and FLOPs over peak."""
    seconds = 0.0
    for start, count in chunks:
        moved = 2 * model.parameters + (start + 2 * count) * 4 * model.layers * model.kv_width
        pairs = count * start + count * (count + 1) / 2
        flops = 2 * model.parameters * count + 4 * model.layers * model.width * pairs
        seconds += max(moved / device.bandwidth, flops / device.peak)
    return seconds
