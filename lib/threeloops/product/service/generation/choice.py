"""One answer to one prompt, while it is generated."""

import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol

from threeloops.product.request import Finish, Request, Sampling
from threeloops.product.service.admission import Refused
from threeloops.product.service.engine import Supervisor
from threeloops.product.service.generation.job import Job
from threeloops.product.service.generation.reported import Reported
from threeloops.product.service.generation.text_stream import TextStream
from threeloops.product.service.observability import RequestMetrics, ServiceMetrics

__all__ = ["Choice", "Piece"]


class Piece(NamedTuple):
    """Text of choice `choice` that is certain now, and the reason of its end in the last one. `logprobs` are of its
    tokens, if the request asks for them."""

    choice: int
    text: str
    reason: str | None = None
    logprobs: tuple[Reported, ...] = ()


class _Cache(Protocol):
    """A `ResponseCache`."""

    def key(self, model_version: str, prompt: Sequence[int], sampling: Sampling, also: str) -> str | None: ...
    async def get(self, key: str | None) -> bytes | None: ...
    async def put(self, key: str | None, answer: bytes) -> None: ...


class _Service(Protocol):
    metrics: ServiceMetrics

    @property
    def cache(self) -> _Cache | None: ...


class Choice:
    """Choice `index` of a job: of the n answers to the first prompt, then of those to the second."""

    def __init__(
        self, service: _Service, job: Job, index: int, request_id: str, first_token: Callable[[float], None]
    ) -> None:
        """`first_token` is told, once, how many seconds the first token took."""
        self.index = index
        self.tokens = self.cached_tokens = 0
        self._arrived, self._first_token = time.monotonic(), first_token
        self.is_cached = False
        self.reason = "cancelled"
        self._service, self._job = service, job
        self._prompt = job.prompts[index // job.asked.n]
        self._id = request_id if job.choices == 1 else f"{request_id}-{index}"
        self._key: str | None = None
        self._text = ""
        self._seen: RequestMetrics = service.metrics.started(len(self._prompt))

    def admitted(self) -> None:
        """It has left the queue."""
        self._seen.admitted()

    def fail(self) -> None:
        """It cannot go on. If it has ended, it stays as it is."""
        if self.reason == "cancelled":
            self.reason = "error"

    def left(self) -> None:
        """Nobody reads it any further."""
        self._seen.finished(self.reason)

    async def keep(self) -> None:
        """Store its text, once it is complete, for the next request that must get the same."""
        if self._key is not None and self._service.cache is not None and not self.is_cached:
            answer = {"text": self._text, "reason": self.reason, "tokens": self.tokens}
            await self._service.cache.put(self._key, json.dumps(answer, ensure_ascii=False).encode())

    async def pieces(self, engine: Supervisor, job: Job) -> AsyncGenerator[Piece, None]:
        """Its text piece by piece. The last piece, which may be empty, has the reason of the end. `job` is for the
        engine's model, which may be another than when the request came."""
        self._job, self._prompt = job, job.prompts[self.index // job.asked.n]
        request = self._request()
        self._key = self._cache_key(engine, request)
        try:
            if (echoed := job.echoed(self.index // job.asked.n)) is not None:
                yield Piece(self.index, echoed)
            if (known := await self._cached(self._key)) is not None:
                yield Piece(self.index, known["text"], self.reason)
                return
            parts: list[str] = []
            wants_logprobs = request.sampling.logprobs is not None
            text = TextStream(job.tokenizer.decoder(continues=not job.is_chat), job.asked.stops)
            async with aclosing(engine.generate(request)) as tokens:
                async for token in tokens:
                    self._note_token()
                    self.cached_tokens = request.cached_first or 0
                    if token in request.sampling.stop:
                        continue  # it ends the text and is not in it
                    place = text.place(token)
                    given = text.push((token,), may_stop=self.tokens > request.sampling.min_tokens)
                    if given:
                        parts.append(given)
                    if wants_logprobs:
                        reported = Reported(token, request.logprobs[self.tokens - 1], place)
                        yield Piece(self.index, given, None, (reported,))
                    elif given:
                        yield Piece(self.index, given)
                    if text.stopped:
                        break
            parts.append(text.end())
            self.reason = "stop" if text.stopped or request.finish is Finish.STOP else "length"
        except ValueError as error:  # the engine's: a version with less room has come meanwhile
            self.reason = "error"
            raise Refused(400, "context_length_exceeded", str(error)) from error
        except Exception:
            self.reason = "error"
            raise
        finally:
            if self.reason != "cancelled":  # why it is cancelled, `left` is told
                self._seen.finished(self.reason)
        self._text = "".join(parts)
        yield Piece(self.index, parts[-1], self.reason)

    def _request(self) -> Request:
        job = self._job
        answer, ends = self.index % job.asked.n, job.tokenizer.end_tokens
        sampling = job.asked.sampling(job.max_tokens, ends, answer=answer, grammar=job.grammar)
        salt = job.asked.cache_salt or ""
        return Request(self._id, self._prompt, sampling, client=job.client.name, cache_salt=salt)

    def _note_token(self) -> None:
        self._seen.token()
        self.tokens += 1
        if self.tokens == 1:
            self._first_token(time.monotonic() - self._arrived)

    def _cache_key(self, engine: Supervisor, request: Request) -> str | None:
        """None without a cache, and for an answer that depends on chance or has more to it than its text."""
        if self._service.cache is None or engine.model is None or request.sampling.logprobs is not None:
            return None
        job = self._job
        also = json.dumps([job.asked.stops, job.asked.cache_salt, job.client.name, job.tokenizer.fingerprint])
        return self._service.cache.key(engine.model.fingerprint, self._prompt, request.sampling, also)

    async def _cached(self, key: str | None) -> dict[str, Any] | None:
        if key is None or self._service.cache is None or (found := await self._service.cache.get(key)) is None:
            return None
        known = json.loads(found)
        self.tokens, self.cached_tokens = known["tokens"], len(self._prompt)
        self.is_cached, self.reason = True, known["reason"]
        return known
