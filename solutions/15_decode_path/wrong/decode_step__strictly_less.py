# expect: four sequences
# fails: decision
def step_seconds(model: Served, device: Device, batch: int, context: int) -> float:
    """Seconds of a step, by the roofline."""
    cache = 2 * model.layers * model.kv_heads * model.head_dim * model.cache_bytes * context
    read = model.parameters * model.weight_bytes + batch * cache
    flops = batch * (2 * model.parameters + 4 * model.layers * model.heads * model.head_dim * context)
    return max(read / device.bandwidth, flops / device.flops)


def largest_batch(model: Served, device: Device, context: int, limit: float) -> int:
    """The largest batch that fits into memory and the time."""
    cache = 2 * model.layers * model.kv_heads * model.head_dim * model.cache_bytes * context
    batch = 0
    while (
        model.parameters * model.weight_bytes + (batch + 1) * cache < device.memory
        and step_seconds(model, device, batch + 1, context) < limit
    ):
        batch += 1
    return batch
