"""Clients that send slowly, too much, or what is no HTTP, and those that do not read: on a small application."""

import asyncio
import json
import logging
import socket
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from threeloops.product.service.admission import Refused
from threeloops.product.service.http.limits import BoundedRequests, until_disconnected
from threeloops.product.service.http.observed import Observed
from threeloops.product.service.http.protocol import BoundedProtocol

PATIENCE = 10
BODY = 1000


class Application:
    """Echoes the size of a body; /forever waits until its client goes away; /endless sends without end; /fail fails."""

    def __init__(self):
        self.entered, self.cancelled = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope, receive, send):
        match scope["path"]:
            case "/forever":
                await until_disconnected(receive, self._forever())
            case "/endless":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await until_disconnected(receive, self._endless(send))
            case "/fail":
                raise ValueError("a secret")
            case "/large":
                await PlainTextResponse("x" * 60_000)(scope, receive, send)
            case _:
                body = (await receive())["body"]
                await PlainTextResponse(str(len(body)))(scope, receive, send)

    async def _forever(self):
        self.entered.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.cancelled.set()

    async def _endless(self, send):
        try:
            while True:
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
                await asyncio.sleep(0)  # to a client that has gone, `send` returns at once
        finally:
            self.cancelled.set()


def check(scope):
    if scope["path"] == "/locked":
        raise Refused(401, "invalid_api_key", "no API key")


@asynccontextmanager
async def serving(header_seconds=PATIENCE, body_seconds=PATIENCE, stall_seconds=PATIENCE, connections=1000, idle=5):
    application, codes = Application(), []
    app = Observed(BoundedRequests(application, BODY, body_seconds, check), codes.append)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    protocol = BoundedProtocol.within(header_seconds, stall_seconds, connections)
    config = uvicorn.Config(
        app, http=protocol, ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1,
        timeout_keep_alive=idle,
    )  # fmt: skip
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve([listener]))
    while not server.started:
        await asyncio.sleep(0)
    application.port, application.codes = listener.getsockname()[1], codes
    application.connections = server.server_state.connections
    try:
        yield application
    finally:
        server.should_exit = True
        await task


async def answer(port, *pieces, is_last=True):
    """Send the pieces and read until the server hangs up, or one answer: (status, headers, body)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.001)
        if is_last:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lines = head.lower().splitlines()
            headers = dict(line.split(": ", 1) for line in lines[1:] if line)
            return int(head.split()[1]), headers, await reader.readexactly(int(headers["content-length"]))
        return None
    finally:
        writer.transport.abort()


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, PATIENCE))


def code_of(body):
    return json.loads(body)["error"]["code"]


def test_a_whole_body_passes_whatever_way_it_comes():
    async def main():
        async with serving() as app:
            head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 7\r\n\r\n"
            assert (await answer(app.port, head + b"1234567"))[2] == b"7"
            assert (await answer(app.port, *(bytes([byte]) for byte in head), b"123", b"4567"))[2] == b"7"
            chunked = (
                b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
            )
            assert (await answer(app.port, chunked))[2] == b"5"
            assert (await answer(app.port, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"))[2] == b"0"

    run(main())


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_above_the_limit_is_a_413_before_it_is_all_here(is_chunked):
    async def main():
        async with serving() as app:
            if is_chunked:
                head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
                pieces = [head, *[b"190\r\n" + b"x" * 400 + b"\r\n"] * 3, b"0\r\n\r\n"]
            else:
                pieces = [b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1001\r\n\r\n", b"x" * 1001]
            status, headers, body = await answer(app.port, *pieces)
            assert (status, code_of(body), headers["connection"]) == (413, "request_too_large", "close")
            assert app.codes == ["request_too_large"]

    run(main())


def test_a_head_that_comes_byte_by_byte_is_a_408():
    async def main():
        async with serving(header_seconds=0.05) as app:
            status, headers, body = await answer(app.port, b"GET / HT")
            assert (status, code_of(body), headers["connection"]) == (408, "header_timeout", "close")
            assert (await answer(app.port))[0] == 408, "a connection that says nothing is none either"

    run(main())


def test_the_head_of_a_second_request_has_a_limit_too_and_a_pause_between_two_does_not_count():
    async def main():
        async with serving(header_seconds=0.05) as app:
            reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
            for _ in range(2):
                writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(1)
                with pytest.raises(TimeoutError):  # longer than a head may take
                    await asyncio.wait_for(reader.read(1), 0.1)
            writer.write(b"G")
            assert b" 408 " in await reader.readuntil(b"\r\n\r\n")
            writer.close()

    run(main())


def test_a_body_that_comes_byte_by_byte_is_a_408():
    async def main():
        async with serving(body_seconds=0.05) as app:
            status, headers, body = await answer(app.port, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nab")
            assert (status, code_of(body), headers["connection"]) == (408, "body_timeout", "close")

    run(main())


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_http_is_a_400_in_the_same_format(sent):
    async def main():
        async with serving() as app:
            status, headers, body = await answer(app.port, sent)
            assert (status, code_of(body), headers["content-type"]) == (400, "bad_request", "application/json")

    run(main())


def test_work_ends_with_its_client():
    async def main():
        async with serving() as app:
            await answer(app.port, b"GET /forever HTTP/1.1\r\nhost: x\r\n\r\n", is_last=False)
            await app.cancelled.wait()

    run(main())


def test_a_reader_that_stands_still_is_cut_off():
    async def main():
        async with serving(stall_seconds=0.05) as app:
            client = socket.create_connection(("127.0.0.1", app.port))
            client.sendall(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n")
            await app.cancelled.wait()
            client.close()

    run(main())


@pytest.mark.parametrize("close", [b"", b"connection: close\r\n"])
def test_a_connection_that_was_closed_does_not_stay_for_a_client_that_does_not_read(close):
    """Its answer is too short to be waited for: no write is paused, and it still has to leave."""

    async def main():
        async with serving(stall_seconds=0.05, idle=0.01) as app:
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(("127.0.0.1", app.port))
            with client:
                client.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n" + close + b"\r\n")
                await until(lambda: app.connections)
                await until(lambda: not app.connections)

    run(main())


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def test_more_connections_than_the_limit_are_told_so_and_closed():
    async def main():
        async with serving(connections=2) as app:
            open_ones = [await asyncio.open_connection("127.0.0.1", app.port) for _ in range(2)]
            await until(lambda: len(app.connections) == 2)
            status, headers, body = await answer(app.port)
            assert (status, code_of(body), headers["connection"]) == (503, "too_many_connections", "close")
            assert int(headers["retry-after"]) >= 1
            open_ones.pop()[1].close()
            await until(lambda: len(app.connections) == 1)
            assert (await answer(app.port, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"))[0] == 200
            open_ones.pop()[1].close()

    run(main())


@pytest.mark.parametrize("later", [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"x" * 300_000])
def test_what_a_client_sends_before_its_answer_does_not_hide_that_it_goes_away(later):
    async def main():
        async with serving() as app:
            _, writer = await asyncio.open_connection("127.0.0.1", app.port)
            writer.write(b"GET /forever HTTP/1.1\r\nhost: x\r\n\r\n")
            await app.entered.wait()
            writer.write(later)
            await writer.drain()
            await asyncio.sleep(0.02)  # so that it is read apart from the end
            writer.transport.abort()
            await app.cancelled.wait()

    run(main())


def test_requests_that_are_sent_ahead_are_answered_in_turn():
    async def main():
        async with serving() as app:
            reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
            request = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"
            for piece in (request[:5], request[5:] + request + request[:-1], request[-1:]):
                writer.write(piece)
                await asyncio.sleep(0.001)
            for _ in range(3):
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(1) == b"3"
            writer.close()

    run(main())


def test_a_head_that_is_too_long_is_a_431():
    async def main():
        async with serving() as app:
            status, headers, body = await answer(app.port, b"GET / HTTP/1.1\r\nx: " + b"x" * 20_000)
            assert (status, code_of(body), headers["connection"]) == (431, "header_too_large", "close")

    run(main())


def test_who_has_no_key_is_refused_before_the_body_is_here():
    async def main():
        async with serving() as app:
            for length in (7, 10**9):
                head = b"POST /locked HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % length
                status, headers, body = await answer(app.port, head)
                assert (status, code_of(body), headers["connection"]) == (401, "invalid_api_key", "close")
            status, headers, body = await answer(app.port, head[:-2] + b"expect: 100-continue\r\n\r\n")
            assert status == 401, "it was told to send its body"
            assert "connection" not in (await answer(app.port, b"GET /locked HTTP/1.1\r\nhost: x\r\n\r\n"))[1]

    run(main())


def test_a_body_that_is_announced_as_too_large_is_not_asked_for():
    async def main():
        async with serving() as app:
            head = b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n"
            assert (await answer(app.port, head % (BODY + 1)))[0] == 413
            reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
            writer.write(head % BODY)
            assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
            writer.close()

    run(main())


def test_a_request_that_the_shutdown_cancels_is_told_so_in_the_same_format():
    async def main():
        async def never(*_):
            await asyncio.get_running_loop().create_future()

        for is_started in (False, True):
            sent = []

            async def send(message, sent=sent):
                sent.append(message)

            async def app(scope, receive, send, is_started=is_started):
                if is_started:
                    await send({"type": "http.response.start", "status": 200, "headers": []})
                await never()

            scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
            task = asyncio.create_task(Observed(app, lambda code: None)(scope, never, send))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            if is_started:
                assert task.cancelled() and len(sent) == 1
            else:
                assert sent[0]["status"] == 503 and code_of(sent[1]["body"]) == "draining"

    run(main())


def test_each_request_is_a_line_with_its_id_and_a_failure_names_no_message(caplog):
    async def main():
        async with serving() as app:
            await answer(app.port, b"GET / HTTP/1.1\r\nhost: x\r\nx-request-id: my-id\r\n\r\n")
            assert (await answer(app.port, b"GET /fail HTTP/1.1\r\nhost: x\r\n\r\n", is_last=False)) is None

    with caplog.at_level(logging.DEBUG, "threeloops"):
        run(main())
    lines = [record for record in caplog.records if record.name.endswith("observed")]
    assert (lines[0].request_id, lines[0].status, lines[0].path) == ("my-id", 200, "/")


def test_work_that_raises_or_is_cancelled_leaves_no_task():
    async def main():
        async def never():
            await asyncio.get_running_loop().create_future()

        async def fails():
            raise KeyError("x")

        before = asyncio.all_tasks()
        with pytest.raises(KeyError):
            await until_disconnected(never, fails())
        task = asyncio.create_task(until_disconnected(never, never()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == before

    run(main())
