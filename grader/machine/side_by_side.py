"""Runs one function for several labs, each in a process of its own: grading has pools and settings per process."""

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

__all__ = ["side_by_side"]

_Result = TypeVar("_Result")


def side_by_side(
    run: Callable[..., _Result], jobs: Sequence[tuple[Any, ...]], watch: Callable[[Any], None], at_a_time: int
) -> Iterator[_Result]:
    """`run(*job, watch)` of each job, in the order in which they end; in this process where only one runs at a time.

    Whatever a process passes to `watch` arrives here, one after the other.
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
            with ProcessPoolExecutor(at_a_time, mp_context=start_anew) as workers:
                futures = [workers.submit(run, *job, steps.put) for job in jobs]
                try:
                    for future in as_completed(futures):
                        yield future.result()
                finally:
                    workers.shutdown(cancel_futures=True)
        finally:
            steps.put(None)
            reader.join()
