"""asyncio in virtual time: exact clocks, blocking that is seen, deadlocks that are named."""

import asyncio
import contextvars
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.simulation.event_loop import Deadlock, TimeLimit, busy, now, run


def test_sleeping_takes_exactly_as_long_as_asked_and_no_time():
    async def main():
        await asyncio.sleep(0.1)
        await asyncio.sleep(1e6)
        return now(), asyncio.get_running_loop().time()

    began = time.perf_counter()
    assert run(main, seconds=1e7) == (0.1 + 1e6, 0.1 + 1e6)
    assert time.perf_counter() - began < 600


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20))
def test_timers_fire_in_the_order_of_their_moments_and_of_their_creation(delays):
    async def main():
        found, loop = [], asyncio.get_running_loop()
        for number, delay in enumerate(delays):
            loop.call_at(delay, lambda number=number: found.append((number, now())))
        await asyncio.sleep(101)
        return found

    expected = sorted(enumerate(delays), key=lambda each: each[1])
    assert [number for number, _ in run(main)] == [number for number, _ in expected]
    assert all(moment == pytest.approx(delays[number], abs=2e-9) for number, moment in run(main))


def test_a_task_that_computes_delays_all_others():
    async def main(compute):
        async def ticks():
            found = []
            for _ in range(3):
                await asyncio.sleep(1)
                found.append(now())
            return found

        ticking = asyncio.create_task(ticks())
        await asyncio.sleep(0.5)
        await compute(5)
        return await ticking, now()

    async def blocks(seconds):
        busy(seconds)

    async def in_a_thread(seconds):
        await asyncio.to_thread(busy, seconds)

    assert run(main, blocks) == ([5.5, 6.5, 7.5], 7.5)
    assert run(main, in_a_thread) == ([1.0, 2.0, 3.0], 5.5)


@pytest.mark.parametrize(("workers", "ends"), [(1, [2, 4, 6, 8]), (2, [2, 2, 4, 4]), (4, [2, 2, 2, 2])])
def test_an_executor_has_as_many_workers_as_it_says(workers, ends):
    async def main():
        with ThreadPoolExecutor(workers) as executor:
            loop = asyncio.get_running_loop()

            async def call():
                began = await loop.run_in_executor(executor, compute)
                return began, now()

            return await asyncio.gather(*(call() for _ in ends))

    def compute():
        began = now()
        busy(1.5)
        busy(0.5)
        assert now() == began + 2
        return began

    assert run(main) == [(end - 2, end) for end in ends]


def test_a_call_in_an_executor_raises_and_is_cancelled_as_a_real_one():
    ran = []

    def compute(name):
        ran.append(name)
        busy(1)
        raise KeyError(name)

    async def main():
        loop, executor = asyncio.get_running_loop(), ThreadPoolExecutor(1)
        first, second, third = (loop.run_in_executor(executor, compute, name) for name in "abc")
        await asyncio.sleep(0.5)
        first.cancel()  # it has begun: nobody hears of it, and the worker is occupied until its end
        second.cancel()
        with pytest.raises(KeyError, match="c"):
            await third
        return now()

    assert run(main) == 2.0
    assert ran == ["a", "c"]


def test_a_thread_sees_the_context_of_its_caller():
    variable = contextvars.ContextVar("variable", default=0)

    async def main():
        variable.set(7)
        return await asyncio.to_thread(variable.get)

    assert run(main) == 7


def test_queues_locks_semaphores_timeouts_and_task_groups_run_unmodified():
    async def main():
        queue, lock, seats, log = asyncio.Queue(2), asyncio.Lock(), asyncio.Semaphore(2), []

        async def produces():
            for item in range(5):
                await queue.put(item)
                log.append(("put", item, now()))

        async def consumes():
            for _ in range(5):
                await asyncio.sleep(1)
                log.append(("got", await queue.get(), now()))

        async def works(name):
            async with seats, lock:
                await asyncio.sleep(1)
                log.append((name, now()))

        async with asyncio.TaskGroup() as group:
            for each in (produces(), consumes(), works("x"), works("y")):
                group.create_task(each)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.25):
                await asyncio.Event().wait()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10), 0.5)
        return log, now()

    log, end = run(main)
    assert end == 5.75
    assert [entry for entry in log if entry[0] == "put"] == [("put", n, max(0, n - 1)) for n in range(5)]
    assert [entry for entry in log if entry[0] in "xy"] == [("x", 1), ("y", 2)]


def test_a_deadlock_names_the_tasks_their_lines_and_what_has_failed():
    async def main():
        lock = asyncio.Lock()

        async def dies():
            raise ValueError("the worker is gone")

        async def waits():
            async with lock:
                await asyncio.Event().wait()  # for ever

        async with asyncio.TaskGroup() as group:
            others = [group.create_task(waits()), group.create_task(waits(), name="the second")]
            dead = asyncio.ensure_future(dies())
            await asyncio.wait([dead])
            await asyncio.sleep(3)
            await asyncio.gather(*others)

    with pytest.raises(Deadlock) as caught:
        run(main)
    message = str(caught.value)
    assert "deadlock at 3 s" in message
    assert "task 1 waits in main" in message and "await asyncio.gather(*others)" in message
    assert "task 2 waits in waits" in message and "await asyncio.Event().wait()  # for ever" in message
    assert "the second waits in waits" in message and "async with lock:" in message
    assert "task 4 has ended with ValueError: the worker is gone" in message


def test_the_limit_of_time_names_who_still_runs():
    async def main():
        while True:
            await asyncio.sleep(1)

    with pytest.raises(
        TimeLimit, match=r"not finished after 10 s\n  task 1 waits in main, line \d+: await asyncio.sleep"
    ):
        run(main, seconds=10)


def test_a_task_that_spins_is_stopped():
    async def main():
        await asyncio.sleep(2)
        while True:
            await asyncio.sleep(0)

    with pytest.raises(TimeLimit, match=r"at 2 s, and time stands still: a task spins\n  task 1 waits in main"):
        run(main)


def test_what_is_left_at_the_end_is_cancelled_also_if_it_refuses():
    log = []

    async def stays():
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                log.append("refused")

    async def cleans_up():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            log.append("cleaned up")

    async def stream():
        try:
            yield 1
            yield 2
        finally:
            log.append("stream closed")

    async def main():
        left = [asyncio.ensure_future(stays()), asyncio.ensure_future(cleans_up())]
        async for _ in stream():
            break
        await asyncio.sleep(1)
        return len(left)

    assert run(main) == 2
    assert sorted(log) == ["cleaned up", "refused", "stream closed"]


def test_it_runs_inside_another_loop_and_leaves_that_as_it_was():
    async def inner():
        await asyncio.sleep(60)
        return now()

    async def outer():
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert run(inner) == run(asyncio.sleep, 5, result=60) == 60
        assert asyncio.get_running_loop() is loop and asyncio.current_task() is task
        with pytest.raises(RuntimeError, match="there is no virtual time here"):
            now()
        return await asyncio.sleep(0, "as before")

    assert asyncio.run(outer()) == "as before"


def test_errors_of_the_program_pass_through():
    async def main():
        raise LookupError("no such model")

    with pytest.raises(LookupError, match="no such model"):
        run(main)
    with pytest.raises(RuntimeError, match=r"there is no virtual time here: call this in a program that `run\(main\)`"):
        busy(1)


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_a_time_that_cannot_pass_is_refused(seconds):
    async def main():
        busy(seconds)

    with pytest.raises(ValueError, match="expected a finite time, at least 0"):
        run(main)


def test_two_runs_are_the_same_to_the_bit():
    async def main():
        queue, log = asyncio.Queue(), []

        async def worker(number):
            while True:
                item = await queue.get()
                await asyncio.sleep(0.1 * number + 0.01 * item)
                log.append((number, item, now()))

        workers = [asyncio.create_task(worker(number)) for number in range(5)]
        for item in range(50):
            await queue.put(item)
        await asyncio.sleep(20)
        return log, len(workers)

    assert run(main) == run(main)
