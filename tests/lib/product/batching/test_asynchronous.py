"""The engine behind asyncio. Its executor waits for the test to let a step pass, so nothing here depends on time."""

import asyncio
import threading
from contextlib import aclosing
from dataclasses import replace

import pytest
from ledger import Ledger, continuation
from threeloops.product.batching import CHUNKED, DYNAMIC, STATIC, AsyncEngine, Engine, EngineStopped, RequestFailed
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.request import Finish, Request, Sampling

PATIENCE = 30  # seconds; only a hang takes them


class Gated(Ledger):
    """Makes a step when it is let to: `let(n)` steps, or `open()` for all."""

    def __init__(self, blocks, block_size):
        super().__init__(blocks, block_size)
        self.gate, self.is_open = threading.Semaphore(0), False

    def let(self, steps=1):
        self.gate.release(steps)

    def open(self):
        self.is_open = True
        self.gate.release()

    def execute(self, batch):
        assert self.is_open or self.gate.acquire(timeout=PATIENCE), "nobody let this step pass"
        return super().execute(batch)


def engine_of(blocks=100, block_size=4, policy=CHUNKED):
    ledger, manager = Gated(blocks, block_size), BlockManager(blocks, block_size)
    return Engine(ledger, manager, policy), ledger, manager


def request(name, tokens=10, prompt=None):
    return Request(name, prompt or tuple(map(ord, name)), Sampling(max_tokens=tokens))


def right(request):
    return continuation(request.prompt, request.sampling.max_tokens)


async def read(front, request):
    async with aclosing(front.generate(request)) as tokens:
        return [token async for token in tokens]


def run(coroutine):
    before = set(threading.enumerate())
    asyncio.run(asyncio.wait_for(coroutine, PATIENCE))
    assert set(threading.enumerate()) <= before, "a thread is left behind"


@pytest.mark.parametrize("buffer", [1, 2, 64])
def test_many_readers_get_their_own_tokens(buffer):
    async def main():
        engine, ledger, manager = engine_of()
        ledger.open()
        requests = [request(f"r{n}", tokens=1 + n) for n in range(20)]
        async with AsyncEngine(engine, buffer) as front:
            outputs = await asyncio.gather(*(read(front, each) for each in requests))
        assert outputs == [right(each) for each in requests]
        assert manager.free == manager.blocks
        assert all(each.arrival <= each.token_times[0] for each in requests), "the arrival is when it was asked for"

    run(main())


def test_tokens_come_as_they_are_computed():
    async def main():
        engine, ledger, _ = engine_of()
        async with AsyncEngine(engine) as front, aclosing(front.generate(request("r"))) as tokens:
            for place, token in enumerate(right(request("r"))):
                ledger.let()
                assert await anext(tokens) == token
                assert len(ledger.batches) == place + 1
            with pytest.raises(StopAsyncIteration):
                await anext(tokens)

    run(main())


@pytest.mark.parametrize("bad", [request("r", prompt=(1, -1)), request("r", tokens=1000)], ids=["token", "length"])
def test_a_request_that_is_refused_raises_to_its_reader_alone(bad):
    async def main():
        engine, ledger, _ = engine_of()
        ledger.open()
        async with AsyncEngine(engine) as front:
            good = asyncio.create_task(read(front, request("good")))
            with pytest.raises(ValueError, match="request 'r'"):
                await read(front, bad)
            assert await good == right(request("good"))

    run(main())


def test_an_id_that_is_in_use_is_refused_and_its_owner_goes_on():
    async def main():
        engine, ledger, _ = engine_of()
        async with AsyncEngine(engine) as front, aclosing(front.generate(request("same"))) as tokens:
            ledger.let()
            first = await anext(tokens)
            twin = asyncio.create_task(read(front, request("same")))
            await asyncio.sleep(0)  # it has asked, and its owner waits for the next step
            ledger.open()
            with pytest.raises(ValueError, match="'same' is here already"):
                await twin
            assert [first, *[token async for token in tokens]] == right(request("same"))

    run(main())


def test_the_error_of_one_request_reaches_its_reader_alone():
    async def main():
        engine, ledger, manager = engine_of()
        ledger.fails.add("bad")
        ledger.open()
        async with AsyncEngine(engine) as front:
            good, bad = await asyncio.gather(
                read(front, request("good")), read(front, request("bad")), return_exceptions=True
            )
            assert good == right(request("good"))
            assert isinstance(bad, RequestFailed) and str(bad) == "bad is not finite"
            assert await read(front, request("bad")) == right(request("bad")), "the engine goes on"
        assert manager.free == manager.blocks

    run(main())


def test_if_the_engine_fails_everybody_is_told_and_nobody_waits():
    async def main():
        engine, ledger, _ = engine_of(policy=replace(CHUNKED, max_running=1))
        async with AsyncEngine(engine) as front:
            running, waiting = (front.generate(request(name)) for name in ("running", "waiting"))
            ledger.let()
            await anext(running)
            second = asyncio.create_task(anext(waiting))
            await asyncio.sleep(0)
            ledger.broken = OSError("the device fell off the bus")
            ledger.open()
            for reader in (second, asyncio.create_task(anext(running))):
                with pytest.raises(EngineStopped, match="fell off the bus") as raised:
                    await reader
                assert raised.value.__cause__ is ledger.broken
            with pytest.raises(EngineStopped, match="fell off the bus"):
                await read(front, request("later"))

    run(main())


@pytest.mark.parametrize("way", ["break", "cancel", "cancel while it waits"])
def test_a_reader_who_goes_away_cancels_the_request_and_frees_its_blocks(way):
    async def main():
        engine, ledger, manager = engine_of(policy=replace(CHUNKED, max_running=1))
        gone, first = request("gone", tokens=100), asyncio.Event()

        async def begin():
            async with aclosing(front.generate(gone)) as tokens:
                async for _ in tokens:
                    first.set()
                    if way == "break":
                        break

        async with AsyncEngine(engine) as front:
            before = [asyncio.create_task(read(front, request("before")))] if way == "cancel while it waits" else []
            await asyncio.sleep(0)  # so that it comes first
            reader = asyncio.create_task(begin())
            await asyncio.sleep(0)
            if way != "cancel while it waits":
                ledger.let()
                await first.wait()
            if way != "break":
                reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            ledger.open()
            assert await read(front, request("next")) == right(request("next"))
            assert [await each for each in before] == [right(request("before"))] * len(before)
            assert gone.finish is Finish.CANCELLED and len(gone.output) <= 3
        assert manager.free == manager.blocks

    run(main())


def test_a_slow_reader_is_paused_without_seat_and_blocks_and_loses_nothing():
    async def main():
        blocks, block_size, buffer = 6, 2, 4  # a cache for one of them
        engine, ledger, manager = engine_of(blocks, block_size, replace(CHUNKED, max_running=1))
        ledger.open()
        slow, fast = request("s", tokens=12), request("f", tokens=12)
        async with AsyncEngine(engine, buffer) as front, aclosing(front.generate(slow)) as tokens:
            got = [await anext(tokens)]
            assert await read(front, fast) == right(fast)
            assert 1 <= len(slow.output) <= buffer + 1, "it was computed for nobody"
            assert slow in engine.scheduler.paused and manager.free == blocks
            got += [token async for token in tokens]
            assert got == right(slow) and slow.preemptions == 0

    run(main())


def test_a_reader_who_catches_up_just_as_it_is_paused_is_not_forgotten():
    async def main():
        engine, ledger, _ = engine_of()
        pausing, caught_up = threading.Event(), threading.Event()
        pause = engine.scheduler.pause

        def slowly(request):
            pausing.set()
            assert caught_up.wait(PATIENCE)
            pause(request)

        engine.scheduler.pause = slowly
        ledger.let()
        async with AsyncEngine(engine, 4) as front, aclosing(front.generate(request("r"))) as tokens:
            got = [await anext(tokens)]
            ledger.open()
            await asyncio.to_thread(pausing.wait, PATIENCE)
            got += [await anext(tokens) for _ in range(4)]
            caught_up.set()
            got += [token async for token in tokens]
            assert got == right(request("r"))

    run(main())


def test_a_reader_who_goes_away_while_paused_is_forgotten():
    async def main():
        engine, ledger, manager = engine_of()
        ledger.open()
        async with AsyncEngine(engine, 2) as front:
            async with aclosing(front.generate(request("slow", tokens=50))) as tokens:
                await anext(tokens)
                await read(front, request("other", tokens=5))
            await front.drain()
        assert not engine.requests and not engine.scheduler.paused and manager.free == manager.blocks

    run(main())


def test_drain_computes_what_is_here_takes_nothing_new_and_closes():
    async def main():
        engine, ledger, manager = engine_of(policy=replace(STATIC, max_running=50))  # only draining opens this door
        front = AsyncEngine(engine)
        async with front:
            readers = [asyncio.create_task(read(front, request(f"r{n}"))) for n in range(5)]
            await asyncio.sleep(0)
            ending = asyncio.create_task(front.drain())
            await asyncio.sleep(0)
            with pytest.raises(EngineStopped, match="takes no new requests"):
                await read(front, request("late"))
            ledger.open()
            assert await asyncio.gather(*readers) == [right(request(f"r{n}")) for n in range(5)]
            await ending
            with pytest.raises(EngineStopped, match="closed"):
                await read(front, request("too late"))
        assert manager.free == manager.blocks

    run(main())


def test_close_ends_those_who_still_read():
    async def main():
        engine, ledger, manager = engine_of()
        async with AsyncEngine(engine) as front:
            unfinished = request("unfinished", tokens=100)
            tokens = front.generate(unfinished)
            ledger.let()
            await anext(tokens)
            closing = asyncio.create_task(front.close())
            await asyncio.sleep(0)
            ledger.let(2)
            await closing
            with pytest.raises(EngineStopped, match="closed"):
                async for _ in tokens:
                    pass
        assert unfinished.finish is Finish.CANCELLED and manager.free == manager.blocks

    run(main())


def test_a_request_that_meets_the_end_of_the_engine_is_answered():
    async def main():
        engine, ledger, _ = engine_of()
        async with AsyncEngine(engine) as front:
            first = asyncio.create_task(read(front, request("first")))
            await asyncio.sleep(0)
            ledger.broken = OSError("bus")
            second = asyncio.create_task(read(front, request("second")))
            ledger.open()
            for reader in (first, second):
                with pytest.raises(EngineStopped):
                    await reader

    run(main())


def test_a_door_that_opens_by_itself_needs_nobody_to_knock():
    async def main():
        engine, ledger, _ = engine_of(policy=replace(DYNAMIC, door_opens=0.01))
        ledger.open()
        async with AsyncEngine(engine) as front:
            assert await read(front, request("alone")) == right(request("alone"))

    run(main())


def test_a_reader_whose_loop_was_closed_is_one_who_went_away():
    engine, ledger, manager = engine_of()
    other = asyncio.new_event_loop()
    gone = request("gone", tokens=100)

    async def main():
        async with AsyncEngine(engine) as front:
            tokens = front.generate(gone)
            ledger.let()
            await asyncio.to_thread(lambda: other.run_until_complete(asyncio.wait_for(anext(tokens), PATIENCE)))
            other.close()
            ledger.open()
            assert await read(front, request("next")) == right(request("next"))
            await front.drain()

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert gone.finish is Finish.CANCELLED and manager.free == manager.blocks


def test_a_front_that_is_not_open_says_so_and_opens_once():
    async def main():
        engine, _, _ = engine_of()
        front = AsyncEngine(engine)
        await front.close()
        front = AsyncEngine(engine)
        with pytest.raises(EngineStopped, match="not open"):
            await read(front, request("r"))
        async with front:
            with pytest.raises(RuntimeError, match="opened before"):
                await front.__aenter__()

    run(main())


@pytest.mark.parametrize("buffer", [0, -1, 1.5, True])
def test_a_buffer_that_is_none_is_named(buffer):
    with pytest.raises(ValueError, match=f"buffer = {buffer}: expected a whole number of tokens"):
        AsyncEngine(engine_of()[0], buffer)
