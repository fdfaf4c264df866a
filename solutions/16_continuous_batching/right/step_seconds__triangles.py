def step_seconds(chunks: list[tuple[int, int]], model: Model, device: Device) -> float:
    """The longer of bytes over bandwidth and FLOPs over peak."""

    def triangle(n):
        return n * (n + 1) // 2

    seen = [(start + count, triangle(start + count) - triangle(start), count) for start, count in chunks]
    keys, pairs, tokens = (sum(column) for column in zip(*seen, strict=True)) if seen else (0, 0, 0)
    seconds_of_bytes = (model.parameters + (keys + tokens) * 2 * model.layers * model.kv_width) * 2 / device.bandwidth
    seconds_of_flops = (model.parameters * tokens + 2 * model.layers * model.width * pairs) * 2 / device.peak
    return max(seconds_of_bytes, seconds_of_flops) if chunks else 0.0
