def step_seconds(model: Served, device: Device, batch: int, context: int) -> float:
    tokens = batch * context
    cached = 2 * model.layers * model.kv_heads * model.head_dim * tokens
    read = model.weight_bytes * model.parameters + model.cache_bytes * cached
    arithmetic = 2 * model.parameters * batch + 4 * model.heads * model.head_dim * model.layers * tokens
    times = [read / device.bandwidth, arithmetic / device.flops]
    return sorted(times)[-1]


def largest_batch(model: Served, device: Device, context: int, limit: float) -> int:
    def possible(batch):
        held = model.weight_bytes * model.parameters
        held += 2 * model.layers * model.kv_heads * model.head_dim * model.cache_bytes * batch * context
        return held <= device.memory and step_seconds(model, device, batch, context) <= limit

    low, high = 0, 1
    while possible(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if possible(middle) else (low, middle)
    return low
