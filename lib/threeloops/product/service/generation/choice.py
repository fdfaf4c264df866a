"""Generate one answer to one prompt."""

import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol

from threeloops.product.grammar import GrammarError
from threeloops.product.request import Finish, Request, Sampling
from threeloops.product.service.admission import Refused
from threeloops.product.service.engine import Supervisor
from threeloops.product.service.generation.job import Job
from threeloops.product.service.generation.reported import HeldReports, Reported, prompt_reports
from threeloops.product.service.generation.text_stream import TextStream
from threeloops.product.service.observability import RequestMetrics, ServiceMetrics

__all__ = ["Choice", "Piece"]


class Piece(NamedTuple):
    """The next part of the text of choice number `choice`.

    The last piece also has the reason why the text ended. `logprobs` are those of the piece's tokens, if the request
    asks for them.
    """

    choice: int
    text: str
    reason: str | None = None
    logprobs: tuple[Reported, ...] = ()


class _Cache(Protocol):
    """The part of a `ResponseCache` that a choice uses."""

    def key(self, model_version: str, prompt: Sequence[int], sampling: Sampling, also: str) -> str | None: ...
    async def get(self, key: str | None) -> bytes | None: ...
    async def put(self, key: str | None, answer: bytes) -> None: ...


class _Service(Protocol):
    """The part of the service that a choice uses."""

    metrics: ServiceMetrics

    @property
    def cache(self) -> _Cache | None: ...


class Choice:
    """Choice `index` of a job. The n answers to the first prompt come first, then those to the second."""

    def __init__(
        self, service: _Service, job: Job, index: int, request_id: str, first_token: Callable[[float], None]
    ) -> None:
        """Start the clock. `first_token` is called once, with the seconds that the first token took."""
        self.index = index
        self.tokens = self.cached_tokens = 0
        self._arrived = time.monotonic()
        self._first_token = first_token
        self.is_cached = False
        self.reason = "cancelled"
        self._service = service
        self._job = job
        self._prompt = job.prompts[index // job.asked.n]
        self._id = request_id if job.choices == 1 else f"{request_id}-{index}"
        self._key: str | None = None
        self._text = ""
        self._seen: RequestMetrics = service.metrics.started(len(self._prompt))

    def admitted(self) -> None:
        """Record that the choice has left the queue."""
        self._seen.admitted()

    def fail(self) -> None:
        """Record that the choice failed, unless it has already ended."""
        if self.reason == "cancelled":
            self.reason = "error"

    def left(self) -> None:
        """Record that the client no longer reads the choice."""
        self._seen.finished(self.reason)

    async def keep(self) -> None:
        """Store the complete text in the cache, for later requests that must get the same text."""
        if self._key is not None and self._service.cache is not None and not self.is_cached:
            answer = {"text": self._text, "reason": self.reason, "tokens": self.tokens}
            await self._service.cache.put(self._key, json.dumps(answer, ensure_ascii=False).encode())

    async def pieces(self, engine: Supervisor, job: Job) -> AsyncGenerator[Piece, None]:
        """Generate the text of the choice, piece by piece.

        The last piece, which may be empty, has the reason why the text ended. `job` was made for the model that the
        engine serves now, which may differ from the model at the time the request came.
        """
        self._job = job
        self._prompt = job.prompts[self.index // job.asked.n]
        request = self._request()
        self._key = self._cache_key(engine, request)
        try:
            echoed = job.echoed(self.index // job.asked.n)
            if (answer := await self._cached(self._key)) is not None:
                if echoed is not None:
                    yield Piece(self.index, echoed)
                yield Piece(self.index, answer["text"], self.reason)
                return
            parts: list[str] = []
            wants_logprobs = request.sampling.logprobs is not None
            begin = len(echoed or "")
            text = TextStream(job.tokenizer.decoder(continues=not job.is_chat), job.asked.stops)
            reports = HeldReports(begin)
            async with aclosing(engine.generate(request)) as tokens:
                async for token in tokens:
                    self.cached_tokens = request.cached_first or 0
                    if job.max_tokens:
                        self._note_token()
                    if echoed is not None:
                        yield Piece(self.index, echoed, None, self._of_prompt(request, echoed))
                        echoed = None
                    if not job.max_tokens:
                        continue  # the engine adds a token to every prompt, even if nobody asks for one
                    is_end = token in request.sampling.stop  # this token ends the text and is not part of it
                    place = begin + text.place(token)
                    given = "" if is_end else text.push((token,), may_stop=self.tokens > request.sampling.min_tokens)
                    ready: tuple[Reported, ...] = ()
                    if wants_logprobs and not (is_end and job.is_chat):
                        ready = reports.push(Reported(token, request.logprobs[self.tokens - 1], place), given)
                    if given:
                        parts.append(given)
                    if given or ready:
                        yield Piece(self.index, given, None, ready)
                    if text.stopped:
                        break
            parts.append(text.end())
            held = reports.end(parts[-1])
            is_over = text.stopped or (request.finish is Finish.STOP and job.max_tokens)
            self.reason = "stop" if is_over else "length"
        except GrammarError as error:
            self.reason = "error"
            field = job.asked.structure
            problem = "it cannot be followed any further" if self.tokens else "no answer can follow this form"
            raise Refused(400, "invalid_value", f"{field}: {problem}: {error}", param=field) from error
        except ValueError as error:  # the engine now serves another version, which cannot compute the request
            self.reason = "error"
            is_too_long = len(self._prompt) + job.max_tokens > engine.served.longest
            raise Refused(400, "context_length_exceeded" if is_too_long else "invalid_value", str(error)) from error
        except Exception:
            self.reason = "error"
            raise
        finally:
            if self.reason != "cancelled":  # why it is cancelled, `left` is told
                self._seen.finished(self.reason)
        self._text = "".join(parts)
        yield Piece(self.index, parts[-1], self.reason, held)

    def _of_prompt(self, request: Request, echoed: str) -> tuple[Reported, ...]:
        """Return the reports of the prompt's tokens, or none if they were not asked for."""
        if request.sampling.prompt_logprobs is None:
            return ()
        return prompt_reports(self._prompt, request.prompt_logprobs, echoed, self._job.tokenizer)

    def _request(self) -> Request:
        job = self._job
        answer = self.index % job.asked.n
        ends = job.tokenizer.end_tokens
        sampling = job.asked.sampling(max(1, job.max_tokens), ends, answer=answer, grammar=job.grammar)
        salt = job.asked.cache_salt or ""
        return Request(self._id, self._prompt, sampling, client=job.client.name, cache_salt=salt)

    def _note_token(self) -> None:
        self._seen.token()
        self.tokens += 1
        if self.tokens == 1:
            self._first_token(time.monotonic() - self._arrived)

    def _cache_key(self, engine: Supervisor, request: Request) -> str | None:
        """Return the key of the answer in the cache, or None if there is no cache or the answer must not be cached.

        An answer is not cached if it is drawn at random, if it has log-probabilities in addition to its text, or if its
        text is only the prompt.
        """
        job = self._job
        has_more = request.sampling.logprobs is not None or not job.max_tokens
        if self._service.cache is None or engine.model is None or has_more:
            return None
        also = json.dumps([job.asked.stops, job.asked.cache_salt, job.client.name, job.tokenizer.fingerprint])
        return self._service.cache.key(engine.model.fingerprint, self._prompt, request.sampling, also)

    async def _cached(self, key: str | None) -> dict[str, Any] | None:
        if key is None or self._service.cache is None or (entry := await self._service.cache.get(key)) is None:
            return None
        answer = json.loads(entry)
        self.tokens, self.cached_tokens = answer["tokens"], len(self._prompt)
        self.is_cached = True
        self.reason = answer["reason"]
        return answer
