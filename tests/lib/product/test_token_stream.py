"""The tokens of one request: how a reader gets them, how a stream ends, and when its request is paused."""

import asyncio

import pytest
from threeloops.product.request import Request, RequestFailed, Sampling
from threeloops.product.token_stream import Backlog, TokenStream

PATIENCE = 30  # seconds; only a hang takes them


def request():
    return Request("r", (1,), Sampling(max_tokens=100))


def write(stream, *tokens, error=None, done=False):
    stream.request.output.extend(tokens)
    stream.available = len(stream.request.output)
    stream.error = error
    stream.done = done
    stream.changed.set()


def run(coroutine):
    asyncio.run(asyncio.wait_for(coroutine, PATIENCE))


def test_a_reader_gets_every_token_once_and_then_the_end():
    async def main():
        stream = TokenStream(request(), window=8)
        reader = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        assert not reader.done(), "there is no token yet"
        write(stream, 5, 6)
        assert [await reader, await anext(stream)] == [5, 6]
        write(stream, 7, done=True)
        assert [token async for token in stream] == [7]
        assert stream.read == 3

    run(main())


def test_an_error_comes_after_the_last_token_and_is_raised_as_it_is():
    async def main():
        stream = TokenStream(request(), window=8)
        error = RequestFailed("not finite")
        write(stream, 5, 6, error=error, done=True)
        assert [await anext(stream), await anext(stream)] == [5, 6]
        with pytest.raises(RequestFailed) as raised:
            await anext(stream)
        assert raised.value is error

    run(main())


@pytest.mark.parametrize(("window", "resumed_at"), [(1, 1), (4, 2), (5, 3)], ids="window {0}".format)
def test_a_request_is_paused_at_its_window_and_resumed_when_half_is_read(window, resumed_at):
    backlog = Backlog(request(), window)
    calls = []
    backlog.available = window - 1
    backlog.pause_if_full(calls.append)
    assert calls == [] and not backlog.paused
    backlog.available = window
    backlog.pause_if_full(calls.append)
    assert calls == [backlog.request] and backlog.paused
    for backlog.read in range(1, window + 1):
        backlog.resume_if_read(lambda _: calls.append(backlog.read))
    assert calls == [backlog.request, resumed_at], "it is resumed once"


def test_a_pause_that_begins_after_the_last_token_was_read_ends_when_the_reader_wakes():
    async def main():
        resumed = []
        stream = TokenStream(request(), window=2, resume=resumed.append)
        write(stream, 5, 6)
        assert [await anext(stream), await anext(stream)] == [5, 6] and not resumed
        stream.paused = True  # the engine's thread decided it while the two were being read
        stream.changed.set()
        reader = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        assert resumed == [stream.request]
        write(stream, 7)
        assert await reader == 7

    run(main())
