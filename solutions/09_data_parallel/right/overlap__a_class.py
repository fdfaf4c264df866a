class Reducer:
    """The state of one backward pass."""

    def __init__(self, model, buckets):
        self.named = dict(model.named_parameters())
        self.buckets = buckets
        self.seen, self.jobs = set(), []
        for name in (name for bucket in buckets for name in bucket):
            self.named[name].register_post_accumulate_grad_hook(self.hook(name))

    def hook(self, name):
        def arrived(_):
            self.seen.add(name)
            while self.buckets[len(self.jobs) :] and set(self.buckets[len(self.jobs)]) <= self.seen:
                self.start(self.buckets[len(self.jobs)])

        return arrived

    def start(self, bucket):
        flat = torch.nn.utils.parameters_to_vector([self.named[name].grad for name in bucket])
        self.jobs.append((bucket, flat, dist.all_reduce(flat, dist.ReduceOp.AVG, async_op=True)))

    def finish(self):
        wanted = {name for bucket in self.buckets for name in bucket}
        if wanted != self.seen:
            raise RuntimeError(f"parameters without a gradient: {sorted(wanted - self.seen)}")
        for bucket, flat, job in self.jobs:
            job.wait()
            torch.nn.utils.vector_to_parameters(flat, [self.named[name].grad for name in bucket])
        self.seen, self.jobs = set(), []


def overlap(model: torch.nn.Module, buckets: list[list[str]]):
    """Average each bucket as soon as it is full; returns `finish`, to be called after backward."""
    return Reducer(model, buckets).finish
