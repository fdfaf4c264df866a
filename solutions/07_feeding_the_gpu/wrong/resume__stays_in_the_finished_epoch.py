# expect: the next one begins at position 0
# fails: state, errors
class Sampler:
    """Hands out the rest of an epoch, and remembers what was trained on."""

    def __init__(self, samples: int, batch: int, workers: int, state: State):
        if not 0 <= state.position <= samples:
            raise ValueError(
                f"position = {state.position}: expected 0 to {samples - 1}; is this another data set's state?"
            )
        self.workers, self.began = max(workers, 1), state
        left = epoch_order(samples, state.seed, state.epoch)[state.position :].tolist()
        self.batches = [left[start : start + batch] for start in range(0, len(left), batch)]
        self.handed_out = [0] * self.workers
        self.done = 0

    def batch_for(self, worker: int):
        """The next batch of this worker, or None."""
        if not 0 <= worker < self.workers:
            raise ValueError(f"worker = {worker}: expected 0 to {self.workers - 1}")
        number = worker + self.workers * self.handed_out[worker]
        if number >= len(self.batches):
            return None
        self.handed_out[worker] += 1
        return self.batches[number]

    def trained(self) -> None:
        """The next batch in order has been trained on."""
        turn, worker = divmod(self.done, self.workers)
        if self.handed_out[worker] <= turn:
            raise RuntimeError(f"batch {self.done} was not handed out: it cannot have been trained on")
        self.done += 1

    def state(self) -> State:
        """Where to go on."""
        used = sum(map(len, self.batches[: self.done]))
        return State(self.began.seed, self.began.epoch, self.began.position + used)
