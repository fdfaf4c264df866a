from collections import deque


class Sampler:
    """Hands out the rest of an epoch, and remembers what was trained on."""

    def __init__(self, samples: int, batch: int, workers: int, state: State):
        if state.position not in range(samples):
            raise ValueError(f"position = {state.position} is not one of 0 … {samples - 1}")
        left = deque(map(int, epoch_order(samples, state.seed, state.epoch)[state.position :]))
        self.queues = [deque() for _ in range(max(1, workers))]
        self.waiting = deque()
        self.out = set()
        while left:
            numbers = [left.popleft() for _ in range(min(batch, len(left)))]
            self.queues[len(self.waiting) % len(self.queues)].append((len(self.waiting), numbers))
            self.waiting.append((len(self.waiting), len(numbers)))
        self.now = state

    def batch_for(self, worker: int):
        """The next batch of this worker, or None."""
        if worker not in range(len(self.queues)):
            raise ValueError(f"worker = {worker}")
        if not self.queues[worker]:
            return None
        number, batch = self.queues[worker].popleft()
        self.out.add(number)
        return batch

    def trained(self) -> None:
        """The next batch in order has been trained on."""
        if not self.waiting or self.waiting[0][0] not in self.out:
            raise RuntimeError("nothing to train on")
        _, count = self.waiting.popleft()
        seed, epoch, position = self.now.seed, self.now.epoch, self.now.position
        self.now = State(seed, epoch, position + count) if self.waiting else State(seed, epoch + 1, 0)

    def state(self) -> State:
        """Where to go on."""
        return self.now
