"""A loader that can be interrupted and resumed anywhere: sampler and prefetcher joined."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from threeloops.data.loading.prefetch import prefetch
from threeloops.data.loading.sampler import SamplerState, advanced, batches, check_rank, step_sizes

__all__ = ["Loader"]


class Loader:
    """Iterates over the batches left in an epoch. `load(indices)` makes a batch from int64 indices of shape (≤ batch,).

    `state` counts only samples that were trained on, and not those that workers are loading. A loader made from it,
    with any number of workers, continues with the first batch that was not trained on.

    With data parallelism, each rank makes a loader with its `rank` and the number of `ranks`, and gets `batch` samples
    of each step. All ranks have the same state, and any number of ranks can continue from it.

    With `shards`, the number of samples in each, whole shards are shuffled; see `TarShards` and `epoch_order`.

    - `for batch in loader`: when the loop asks for the next batch, the last one counts as trained on. Before that, the
      loader cannot know, so reading `state` in the loop's body, or after a `break` or an error, raises RuntimeError.
    - `for batch, after in loader.with_states()` is for loops that save: `after` is the state after the step on `batch`.
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
        *,
        rank: int = 0,
        ranks: int = 1,
        shards: Sequence[int] | None = None,
    ) -> None:
        if samples < 1 or batch < 1:
            raise ValueError(f"samples = {samples}, batch = {batch}: expected at least 1 of each")
        check_rank(rank, ranks)
        self.rank = rank
        self.ranks = ranks
        self.shards = shards
        self.load = load
        self.samples = samples
        self.batch = batch
        self.state = state
        self.workers = workers
        self.ahead = ahead
        self.kind = kind

    @property
    def state(self) -> SamplerState:
        if self._undecided:
            raise RuntimeError(
                "state: a batch was given out, and only the loop knows whether it was trained on; iterate over "
                "with_states() and set `state` after each step, or set `state` to where to go on"
            )
        return self._state

    @state.setter
    def state(self, state: SamplerState) -> None:
        self._state = advanced(
            state, self.samples, 0, self.ranks
        )  # turns the end of an epoch into the beginning of the next
        self._undecided = False
        self._given_out: SamplerState | None = None

    def __iter__(self) -> Iterator[Any]:
        """The rest of the present epoch; iterate again for the next one."""
        for value, after in self.with_states():
            self._undecided = True
            yield value
            self.state = after

    def with_states(self) -> Iterator[tuple[Any, SamplerState]]:
        """The rest of the present epoch: each batch, and the state to save once it has been trained on.

        Batches may wait on their way to the step, as in a DeviceFeed, so the loop has to set `loader.state = after`
        after each step. Raises RuntimeError for a second pass over an epoch without that.
        """
        state = began = self.state
        if began == self._given_out:
            raise RuntimeError(
                f"{began} was given out to the end of its epoch and is still the state: set `loader.state = after` "
                "after each step, or set the state to give the same batches out again"
            )
        remaining = batches(state, self.samples, self.batch, self.rank, self.ranks, self.shards)
        sizes = step_sizes(state, self.samples, self.batch, self.ranks)
        with prefetch(self.load, remaining, self.workers, self.ahead, self.kind) as fetched:
            for used, value in zip(sizes, fetched, strict=True):
                state = advanced(state, self.samples, used, self.ranks)
                yield value, state
        self._given_out = began
