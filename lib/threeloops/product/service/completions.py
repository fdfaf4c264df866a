"""Handle one request of a client, from its admission to the last byte of its answer.

It may ask for several choices: several answers, or answers to several prompts. They share one place in the queue, and
are generated at the same time.

The choices are cancelled when the client leaves, when the time is up, and when the service stops. Then the request
releases its place, its engine and its blocks at once. Headers are sent with the first text, so a refusal before that
still has a status. A later error is the last event of the stream.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from threeloops.product.service.admission import Admission, Refused
from threeloops.product.service.engine import Supervisor
from threeloops.product.service.generation import (
    DONE,
    Choice,
    Job,
    Piece,
    Reported,
    chat_logprobs,
    completion_logprobs,
    event,
    job_of,
)
from threeloops.product.service.http.errors import Refusal, error_json, refusal_of
from threeloops.product.service.http.limits import until_disconnected
from threeloops.product.service.models import RollingSwitch, Version
from threeloops.product.service.observability import ServiceMetrics, request_span
from threeloops.product.service.openai_protocol import usage
from threeloops.product.service.response_cache import ResponseCache
from threeloops.product.service.settings import Settings

__all__ = ["Answer", "Answers"]

_LAST_WORDS_SECONDS = 1.0
"""The time in which the event that says why a stream ends early may reach a slow client."""
_PLACE = "\0the text\0"
"""The placeholder of a text while the bytes around it are made, once per answer."""
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # NGINX passes each event on
]


class Answers(Protocol):
    """The parts of the service that an answer needs."""

    settings: Settings
    admission: Admission
    switch: RollingSwitch[Version, Supervisor]
    metrics: ServiceMetrics
    cache: ResponseCache | None
    open_answers: "set[Answer]"


class Answer(Response):
    """A response that generates itself: one JSON document, or a stream of events."""

    def __init__(self, service: Answers, job: Job) -> None:
        super().__init__()
        self._service = service
        self._job = job
        self._choices: list[Choice] = []
        self._version = ""
        self._started = False
        self._timeout: asyncio.Timeout | None = None
        """The time limit of the admitted request. Until it is admitted, admission has a limit of its own."""
        self._cut: Refused | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        job = self._job
        name = self._service.settings.name
        request_id = scope["state"]["request_id"]
        self._id = f"{'chatcmpl' if self._job.is_chat else 'cmpl'}-{request_id}"
        self._state = scope["state"]
        self._log = scope["state"]["log"]
        self._log |= {"client": job.client.name, "stream": job.asked.stream, "prompt_tokens": job.prompt_tokens}
        parent = dict(scope["headers"]).get(b"traceparent", b"").decode("latin-1")
        span = request_span(
            name, parent, request_id=request_id, prompt_tokens=job.prompt_tokens, max_tokens=job.max_tokens
        )
        self._service.open_answers.add(self)
        try:
            with span as self._span:
                self._log["trace_id"] = self._span.trace_id
                await until_disconnected(receive, self._answer(scope, receive, send))
        finally:
            self._service.open_answers.discard(self)

    def cut(self, refusal: Refused) -> None:
        """End it now, and tell the client why."""
        self._cut = self._cut or refusal
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        seconds = self._service.settings.request_seconds
        self._end = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout(0 if self._cut else None) as self._timeout:
                return await (self._stream(send) if self._job.asked.stream else self._whole(send))
        except TimeoutError:
            late = f"the answer was not complete within {seconds:g} s, which is this service's limit"
            refusal = self._cut or Refused(504, "deadline_exceeded", late)
        except Exception as error:
            refused = refusal_of(error)
            if refused is None:
                raise
            refusal = refused
        finally:
            self._timeout = None
        if not self._started:
            return await Refusal(refusal)(scope, receive, send)
        self._log["code"] = refusal.code
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await send({"type": "http.response.body", "body": event(error_json(refusal)), "more_body": False})
        return None

    async def _pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield texts of all choices as they become certain. A piece that is known to be the last comes once the place
        is free."""
        service = self._service
        self._choices = [
            Choice(service, self._job, index, self._id, self._note_first_token) for index in range(self._job.choices)
        ]
        async with AsyncExitStack() as stack:
            await self._take_place(stack)
            try:
                engine = await stack.enter_async_context(service.switch.lease())
                self._version = self._log["version"] = str(service.switch.current)
                job = self._job
                if engine.tokenizer.fingerprint != job.tokenizer.fingerprint:  # another version has come meanwhile
                    self._job = await job_of(job.asked, job.client, service.settings, engine.served)
                texts = [choice.pieces(engine, self._job) for choice in self._choices]
                pieces = texts[0] if len(texts) == 1 else _merged(texts)
                open_choices = len(texts)
                async for piece in await stack.enter_async_context(aclosing(pieces)):
                    open_choices -= piece.reason is not None
                    if not open_choices:
                        break
                    yield piece
            except Exception:
                for choice in self._choices:
                    choice.fail()
                raise
            finally:
                self._note_end()
        yield piece
        for choice in self._choices:
            await choice.keep()

    async def _take_place(self, stack: AsyncExitStack) -> None:
        arrived = time.monotonic()
        limit = self._service.settings.request_seconds
        self._span.event("queue")
        place = self._service.admission.admit(self._job.client, self._job.most_tokens, limit)
        try:
            await stack.enter_async_context(place)
        except asyncio.CancelledError:
            if not self._cut:  # the client has left; one that the service cuts is counted as refused
                self._note_end()
            raise
        finally:
            self._log["queue_seconds"] = round(time.monotonic() - arrived, 4)
        if self._timeout is not None and not self._cut:
            self._timeout.reschedule(self._end)
        for choice in self._choices:
            choice.admitted()
        self._span.event("prefill")

    def _note_first_token(self, seconds: float) -> None:
        if "ttft_seconds" not in self._log:
            self._span.event("decode")
            self._log["ttft_seconds"] = round(seconds, 4)

    def _note_end(self) -> None:
        """Note how the request ended. It is counted by this, and so it does not count as refused, whatever its client
        is told."""
        self._state["has_ended"] = True
        is_late = self._timeout is not None and self._timeout.expired() and not self._cut
        for choice in self._choices:
            if is_late:
                choice.fail()
            choice.left()
        reasons = {choice.reason for choice in self._choices}
        tokens = sum(choice.tokens for choice in self._choices)
        self._span.finished(reason := ",".join(sorted(reasons)), tokens)
        self._log |= {"finish_reason": reason, "completion_tokens": tokens}
        if any(choice.is_cached for choice in self._choices):
            self._log["cached"] = True

    async def _whole(self, send: Send) -> None:
        async with aclosing(self._pieces()) as pieces:
            parts = [piece async for piece in pieces]
        choices = []
        for index in range(self._job.choices):
            own = [part for part in parts if part.choice == index]
            text = "".join(part.text for part in own)
            message = {"message": {"role": "assistant", "content": text, "refusal": None}}
            content = message if self._job.is_chat else {"text": text}
            tokens = [token for part in own for token in part.logprobs]
            choices.append(_choice(index, content, own[-1].reason, self._logprobs(tokens)))
        body = _json({**self._head("chat.completion"), "choices": choices, "usage": self._usage()})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._start(send, headers)
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _stream(self, send: Send) -> None:
        options = self._job.asked.stream_options
        has_usage = options is not None and options.include_usage
        is_counted = has_usage and options is not None and options.continuous_usage_stats
        head: dict[str, Any] = {}
        around: dict[int, list[bytes]] = {}  # what stands around each text of a choice: only the text is encoded anew
        async with aclosing(self._pieces()) as pieces:
            async for index, text, reason, tokens in pieces:
                parts = []
                if not self._started:
                    head = self._head("chat.completion.chunk") | ({"usage": None} if has_usage else {})
                    await self._start(send, _STREAM_HEADERS)
                if is_counted:
                    head["usage"] = self._usage()
                if index not in around:
                    around[index] = self._chunk(head, index, self._said(_PLACE)).split(json.dumps(_PLACE).encode())
                    if self._job.is_chat:
                        parts.append(self._chunk(head, index, {"delta": {"role": "assistant", "content": ""}}))
                if is_counted or tokens:
                    logprobs = self._logprobs(tokens) if tokens else None
                    parts.append(self._chunk(head, index, self._said(text), None, logprobs))
                elif text:
                    before, after = around[index]
                    parts.append(before + json.dumps(text, ensure_ascii=False).encode() + after)
                if reason is not None:
                    parts.append(self._chunk(head, index, {"delta": {}} if self._job.is_chat else {"text": ""}, reason))
                await send({"type": "http.response.body", "body": b"".join(parts), "more_body": True})
        last = event(_json({**head, "choices": [], "usage": self._usage()})) if has_usage else b""
        await send({"type": "http.response.body", "body": last + DONE, "more_body": False})

    async def _start(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._started = True
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    def _head(self, chat: str) -> dict[str, Any]:
        kind = chat if self._job.is_chat else "text_completion"
        return {
            "id": self._id,
            "object": kind,
            "created": self._job.created,
            "model": self._service.settings.name,
            "system_fingerprint": self._version,
        }

    def _said(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}} if self._job.is_chat else {"text": text}

    def _logprobs(self, tokens: Sequence[Reported]) -> dict[str, Any] | None:
        """Return the tokens' log-probabilities, or None if the request did not ask for them."""
        if (asked := self._job.asked.most_logprobs) is None:
            return None
        tokenizer = self._job.tokenizer
        return chat_logprobs(tokens, tokenizer) if self._job.is_chat else completion_logprobs(tokens, tokenizer, asked)

    def _chunk(
        self,
        head: dict[str, Any],
        index: int,
        content: dict[str, Any],
        reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> bytes:
        return event(_json({**head, "choices": [_choice(index, content, reason, logprobs)]}))

    def _usage(self) -> dict[str, Any]:
        tokens = sum(choice.tokens for choice in self._choices)
        cached = sum(choice.cached_tokens for choice in self._choices[:: self._job.asked.n])  # the first of each prompt
        return usage(self._job.prompt_tokens, tokens, cached)


async def _merged(texts: Sequence[AsyncGenerator[Piece, None]]) -> AsyncGenerator[Piece, None]:
    """The pieces of all of them as they come, all at the same time. If one fails, the others are closed."""
    ready: asyncio.Queue[Piece | Exception | None] = asyncio.Queue(len(texts))

    async def read(text: AsyncGenerator[Piece, None]) -> None:
        try:
            async with aclosing(text):
                async for piece in text:
                    await ready.put(piece)
            await ready.put(None)
        except Exception as error:
            await ready.put(error)

    tasks = [asyncio.create_task(read(text)) for text in texts]
    try:
        reading = len(tasks)
        while reading:
            match await ready.get():
                case None:
                    reading -= 1
                case Exception() as error:
                    raise error
                case piece:
                    yield piece
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _choice(
    index: int, content: dict[str, Any], reason: str | None, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": index, **content, "finish_reason": reason, "logprobs": logprobs}


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
