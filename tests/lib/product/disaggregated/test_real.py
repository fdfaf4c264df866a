"""A prefill process and a decode process: their answers, their deaths, and that nothing is left behind."""

import asyncio
import os
import random
import signal
from contextlib import aclosing, asynccontextmanager, suppress

import pytest
import torch
from real_service import PATIENCE
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.models.llama_folder import save_llama_folder
from threeloops.product.disaggregated.real import HANDOVERS, DisaggregatedService
from threeloops.product.grammar import GrammarError
from threeloops.product.request import EngineStopped, Finish, Request, RequestFailed, Sampling
from threeloops.product.service.engine import EngineSpec
from threeloops.product.service.engine.loading import load_engine

TINY = EngineSpec("tiny", blocks=48, block_size=8, threads=1, token_budget=32, window=8)
TEXT = b"    def __init__(self, name, value):\n        self.name = name\n        self.value = value\n"
SAMPLINGS = {
    "greedy": Sampling(max_tokens=20),
    "one token": Sampling(max_tokens=1),
    "drawn": Sampling(max_tokens=20, temperature=1.0, seed=3, top_k=40, top_p=0.95, min_p=0.01),
    "penalties": Sampling(max_tokens=20, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2),
    "grammar": Sampling(max_tokens=20, temperature=1.0, seed=7, stop=frozenset({0}), grammar='start: /[0-9]{2,5}/ "x"'),
    "log-probabilities": Sampling(max_tokens=9, logprobs=3, prompt_logprobs=2, temperature=0.7, seed=5),
    "stop": Sampling(max_tokens=40, stop=frozenset(b"\n ")),
    "late stop": Sampling(max_tokens=40, stop=frozenset(b"\n "), min_tokens=9),
    "bias": Sampling(max_tokens=9, logit_bias=((65, 9.0), (66, 9.5)), temperature=0.5),
}


def request(prompt=TEXT, sampling=SAMPLINGS["greedy"], **more):
    return Request("r", tuple(prompt), sampling, **more)


async def read(service, request, most=None):
    """The tokens that the reader took."""
    found = []
    async with aclosing(service.generate(request)) as tokens:
        async for token in tokens:
            found.append(token)
            if len(found) == most:
                break
    return found


def close(ours, theirs):
    """Whether log-probabilities are equal, but for the last bits of float32, which depend on where a tensor lies."""
    flat = [[(each.logprob, *(value for _, value in each.top)) for each in side] for side in (ours, theirs)]
    return len(ours) == len(theirs) and all(x == pytest.approx(y, abs=1e-5) for x, y in zip(*flat, strict=True))


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 4 * PATIENCE))


@asynccontextmanager
async def opened(prefill=TINY, decode=None, **more):
    async with DisaggregatedService(prefill, decode or prefill, load_seconds=PATIENCE, **more) as service:
        yield service


async def idle(service):
    """The states of both processes when nothing is left on them; no block is lost."""
    async with asyncio.timeout(PATIENCE):
        while True:
            states = await service.states()
            assert not any(state.fault for state in states.values())
            if all(state.blocks_free == state.blocks_total for state in states.values()):
                return states
            await asyncio.sleep(0.01)


def test_two_processes_from_their_first_token_to_their_ends():
    """One start for all of these, as each costs seconds."""

    async def main():
        async with opened() as service:
            engine, _ = load_engine(TINY, "")
            await answers_are_those_of_one_engine(service, engine)
            await many_at_once(service, engine)
            await what_can_never_run_is_refused(service)
            await a_reader_may_leave_at_any_time(service)
            await a_slow_reader_is_waited_for(service, engine)
            await a_dead_side_is_replaced(service, engine, "prefill")
            await a_dead_side_is_replaced(service, engine, "decode")
            stopped = asyncio.create_task(read(service, request()))
            await asyncio.sleep(0)
        with pytest.raises(EngineStopped, match="the service was closed"):
            await stopped
        with pytest.raises(EngineStopped, match="the service was closed"):
            await read(service, request())

    run(main())


async def answers_are_those_of_one_engine(service, engine):
    """All of a request's results are the same, and a prompt's keys and values are sent once."""
    pytest.importorskip("llguidance")
    block = TINY.block_size * 2 * 2 * 24 * 2 * 4  # tokens, keys and values, heads, elements, layers, bytes
    sent = 0
    for place, (name, sampling) in enumerate(SAMPLINGS.items()):
        prompt = bytes([65 + place]) + TEXT[: 60 + 3 * place]
        ours, theirs = request(prompt, sampling), request(prompt, sampling)
        engine.run([theirs])
        assert await read(service, ours) == theirs.output, name
        assert ours.finish is theirs.finish, name
        assert close(ours.logprobs, theirs.logprobs) and close(ours.prompt_logprobs, theirs.prompt_logprobs), name
        if len(ours.output) > 1:
            sent += -(-len(prompt) // TINY.block_size) * block
        else:
            assert name == "one token"
        states = await idle(service)
        assert states["prefill"].sent_bytes == sent, name
    again = request(prompt, sampling)
    assert await read(service, again) == theirs.output
    assert again.cached_first == (len(prompt) - 1) // 8 * 8, "the prefix cache of the prefill process has it"
    more = states["prefill"].sent_bytes + block * (len(prompt) % 8 > 0)
    assert (await idle(service))["prefill"].sent_bytes == more, "the decode process has all full blocks"


async def many_at_once(service, engine):
    """More than both caches hold, so that prompts wait for blocks of the decode process, and some are preempted."""
    asked = [
        request(bytes([40 + place % 3]) + TEXT[: 9 + 7 * (place % 9)], sampling)
        for place, sampling in enumerate(2 * list(SAMPLINGS.values()))
    ]
    found = await asyncio.gather(*(read(service, each) for each in asked))
    for ours, tokens in zip(asked, found, strict=True):
        theirs = request(ours.prompt, ours.sampling)
        engine.run([theirs])
        assert tokens == theirs.output and ours.finish is theirs.finish
    await idle(service)


async def what_can_never_run_is_refused(service):
    with pytest.raises(ValueError, match="need a cache of 1088 tokens; the decode side has 384"):
        await read(service, request(sampling=Sampling(max_tokens=1000)))
    with pytest.raises(ValueError, match="max_sequence = 256"):
        await read(service, request(sampling=Sampling(max_tokens=200)))
    with pytest.raises(ValueError, match="token 0 of the prompt is 256"):
        await read(service, request((256, 1)))
    with pytest.raises(GrammarError):
        await read(service, request(sampling=Sampling(grammar="start: (")))
    await idle(service)


async def a_reader_may_leave_at_any_time(service):
    for most in (1, 2, 5):
        found = await asyncio.gather(*(read(service, request(), most) for _ in range(3)))
        assert all(len(tokens) == most for tokens in found)
    leaving = [asyncio.create_task(read(service, request())) for _ in range(12)]
    for reader in leaving:
        await asyncio.sleep(0.001)
        reader.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    await idle(service)


async def a_slow_reader_is_waited_for(service, engine):
    """It is paused at `window` tokens, and gives its blocks to others."""
    slow, right = request(sampling=Sampling(max_tokens=60)), request(sampling=Sampling(max_tokens=60))
    engine.run([right])
    async with aclosing(service.generate(slow)) as tokens:
        first = await anext(tokens)
        async with asyncio.timeout(PATIENCE):
            while not (await service.states())["decode"].paused:
                await asyncio.sleep(0.01)
        assert len(slow.output) <= 2 * TINY.window
        await read(service, request())
        assert [first, *[token async for token in tokens]] == right.output
    await idle(service)


async def a_dead_side_is_replaced(service, engine, role):
    """Whoever is there ends, with all tokens or with an error; and then the service is as it was before.

    The caches have room for few of them, so some wait on the prefill process, unless readers are slow and make room.
    """
    before = service.restarts
    asked = [request(bytes([97 + place]) + TEXT[:50], Sampling(max_tokens=180)) for place in range(16)]
    reading = [asyncio.create_task(read(service, each)) for each in asked]
    while max(len(each.output) for each in asked) < 2:
        await asyncio.sleep(0.001)
    os.kill(service.pids[role], signal.SIGKILL)
    found = await asyncio.wait_for(asyncio.gather(*reading, return_exceptions=True), PATIENCE)
    lost = 0
    for ours, result in zip(asked, found, strict=True):
        right = request(ours.prompt, ours.sampling)
        engine.run([right])
        if isinstance(result, EngineStopped):
            assert f"the {role} process" in str(result) and ours.finish is Finish.ERROR
            assert ours.output == right.output[: len(ours.output)]
            lost += 1
        else:
            assert result == right.output
    assert lost or role == "prefill", "it may have handed all of them over by then"
    with suppress(EngineStopped):
        assert await read(service, request()), "either there is an error, or all is well"
    await service.wait_ready(PATIENCE)
    assert service.restarts == before + 1
    ours, right = request(), request()
    engine.run([right])
    assert await read(service, ours) == right.output
    await idle(service)


def folder_of(tmp_path, **sizes):
    torch.manual_seed(0)
    save_llama_folder(GPT(GPTConfig.tiny(**sizes)), tmp_path)
    return str(tmp_path)


@pytest.mark.slow
def test_processes_whose_caches_differ_are_refused_when_they_connect(tmp_path):
    other = EngineSpec(folder_of(tmp_path), blocks=48, block_size=16, threads=1, dtype="bfloat16")
    with pytest.raises(EngineStopped) as refused:
        run(anext(aiter_of(opened(TINY, other))))
    for words in (
        "the decode process refuses the prefill process: weights is '",
        "head_dim is 16 here and 24 there",
        "block_size is 16 here and 8 there",
        "dtype is 'bfloat16' here and 'float32' there: start both processes with the same model",
    ):
        assert words in str(refused.value)


async def aiter_of(manager):
    async with manager as value:
        yield value


@pytest.mark.slow
def test_a_model_that_does_not_load_is_named_at_once():
    with pytest.raises(EngineStopped, match="'nothing' is not a folder, a GGUF file, or one of"):
        run(anext(aiter_of(opened(TINY, EngineSpec("nothing")))))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"dtype": "bfloat16"}, {"quantization": "int8"}, {"quantization": "int4"}], ids=str
)
@pytest.mark.parametrize("handover", HANDOVERS)
def test_other_caches_and_weights_move_as_well(settings, handover):
    spec = EngineSpec("tiny", blocks=48, block_size=8, threads=1, token_budget=32, **settings)

    async def main():
        engine, _ = load_engine(spec, "")
        async with opened(spec, handover=handover) as service:
            for sampling in SAMPLINGS.values():
                ours, theirs = request(sampling=sampling), request(sampling=sampling)
                engine.run([theirs])
                assert await read(service, ours) == theirs.output
                states = await idle(service)
                if sampling is SAMPLINGS["greedy"]:
                    size = 2 if "dtype" in settings else 4
                    assert states["prefill"].sent_bytes == 12 * 8 * 2 * 2 * 24 * 2 * size, "12 blocks"

    run(main())


@pytest.mark.slow
def test_short_prompts_may_stay_on_the_decode_process():
    async def main():
        async with opened(local=lambda request: len(request.prompt) < 20) as service:
            engine, _ = load_engine(TINY, "")
            for prompt in (TEXT[:19], TEXT[:20]):
                ours, theirs = request(prompt), request(prompt)
                engine.run([theirs])
                assert await read(service, ours) == theirs.output
            states = await idle(service)
            assert states["prefill"].steps == 1 and states["decode"].steps == 20 + 19

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_side_that_is_stopped_is_replaced(role):
    """SIGSTOP: the process is there and says nothing, as when its machine hangs."""

    async def main():
        async with opened(answer_seconds=3.0) as service:
            reading = [asyncio.create_task(read(service, request())) for _ in range(4)]
            os.kill(service.pids[role], signal.SIGSTOP)
            await asyncio.wait_for(asyncio.gather(*reading, return_exceptions=True), PATIENCE)
            async with asyncio.timeout(PATIENCE):
                while not service.restarts:
                    await asyncio.sleep(0.05)
            await service.wait_ready(PATIENCE)
            assert await read(service, request())
            await idle(service)

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_deaths_at_random_moments(seed):
    """Readers come and go, and either process is killed again and again."""
    rng = random.Random(seed)
    engine, _ = load_engine(TINY, "")
    asked, found = [], []

    async def client(service, place):
        await asyncio.sleep(rng.random() * 6)
        prompt = bytes([65 + place % 5]) + TEXT[: rng.randrange(1, 80)]
        ours = request(prompt, rng.choice(list(SAMPLINGS.values())))
        most = rng.choice([None, None, None, 1, 3])
        asked.append(ours)
        try:
            found.append((ours, most, await read(service, ours, most)))
        except (EngineStopped, RequestFailed) as error:
            found.append((ours, most, error))

    async def main():
        async with opened(handover=HANDOVERS[seed % 3]) as service:
            clients = [asyncio.create_task(client(service, place)) for place in range(120)]
            for _ in range(3):
                await asyncio.sleep(rng.random() * 2)
                for role in rng.choice([["prefill"], ["decode"], ["prefill", "decode"]]):
                    with suppress(ProcessLookupError):
                        os.kill(service.pids[role], signal.SIGKILL)
                    await asyncio.sleep(rng.choice([0, 0, 0.01]))
            await asyncio.wait_for(asyncio.gather(*clients), 2 * PATIENCE)
            await service.wait_ready(PATIENCE)
            right = request()
            engine.run([right])
            assert await read(service, request()) == right.output
            await idle(service)

    run(main())
    assert len(found) == len(asked) == 120
    answers = 0
    for ours, most, result in found:
        right = request(ours.prompt, ours.sampling)
        engine.run([right])
        if isinstance(result, Exception):
            assert ours.output == right.output[: len(ours.output)]
        else:
            assert result == right.output[:most]
            answers += 1
    assert 0 < answers < 120
