"""Run one function for several labs in separate processes, because grading has pools and settings per process."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

__all__ = ["side_by_side"]

_Result = TypeVar("_Result")


def side_by_side(
    run: Callable[..., _Result], jobs: Sequence[tuple[Any, ...]], watch: Callable[[Any], None], at_a_time: int
) -> Iterator[_Result]:
    """Yield the result of `run(*job, watch)` for each job, in the order in which they end. If only one runs at a time,
    it runs in this process.

    Values that a process passes to `watch` arrive here, one after the other. Each process has its share of the cores.
    OpenMP's threads wait for each other by spinning, so with more threads than cores all take several times as long.
    """
    if at_a_time == 1 or len(jobs) < 2:
        yield from (run(*job, watch) for job in jobs)
        return
    start_anew = multiprocessing.get_context("spawn")  # a fork would share this process's threads and pools
    with start_anew.Manager() as manager:
        steps = manager.Queue()

        def read() -> None:
            for step in iter(steps.get, None):
                watch(step)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            share = max(1, len(os.sched_getaffinity(0)) // at_a_time)
            with ProcessPoolExecutor(at_a_time, start_anew, _use_threads, (share,)) as workers:
                futures = [workers.submit(run, *job, steps.put) for job in jobs]
                try:
                    for future in as_completed(futures):
                        yield future.result()
                finally:
                    workers.shutdown(cancel_futures=True)
        finally:
            steps.put(None)
            reader.join()


def _use_threads(count: int) -> None:
    """Set the number of threads for this process, before it imports torch, and for the processes that it starts."""
    os.environ.setdefault("OMP_NUM_THREADS", str(count))
