"""Programs in virtual time: the grader's side keeps the clock, the student's tasks follow it in the sandbox, and a test
cell sees what it would see beside the student's code."""

import pytest
from grading import SANDBOXES, needs
from sides import Walled, course_fixture, sides_fixture

SETUP = """
import asyncio
from threeloops.lab import check
from threeloops.lab.checking.in_virtual_time import in_virtual_time, there
from threeloops.simulation.event_loop import busy, now


class Broken(Exception):
    pass


async def calls(f, *args):
    return await f(*args), now()


async def counts(f, moments):
    seen = []

    async def tick(end):
        for moment in moments:
            try:
                await asyncio.sleep(moment - now())
                if moment < 0:
                    raise Broken("no more")
                yield moment
            finally:
                end.append(now())

    end = []
    try:
        async for value in f(tick(end)):
            seen.append((value, now()))
    except Broken as error:
        seen.append((str(error), now()))
    return seen, end


async def computes(f, seconds):
    def model(values):
        began, values = now(), list(values)
        busy(seconds)
        log.append((began, values))
        return [value + 1 for value in values]

    log, late = [], []

    async def ticks():
        while True:
            planned = now() + 0.5
            await asyncio.sleep(0.5)
            late.append(now() - planned)

    watch = asyncio.create_task(ticks())
    result = await f(model)
    watch.cancel()
    return result, now(), log, max(late, default=0.0)


async def gives(f):
    return await f(lambda *values: [type(value).__name__ for value in values])


async def leaves(f, seconds):
    try:
        async with asyncio.timeout(seconds):
            await f()
    except TimeoutError:
        return "left", now()
    return "stayed", now()


def spawn(streams, name, work):
    streams[name] = asyncio.create_task(work)


async def closes(f):
    log = []

    async def work():
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError as error:
            await asyncio.sleep(2)
            log.append((error.args, now()))
            raise
        return 7

    manager = f()
    there(spawn, manager.tasks(), "a", work())
    await asyncio.sleep(1)
    return await manager.end(), now(), log


async def lends(f, leave):
    closed = []

    async def source():
        try:
            while True:
                await asyncio.sleep(1)
                yield now()
        finally:
            await asyncio.sleep(5)
            closed.append(now())

    async def reader():
        await f(source())

    reading = asyncio.create_task(reader())
    asyncio.get_running_loop().call_at(leave, reading.cancel)
    await asyncio.wait([reading])
    return reading.cancelled(), now(), closed


async def reads_two(f):
    events = f()
    found = [await anext(events), await anext(events)]
    await events.aclose()
    return found
"""


lab = course_fixture()
run = sides_fixture(SETUP)


def test_both_sides_have_the_same_time_to_the_bit(run):
    done = run(
        """
        async def f(seconds):
            began = now()
            await asyncio.gather(*(asyncio.sleep(each) for each in seconds))
            return began, now()
        """,
        "assert in_virtual_time(calls, f, [0.1, 0.7, 1e6 + 1 / 3], seconds=1e7) == ((0.0, 1e6 + 1 / 3), 1e6 + 1 / 3)",
    )
    assert done.ok, done


def test_a_generator_of_the_program_is_read_in_its_own_time(run):
    done = run(
        """
        async def f(source):
            async for value in source:
                await asyncio.sleep(0.25)
                yield value
        """,
        """
        seen, end = in_virtual_time(counts, f, [1.0, 2.5, 2.5])
        assert seen == [(1.0, 1.25), (2.5, 2.75), (2.5, 3.0)] and end == [1.25, 2.75, 3.0], (seen, end)
        seen, end = in_virtual_time(counts, f, [1.0, -1])
        assert seen == [(1.0, 1.25), ("no more", 1.25)] and end == [1.25, 1.25], (seen, end)
        """,
    )
    assert done.ok, done


def test_a_cancelled_read_ends_the_generator_of_the_program(run):
    done = run(
        """
        async def f(source):
            try:
                async with asyncio.timeout(1.5):
                    async for value in source:
                        yield value
            except TimeoutError:
                yield "too late"
        """,
        "assert in_virtual_time(counts, f, [1.0, 9.0]) == ([(1.0, 1.0), ('too late', 1.5)], [1.0, 1.5])",
    )
    assert done.ok, done


def test_computation_blocks_the_loop_that_calls_and_no_other_if_it_is_in_a_thread(run):
    done = run(
        "async def f(model):\n    return model(value for value in (1, 2))",
        "assert in_virtual_time(computes, f, 4.0)[:3] == ([2, 3], 4.0, [(0.0, [1, 2])])",
    )
    assert done.ok, done
    done = run(
        """
        async def f(model):
            await asyncio.sleep(0.25)
            first = model([1])
            await asyncio.sleep(0.5)
            return first + await asyncio.to_thread(model, [2])
        """,
        """
        result, end, log, late = in_virtual_time(computes, f, 4.0)
        assert (result, end, log) == ([2, 3], 8.75, [(0.25, [1]), (4.75, [2])]) and late == 3.75, (end, log, late)
        """,
    )
    assert done.ok, done


def test_an_array_reaches_a_function_of_the_program_as_an_array(run):
    done = run(
        """
        import numpy as np

        async def f(given):
            return given(np.arange(2.0), np.float64(1.0), [3])
        """,
        "assert in_virtual_time(gives, f) == ['ndarray', 'float64', 'list']",
    )
    assert done.ok, done


def test_a_cancellation_passes_and_is_waited_for(run):
    done = run(
        """
        async def f():
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.5)
        """,
        "assert in_virtual_time(leaves, f, 2.0) == ('left', 2.5)",
    )
    assert done.ok, done
    done = run(
        """
        async def f():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass
        """,
        "assert in_virtual_time(leaves, f, 2.0) == ('stayed', 2.0)",
    )
    assert done.ok, done


def test_tasks_of_the_program_are_cancelled_with_a_reason_and_clean_up(run):
    done = run(
        """
        class f:
            def __init__(self):
                self.running = {}

            def tasks(self):
                return Streams(self.running)

            async def end(self):
                task = self.running["a"]
                task.cancel("enough")
                await asyncio.wait([task])
                return task.cancelled(), now()


        class Streams:
            def __init__(self, tasks):
                self.tasks = tasks

            def __setitem__(self, name, task):
                self.tasks[name] = task
        """,
        "assert in_virtual_time(closes, f) == ((True, 3.0), 3.0, [(('enough',), 3.0)])",
    )
    assert done.ok, done


def test_a_generator_of_the_program_closes_in_its_own_time(run):
    done = run(
        """
        async def f(source):
            try:
                async for moment in source:
                    await asyncio.sleep(0.5)
            finally:
                await source.aclose()
        """,
        "assert in_virtual_time(lends, f, 2.25) == (True, 7.25, [7.25])\n"
        "assert in_virtual_time(lends, f, 2.75) == (True, 7.75, [7.75])",
    )
    assert done.ok, done


def test_all_of_a_stream_is_read_by_one_task(run):
    done = run(
        """
        async def f():
            first = asyncio.current_task()
            yield 1
            yield asyncio.current_task() is first
        """,
        "assert in_virtual_time(reads_two, f) == [1, True]",
    )
    assert done.ok, done


def test_errors_come_back_as_what_they_are(run):
    done = run("async def f():\n    raise Broken('no')", "check.raises(Broken, in_virtual_time, calls, f, names='no')")
    assert done.ok, done
    done = run("async def f():\n    raise NotImplementedError", "in_virtual_time(calls, f)")
    assert not done.ok and done.error == "NotImplementedError"


def test_a_deadlock_and_a_limit_name_the_lines_of_the_student(run):
    for line, said in (
        ("await asyncio.Event().wait()", "deadlock at 1 s: nothing is ready, and no timer runs"),
        ("await asyncio.sleep(1e9)", "not finished after 50 s"),
        ("while True: await asyncio.sleep(0)", "turns of the loop at 1 s, and time stands still: a task spins"),
    ):
        done = run(f"async def f():\n    await asyncio.sleep(1)\n    {line}", "in_virtual_time(calls, f, seconds=50)")
        assert not done.ok and said in done.message and "in f, line 3" in done.message, done


def test_another_program_begins_at_zero_with_nothing_left_of_the_first(run):
    done = run(
        """
        async def f():
            asyncio.create_task(asyncio.sleep(5))
            return now(), len(asyncio.all_tasks())
        """,
        """
        first, second = in_virtual_time(calls, f), in_virtual_time(calls, f)
        assert first == second and first[0][0] == 0.0, (first, second)
        """,
    )
    assert done.ok, done


FORGED = {
    "no list": "lambda *_: 7",
    "a timer that is no number": "lambda *_: [[], float('nan'), False]",
    "an operation that was never begun": "lambda *_: [[['done', 99, 'value', 1]], None, False]",
    "a question about nothing": "lambda *_: [[['ask', 1, 5, 'next']], None, False]",
    "an unknown word": "lambda *_: [[['win', 1]], None, False]",
    "an error that is none": "lambda *_: [[['done', 1, 'raised', 'x']], None, False]",
}


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("answer", FORGED.values(), ids=FORGED)
def test_an_answer_that_no_loop_gives_costs_the_test(lab, sandbox, answer):
    needs(sandbox)
    student = f"from threeloops.simulation import following\nfollowing.go_on = {answer}\nasync def f():\n    return 1"
    side = Walled(lab, sandbox, SETUP, student)
    try:
        done = side.test("in_virtual_time(calls, f)\nin_virtual_time(leaves, f, 5.0)")
    finally:
        side.close()
    assert not done.ok and done.error in ("RuntimeError", "IndexError", "TypeError"), done


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_the_sandbox_cannot_move_the_time(lab, sandbox):
    needs(sandbox)
    student = """
from threeloops.simulation import event_loop, following

following._FollowingLoop.time = event_loop.VirtualTimeLoop.time = lambda self: 1e9
following._FollowingLoop.next_timer = lambda self: -5.0


async def f():
    await asyncio.sleep(0)
    return now()
"""
    side = Walled(lab, sandbox, SETUP, student)
    try:
        done = side.test("assert in_virtual_time(calls, f) == (1e9, 0.0)")
    finally:
        side.close()
    assert done.ok, done


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_function_of_a_test_cell_is_not_on_the_students_side(lab, sandbox):
    needs(sandbox)
    side = Walled(lab, sandbox, SETUP, "async def f():\n    return 1")
    try:
        done = side.test("def g():\n    pass\nasync def program(f):\n    there(g)\nin_virtual_time(program, f)")
    finally:
        side.close()
    assert not done.ok and done.error == "TypeError" and "g is not of a setup cell" in done.message, done


def test_a_worker_that_is_free_a_nanosecond_later_is_waited_for(run):
    """A loop runs timers of the next nanosecond early, and a job whose worker is not free yet sets another one."""
    done = run(
        """
        from concurrent.futures import ThreadPoolExecutor


        async def f():
            loop, one = asyncio.get_running_loop(), ThreadPoolExecutor(1)
            first = loop.run_in_executor(one, busy, 1.0 + 4e-10)
            second = loop.run_in_executor(one, busy, 1.0)
            await asyncio.gather(asyncio.sleep(1.0), first, second)
            return now()
        """,
        "(seconds, end) = in_virtual_time(calls, f)\nassert seconds == end and abs(end - 2.0) < 1e-8, (seconds, end)",
    )
    assert done.ok, done
