"""One request of a client, from its admission to the last byte of its answer.

Its tokens are cancelled when the client goes away, when its time is up, and when the service stops; then it gives its
place, its engine and its blocks back at once. Before the first text there are no headers either, so a refusal still has
a status; after that it is the last event of the stream.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from threeloops.product.request import Finish, Request
from threeloops.product.service.admission import Admission, Client, Refused
from threeloops.product.service.engine import Supervisor
from threeloops.product.service.http.errors import Refusal, error_json, refusal_of
from threeloops.product.service.http.limits import until_disconnected
from threeloops.product.service.models import RollingSwitch, Version
from threeloops.product.service.observability import RequestMetrics, ServiceMetrics, request_span
from threeloops.product.service.openai_protocol import END_OF_TEXT, ChatRequest, CompletionRequest, usage
from threeloops.product.service.response_cache import ResponseCache
from threeloops.product.service.settings import Settings
from threeloops.product.service.text_stream import DONE, TextStream, event

__all__ = ["Answer", "Answers", "job_of"]

_LAST_WORDS_SECONDS = 1.0
"""For the event that says why a stream ends early to reach a client that may not be reading."""
_PLACE = "\0the text\0"
"""Stands for it where the bytes around it are made, once per answer."""
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # NGINX passes each event on
]


@dataclass(frozen=True)
class _Job:
    """What was asked for, checked."""

    asked: CompletionRequest | ChatRequest
    client: Client
    prompt: tuple[int, ...]
    max_tokens: int
    created: int = field(default_factory=lambda: int(time.time()))


class Answers(Protocol):
    """What an answer needs of the service."""

    settings: Settings
    admission: Admission
    switch: RollingSwitch[Version, Supervisor]
    metrics: ServiceMetrics
    cache: ResponseCache | None
    open_answers: "set[Answer]"


def job_of(asked: CompletionRequest | ChatRequest, client: Client, settings: Settings, longest: int) -> _Job:
    """Raises Refused for what can never be answered. `longest` is how many tokens a request may have in all."""
    if asked.model != settings.name:
        raise Refused(
            404, "model_not_found", f"there is no model {asked.model!r}: this is {settings.name!r}", param="model"
        )
    name = "prompt" if isinstance(asked, CompletionRequest) else "messages"
    try:
        prompt = asked.tokens()
    except ValueError as error:
        raise Refused(400, "invalid_value", f"{name}: {error}", param=name) from None
    wanted = asked.max_tokens
    if isinstance(asked, ChatRequest) and asked.max_completion_tokens is not None:
        wanted = asked.max_completion_tokens
    if wanted is not None and wanted > settings.largest_max_tokens:
        raise Refused(
            400,
            "invalid_value",
            f"max_tokens: {wanted} is more than this service gives, {settings.largest_max_tokens}",
            param="max_tokens",
        )
    room = longest - len(prompt)
    if room < (wanted or 1):
        raise Refused(
            400,
            "context_length_exceeded",
            f"{name} ({len(prompt)} tokens) and max_tokens ({wanted or 1}) together are more than this model's "
            f"{longest} tokens: shorten the {name}, or lower max_tokens",
            param=name,
        )
    return _Job(asked, client, prompt, wanted or min(settings.default_max_tokens, settings.largest_max_tokens, room))


class Answer(Response):
    """A response that generates itself: one JSON document, or a stream of events."""

    def __init__(self, service: Answers, job: _Job) -> None:
        super().__init__()
        self._service, self._job = service, job
        self._tokens = self._cached_tokens = 0
        self._version = ""
        self._started = False
        self._timeout: asyncio.Timeout | None = None
        """It runs once the request is admitted: until then admission has a limit of its own."""
        self._cut: Refused | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        job, name = self._job, self._service.settings.name
        request_id = scope["state"]["request_id"]
        self._id = f"{'chatcmpl' if self._is_chat else 'cmpl'}-{request_id}"
        self._log = scope["state"]["log"]
        self._log |= {"client": job.client.name, "stream": job.asked.stream, "prompt_tokens": len(job.prompt)}
        parent = dict(scope["headers"]).get(b"traceparent", b"").decode("latin-1")
        span = request_span(
            name, parent, request_id=request_id, prompt_tokens=len(job.prompt), max_tokens=job.max_tokens
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

    @property
    def _is_chat(self) -> bool:
        return isinstance(self._job.asked, ChatRequest)

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
            known = refusal_of(error)
            if known is None:
                raise
            refusal = known
        finally:
            self._timeout = None
        if not self._started:
            return await Refusal(refusal)(scope, receive, send)
        self._log["code"] = refusal.code
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await send({"type": "http.response.body", "body": event(error_json(refusal)), "more_body": False})
        return None

    async def _pieces(self) -> AsyncGenerator[tuple[str, str | None], None]:
        """Texts as they become certain, each with None; the last, which may be empty, with the reason of the end."""
        job, service = self._job, self._service
        seen, arrived = service.metrics.started(len(job.prompt)), time.monotonic()
        text, parts, reason = TextStream(job.asked.stops), [], "cancelled"
        self._span.event("queue")
        limit = service.settings.request_seconds
        async with AsyncExitStack() as stack:
            try:
                place = service.admission.admit(job.client, len(job.prompt) + job.max_tokens, limit)
                await stack.enter_async_context(place)
            except asyncio.CancelledError:
                if not self._cut:  # the client has left; one that the service cuts is counted as refused
                    self._log["queue_seconds"] = round(time.monotonic() - arrived, 4)
                    self._log["finish_reason"] = reason
                    seen.finished(reason)
                raise
            if self._timeout is not None and not self._cut:
                self._timeout.reschedule(self._end)
            seen.admitted()
            self._log["queue_seconds"] = round(time.monotonic() - arrived, 4)
            self._span.event("prefill")
            try:
                engine = await stack.enter_async_context(service.switch.lease())
                self._version = self._log["version"] = str(service.switch.current)
                key = self._cache_key(engine)
                if (known := await self._cached(key)) is not None:
                    reason = known["reason"]
                    yield known["text"], reason
                    return
                request = self._request()
                tokens = await stack.enter_async_context(aclosing(engine.generate(request)))
                async for token in tokens:
                    self._note_token(seen, arrived)
                    if token == END_OF_TEXT and token in request.sampling.stop:
                        continue  # it ends the text and is not in it
                    if given := text.push((token,)):
                        parts.append(given)
                        yield given, None
                    if text.stopped:
                        break
                parts.append(text.end())
                reason = "stop" if text.stopped or request.finish is Finish.STOP else "length"
                self._cached_tokens = min(request.cached, len(job.prompt))
            except ValueError as error:  # the engine's: a version with less room has come meanwhile
                reason = "error"
                raise Refused(400, "context_length_exceeded", str(error)) from error
            except Exception:
                reason = "error"
                raise
            finally:
                seen.finished(reason)
                self._span.finished(reason, self._tokens)
                self._log |= {"finish_reason": reason, "completion_tokens": self._tokens}
        yield parts[-1], reason
        if key is not None and service.cache is not None:
            answer = {"text": "".join(parts), "reason": reason, "tokens": self._tokens}
            await service.cache.put(key, _json(answer))

    def _request(self) -> Request:
        job = self._job
        sampling, salt = job.asked.sampling(job.max_tokens), job.asked.cache_salt or ""
        return Request(self._id, job.prompt, sampling, client=job.client.name, cache_salt=salt)

    def _note_token(self, seen: RequestMetrics, arrived: float) -> None:
        seen.token()
        self._tokens += 1
        if self._tokens == 1:
            self._span.event("decode")
            self._log["ttft_seconds"] = round(time.monotonic() - arrived, 4)

    def _cache_key(self, engine: Supervisor) -> str | None:
        """None without a cache, and for an answer that depends on chance."""
        if self._service.cache is None or engine.model is None:
            return None
        job = self._job
        also = json.dumps([job.asked.stops, job.asked.cache_salt, job.client.name])
        return ResponseCache.key(engine.model.fingerprint, job.prompt, job.asked.sampling(job.max_tokens), also)

    async def _cached(self, key: str | None) -> dict[str, Any] | None:
        if key is None or self._service.cache is None or (found := await self._service.cache.get(key)) is None:
            return None
        known = json.loads(found)
        self._tokens, self._cached_tokens = known["tokens"], len(self._job.prompt)
        self._log["cached"] = True
        return known

    async def _whole(self, send: Send) -> None:
        async with aclosing(self._pieces()) as pieces:
            parts = [piece async for piece in pieces]
        text, (_, reason) = "".join(text for text, _ in parts), parts[-1]
        said = {"message": {"role": "assistant", "content": text, "refusal": None}} if self._is_chat else {"text": text}
        choice = {"index": 0, **said, "finish_reason": reason, "logprobs": None}
        body = _json({**self._head("chat.completion"), "choices": [choice], "usage": self._usage()})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._start(send, headers)
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _stream(self, send: Send) -> None:
        options = self._job.asked.stream_options
        has_usage = options is not None and options.include_usage
        is_counted = has_usage and options is not None and options.continuous_usage_stats
        head: dict[str, Any] = {}
        before = after = b""  # what stands around the text of every event: only the text is encoded for each
        async with aclosing(self._pieces()) as pieces:
            async for text, reason in pieces:
                parts = []
                if not self._started:
                    head = self._head("chat.completion.chunk") | ({"usage": None} if has_usage else {})
                    said = {"delta": {"content": _PLACE}} if self._is_chat else {"text": _PLACE}
                    before, after = self._chunk(head, said).split(json.dumps(_PLACE).encode())
                    await self._start(send, _STREAM_HEADERS)
                    if self._is_chat:
                        parts.append(self._chunk(head, {"delta": {"role": "assistant", "content": ""}}))
                if is_counted:
                    head["usage"] = self._usage()
                    before, after = self._chunk(head, said).split(json.dumps(_PLACE).encode())
                if text:
                    parts.append(before + json.dumps(text, ensure_ascii=False).encode() + after)
                if reason is not None:
                    parts.append(self._chunk(head, {"delta": {}} if self._is_chat else {"text": ""}, reason))
                await send({"type": "http.response.body", "body": b"".join(parts), "more_body": True})
        last = event(_json({**head, "choices": [], "usage": self._usage()})) if has_usage else b""
        await send({"type": "http.response.body", "body": last + DONE, "more_body": False})

    async def _start(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._started = True
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    def _head(self, chat: str) -> dict[str, Any]:
        kind = chat if self._is_chat else "text_completion"
        return {
            "id": self._id,
            "object": kind,
            "created": self._job.created,
            "model": self._service.settings.name,
            "system_fingerprint": self._version,
        }

    def _chunk(self, head: dict[str, Any], said: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, **said, "finish_reason": reason, "logprobs": None}
        return event(_json({**head, "choices": [choice]}))

    def _usage(self) -> dict[str, Any]:
        return usage(len(self._job.prompt), self._tokens, self._cached_tokens)


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
