import itertools


class _Sizes:
    def __init__(self, model, context):
        self.weights = model.parameters * model.weight_bytes
        self.per_sequence = context * model.cache_bytes * model.head_dim * model.kv_heads * model.layers * 2
        self.work = 2 * model.parameters + 4 * context * model.head_dim * model.heads * model.layers

    def seconds(self, device, batch):
        by_bytes = (self.weights + self.per_sequence * batch) / device.bandwidth
        by_flops = self.work * batch / device.flops
        return by_bytes if by_bytes > by_flops else by_flops


def step_seconds(model: Served, device: Device, batch: int, context: int) -> float:
    return _Sizes(model, context).seconds(device, batch)


def largest_batch(model: Served, device: Device, context: int, limit: float) -> int:
    sizes = _Sizes(model, context)
    bad = (
        batch
        for batch in itertools.count(1)
        if sizes.weights + sizes.per_sequence * batch > device.memory or sizes.seconds(device, batch) > limit
    )
    return next(bad) - 1
