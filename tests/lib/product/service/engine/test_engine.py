"""An engine in a process of its own: its tokens, its ends, and that a reader is never left waiting."""

import asyncio
import functools
import json
import math
import os
import signal
from contextlib import aclosing, asynccontextmanager

import pytest
import torch
from real_service import PATIENCE, answer_of, long_model
from safetensors.torch import load_file, save_file
from threeloops.product.request import Finish, Request, Sampling
from threeloops.product.service.engine import EngineClient, EngineSpec, EngineStopped, Supervisor
from threeloops.product.service.engine.messages import Ready
from threeloops.simulation import event_loop as virtual
from threeloops.simulation.event_loop import now
from trained_tokenizer import qwen2_folder

TINY = EngineSpec("tiny", blocks=64, threads=1, window=8)


def request(prompt="def main(", tokens=20, **more):
    return Request("r", tuple(prompt.encode()), Sampling(max_tokens=tokens), **more)


async def read(engine, request, most=None):
    found = []
    async with aclosing(engine.generate(request)) as tokens:
        async for token in tokens:
            found.append(token)
            if len(found) == most:
                break
    return found


async def until(condition, what):
    try:
        async with asyncio.timeout(PATIENCE):
            while not await condition():
                await asyncio.sleep(0.002)
    except TimeoutError:
        pytest.fail(f"still not so: {what}")


@asynccontextmanager
async def started(spec=TINY):
    engine = await EngineClient.start(spec)
    try:
        await engine.wait_ready()
        yield engine
    finally:
        await engine.close()


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 2 * PATIENCE))


def test_one_process_from_its_first_token_to_its_end():
    """One start for all of these, as each costs seconds."""

    async def main():
        engine = await EngineClient.start(TINY)
        assert not engine.ready
        with pytest.raises(EngineStopped, match="loading"):
            await read(engine, request())
        await engine.wait_ready()
        assert engine.ready and (engine.model.vocabulary, engine.model.max_sequence) == (256, 256)

        await the_tokens_are_the_models(engine)
        await many_readers_get_their_own(engine)
        await what_can_never_run_is_refused_and_others_go_on(engine)
        await whoever_leaves_gives_its_blocks_back(engine)
        await who_leaves_before_its_first_token_is_forgotten_too(engine)
        await a_reader_that_stops_is_paused_and_then_gets_the_rest(engine)
        await the_prefix_cache_is_counted(engine)
        await close_ends_it_and_tells_whoever_reads(engine)

    run(main())


async def is_idle(engine):
    stats = await engine.stats()
    return stats.streams == stats.running == stats.paused == 0 and stats.blocks_free == stats.blocks_total


async def the_tokens_are_the_models(engine):
    asked = request(tokens=30)
    assert bytes(await read(engine, asked)).decode() == answer_of("def main(", 30)
    assert asked.finish is Finish.LENGTH and len(asked.output) == 30


async def many_readers_get_their_own(engine):
    begins = [f"import {n}" for n in range(12)]
    found = await asyncio.gather(*(read(engine, request(begin, 10 + n)) for n, begin in enumerate(begins)))
    assert [bytes(each).decode() for each in found] == [answer_of(begin, 10 + n) for n, begin in enumerate(begins)]


async def what_can_never_run_is_refused_and_others_go_on(engine):
    other = asyncio.create_task(read(engine, request(tokens=50)))
    with pytest.raises(ValueError, match="max_sequence = 256"):
        await read(engine, request(tokens=300))
    assert len(await other) == 50


async def whoever_leaves_gives_its_blocks_back(engine):
    await asyncio.gather(*(read(engine, request(tokens=240), most=1 + n) for n in range(30)))
    await until(lambda: is_idle(engine), "all blocks are free")


async def who_leaves_before_its_first_token_is_forgotten_too(engine):
    for turns in range(20):
        task = asyncio.create_task(read(engine, request(tokens=240)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
    await until(lambda: is_idle(engine), "no stream is left")


async def a_reader_that_stops_is_paused_and_then_gets_the_rest(engine):
    async def is_paused():
        return (await engine.stats()).paused == 1

    async with aclosing(engine.generate(request(tokens=200))) as tokens:
        found = [await anext(tokens)]
        await until(is_paused, "it is paused")
        assert len(await read(engine, request(tokens=240))) == 240, "somebody else was held up"
        found += [token async for token in tokens]
    assert bytes(found).decode(errors="replace") == answer_of("def main(", 200)


async def the_prefix_cache_is_counted(engine):
    before = await engine.stats()
    prompt = "x = 1\n" * 10  # 60 tokens: 3 full blocks of 16
    await read(engine, request(prompt, 1))
    await read(engine, request(prompt, 1))
    after = await engine.stats()
    assert after.prefix_tokens_asked - before.prefix_tokens_asked == 2 * 60
    assert after.prefix_tokens_hit - before.prefix_tokens_hit == 3 * 16
    assert after.steps > before.steps


async def close_ends_it_and_tells_whoever_reads(engine):
    reading = asyncio.create_task(read(engine, request(tokens=200)))
    while not engine._streams:
        await asyncio.sleep(0)
    await engine.close()
    for late in (reading, read(engine, request())):
        with pytest.raises(EngineStopped, match="closed"):
            await late
    assert not engine.ready and not os.path.exists(f"/proc/{engine.pid}")


def test_a_dead_process_is_told_to_every_reader_and_replaced():
    async def main():
        engine = await Supervisor(TINY, first_wait=0.01, longest_wait=0.02, step_seconds=4).open()
        try:
            os.kill(engine.pid, signal.SIGSTOP)
            readers = [asyncio.create_task(read(engine, request(tokens=240))) for _ in range(5)]
            asking = asyncio.create_task(engine.stats())
            await asyncio.sleep(0)
            os.kill(engine.pid, signal.SIGKILL)
            for error in await asyncio.gather(*readers, asking, return_exceptions=True):
                assert isinstance(error, EngineStopped) and "ended unexpectedly" in str(error)
            with pytest.raises(EngineStopped):
                await read(engine, request())

            async def is_ready():
                return engine.ready

            await until(is_ready, "another process is ready")
            assert engine.restarts == 1 and engine.reason == ""
            assert len(await read(engine, request(tokens=5))) == 5
            before, engine.step_seconds = engine.pid, 0.5
            engine.first_wait, engine.longest_wait = PATIENCE, 0  # no third process
            os.kill(before, signal.SIGSTOP)
            with pytest.raises(EngineStopped, match=rf"process {before} gave no sign of life for 0\.5 s"):
                await read(engine, request(tokens=240))
            assert not engine.ready
        finally:
            await engine.close()
        assert not engine.ready and not os.path.exists(f"/proc/{engine.pid}")
        with pytest.raises(EngineStopped, match="closed"):
            await read(engine, request())

    run(main())


def test_a_model_that_cannot_be_loaded_says_why(tmp_path):
    async def main():
        with pytest.raises(EngineStopped, match="the model '.*' cannot be loaded: .*config.json"):
            await Supervisor(EngineSpec(str(tmp_path))).open()

    run(main())


class FakeClient:
    """A process that is ready, answers, and dies as the test says. `loads` is how long it takes to load."""

    pid = 1

    def __init__(self, is_good=True, loads=0.0):
        self.is_good, self.loads, self.started = is_good, loads, now()
        self.gone, self.answers = asyncio.Event(), asyncio.Event()
        self.reason, self.ready, self.model = "" if is_good else "bad model", False, Ready(256, 256, 0.0)
        self.answers.set()

    async def wait_ready(self):
        await asyncio.sleep(self.loads)
        if not self.is_good:
            raise EngineStopped(self.reason)
        self.ready = True

    async def wait_gone(self):
        await self.gone.wait()
        self.ready, self.reason = False, self.reason or "killed"

    async def stats(self, seconds):
        try:
            async with asyncio.timeout(seconds):
                await self.answers.wait()
        except TimeoutError:
            raise EngineStopped("no answer") from None

    def kill(self, reason):
        self.reason = reason
        self.gone.set()

    async def close(self):
        self.gone.set()


def supervised(*clients, **options):
    """A supervisor whose processes are these, one after another, and the list of those that were started."""
    coming, started = iter(clients), []

    async def start(spec):
        started.append(next(coming)())
        return started[-1]

    return Supervisor(TINY, start=start, **options), started


def test_restarts_wait_longer_each_time_and_are_bounded():
    async def main():
        bad = functools.partial(FakeClient, is_good=False)
        engine, started = supervised(FakeClient, bad, bad, bad, FakeClient, first_wait=1, longest_wait=5)
        await engine.open()
        started[0].gone.set()
        await asyncio.sleep(100)
        assert [client.started for client in started] == [0, 1, 1 + 2, 1 + 2 + 4, 1 + 2 + 4 + 5]
        assert engine.restarts == 4 and engine.ready and engine.reason == ""
        await engine.close()

    virtual.run(main)


def test_a_process_that_says_nothing_is_replaced_and_a_slow_one_is_not():
    async def main():
        engine, started = supervised(FakeClient, FakeClient, first_wait=1, step_seconds=60)
        await engine.open()
        for seconds in (1, 50, 1):  # each step takes nearly as long as it may
            started[0].answers.clear()
            await asyncio.sleep(seconds)
            started[0].answers.set()
            await asyncio.sleep(1)
        assert (len(started), engine.ready) == (1, True)
        started[0].answers.clear()
        stopped = now()
        await asyncio.sleep(200)
        assert started[0].reason == "the engine's process 1 gave no sign of life for 60 s: it is replaced"
        assert 60 <= started[1].started - 1 - stopped <= 75 and engine.ready
        await engine.close()

    virtual.run(main)


def test_a_model_that_does_not_load_in_time_is_given_up():
    async def main():
        slow = functools.partial(FakeClient, loads=1e6)
        engine, started = supervised(slow, load_seconds=30)
        with pytest.raises(EngineStopped, match="the model 'tiny' was not loaded within 30 s: .*load_seconds"):
            await engine.open()
        assert now() == 30 and started[0].gone.is_set()
        engine, started = supervised(FakeClient, slow, FakeClient, first_wait=1, load_seconds=30)
        await engine.open()
        began = now()
        started[0].gone.set()
        await asyncio.sleep(20)
        assert not engine.ready
        await asyncio.sleep(80)
        assert started[1].gone.is_set() and started[2].started == began + 1 + 30 + 2 and engine.ready
        await engine.close()

    virtual.run(main)


def test_a_model_that_gives_no_numbers_is_not_served(tmp_path):
    async def main():
        folder = long_model(tmp_path / "nan")
        (file,) = folder.glob("*.safetensors")
        tensors = {name: torch.full_like(value, math.nan) for name, value in load_file(file).items()}
        save_file(tensors, file, {"format": "pt"})
        with pytest.raises(EngineStopped, match="cannot generate: .* not finite"):
            await Supervisor(EngineSpec(str(folder), threads=1)).open()

    run(main())


def test_a_model_whose_texts_end_with_a_token_that_it_lacks_is_not_served(tmp_path):
    async def main():
        qwen2_folder(tmp_path / "small")
        settings = tmp_path / "small/generation_config.json"
        settings.write_text(json.dumps({"eos_token_id": [2, 5000]}))
        with pytest.raises(EngineStopped, match="ends a text, and its number 5000 is not one of the model's, 0 to"):
            await Supervisor(EngineSpec(str(tmp_path / "small"), threads=1)).open()

    run(main())


def test_a_folder_has_its_own_length_and_the_cache_its_own_room(tmp_path):
    async def main():
        spec = EngineSpec(str(long_model(tmp_path / "long")), blocks=8, threads=1, fingerprint=True)
        async with started(spec) as engine:
            assert engine.model.max_sequence == 16384 and len(engine.model.fingerprint) == 32
            with pytest.raises(ValueError, match="this one has 128"):
                await read(engine, request(tokens=200))

    run(main())
