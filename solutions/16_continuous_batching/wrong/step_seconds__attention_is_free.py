# expect: attention is missing in the FLOPs
# fails: decode, prompts
def step_seconds(chunks: list[tuple[int, int]], model: Model, device: Device) -> float:
    """The longer of bytes over bandwidth and FLOPs over peak."""
    if not chunks:
        return 0.0
    tokens = sum(count for _, count in chunks)
    keys = sum(start + count for start, count in chunks)
    pairs = sum(count * start + count * (count + 1) / 2 for start, count in chunks)
    moved = 2 * model.parameters + (keys + tokens) * 4 * model.layers * model.kv_width
    flops = 2 * model.parameters * tokens
    return max(moved / device.bandwidth, flops / device.peak)
