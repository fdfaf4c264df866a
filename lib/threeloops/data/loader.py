"""A loader that can be interrupted anywhere: sampler and prefetcher joined, and a state that is always true."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

from threeloops.data.prefetch import prefetch
from threeloops.data.sampler import SamplerState, advanced, batches


class Loader:
    """Batches of the rest of an epoch: `load(indices)` makes one, `indices` int64 of shape (≤ batch,).

    `state` says what has been given out to the training loop, not what workers have under way. Saved after the step on
    a batch, it resumes with the batch behind it, whatever the number of workers is then.
    """

    def __init__(
        self,
        load: Callable[[Any], Any],
        samples: int,
        batch: int,
        state: SamplerState,
        workers: int = 0,
        ahead: int | None = None,
        kind: Literal["thread", "process"] = "thread",
        restarts: int = 0,
    ) -> None:
        if samples < 1 or batch < 1:
            raise ValueError(f"samples = {samples}, batch = {batch}: expected at least 1 of each")
        self.load, self.samples, self.batch, self.state = load, samples, batch, state
        self.workers, self.ahead, self.kind, self.restarts = workers, ahead, kind, restarts

    def __iter__(self) -> Iterator[Any]:
        """To the end of the present epoch; iterate again for the next one."""
        left = batches(self.state, self.samples, self.batch)
        with prefetch(self.load, left, self.workers, self.ahead, self.kind, self.restarts) as fetched:
            for indices, value in zip(left, fetched, strict=True):
                self.state = advanced(self.state, self.samples, len(indices))
                yield value
