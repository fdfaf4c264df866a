class Sampler:
    """Hands out the rest of an epoch, and remembers what was trained on."""

    def __init__(self, samples: int, batch: int, workers: int, state: State):
        if state.position < 0 or state.position >= samples:
            raise ValueError(f"position {state.position} of {samples} samples")
        self.samples, self.batch, self.workers = samples, batch, workers or 1
        self.start, self.at = state, state.position
        self.order = [int(n) for n in epoch_order(samples, state.seed, state.epoch)]
        self.next = {worker: state.position + worker * batch for worker in range(self.workers)}
        self.out = set()

    def batch_for(self, worker: int):
        """The next batch of this worker, or None."""
        if worker not in self.next:
            raise ValueError(f"worker {worker}: there are {self.workers}")
        first = self.next[worker]
        if first >= self.samples:
            return None
        self.next[worker] += self.workers * self.batch
        self.out.add(first)
        return self.order[first : first + self.batch]

    def trained(self) -> None:
        """The next batch in order has been trained on."""
        if self.at not in self.out:
            raise RuntimeError(f"the batch from {self.at} on was not handed out")
        self.out.remove(self.at)
        self.at = min(self.at + self.batch, self.samples)

    def state(self) -> State:
        """Where to go on."""
        epochs, position = divmod(self.at, self.samples)
        return State(self.start.seed, self.start.epoch + epochs, position)
