from itertools import count


class Sampler:
    """Hands out the rest of an epoch, and remembers what was trained on."""

    def __init__(self, samples: int, batch: int, workers: int, state: State):
        if not -1 < state.position < samples:
            raise ValueError(f"position = {state.position}")
        self.workers, self.given, self.steps = max(workers, 1), {}, 0
        self.began, self.batch, self.samples = state, batch, samples
        self.order = epoch_order(samples, state.seed, state.epoch)
        self.coming = [self.of(worker) for worker in range(self.workers)]

    def of(self, worker):
        for number in count(worker, self.workers):
            begin = self.began.position + number * self.batch
            if begin >= self.samples:
                return
            self.given[number] = self.order[begin : begin + self.batch].tolist()
            yield self.given[number]

    def batch_for(self, worker: int):
        """The next batch of this worker, or None."""
        if worker < 0 or worker >= self.workers:
            raise ValueError(f"worker = {worker}: expected 0 to {self.workers - 1}")
        return next(self.coming[worker], None)

    def trained(self) -> None:
        """The next batch in order has been trained on."""
        if self.steps not in self.given:
            raise RuntimeError(f"batch {self.steps} was not handed out")
        self.steps += 1

    def state(self) -> State:
        """Where to go on."""
        position = self.began.position + sum(len(self.given[n]) for n in range(self.steps))
        if position == self.samples:
            return replace(self.began, epoch=self.began.epoch + 1, position=0)
        return replace(self.began, position=position)
