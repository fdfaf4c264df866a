import math


def _parts(model, context):
    cache = 2 * model.layers * model.kv_heads * model.head_dim * model.cache_bytes * context
    flops = 2 * model.parameters + 4 * model.layers * model.heads * model.head_dim * context
    return model.parameters * model.weight_bytes, cache, flops


def step_seconds(model: Served, device: Device, batch: int, context: int) -> float:
    weights, cache, flops = _parts(model, context)
    return max((weights + batch * cache) / device.bandwidth, batch * flops / device.flops)


def largest_batch(model: Served, device: Device, context: int, limit: float) -> int:
    weights, cache, flops = _parts(model, context)
    most = min(
        (device.memory - weights) / cache,
        (limit * device.bandwidth - weights) / cache,
        limit * device.flops / flops,
    )
    return max(0, math.floor(most + 1e-9))
