"""The engine's process: it loads a model, then computes what the front asks for, until the front is gone.

Standard input is its end of the socket pair. A thread listens. Between two steps the main thread handles the received
messages, and it sends a step's results in one write, so communication adds almost nothing to a step. The process ends
when the socket closes, so it cannot outlive the front.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from threeloops.product.batching import Engine
from threeloops.product.request import Batch, Request, TokenLogprobs
from threeloops.product.service.engine.counting import CountingExecutor
from threeloops.product.service.engine.front import Front
from threeloops.product.service.engine.loading import files_of, fingerprint, load_engine, words_of
from threeloops.product.service.engine.messages import (
    AskStats,
    Cancel,
    Credit,
    Finished,
    FromEngine,
    Load,
    Message,
    Ready,
    Stats,
    Submit,
    ToEngine,
    Tokens,
)
from threeloops.product.token_stream import Backlog

__all__ = ["main"]


def main() -> None:
    """Serve the socket that is standard input. Printed output goes to standard error."""
    front = Front(ToEngine)
    (load,) = front.heard(wait=True)
    assert isinstance(load, Load)
    started = time.monotonic()
    try:
        files = files_of(load.spec.model)
        engine, model = load_engine(load.spec, files)
        weights_hash = fingerprint(model) if load.spec.fingerprint else ""
    except Exception as error:  # whatever a model can be wrong with
        front.give_up(f"the model {load.spec.model!r} cannot be loaded: {words_of(error)}")
    config = model.config
    seconds = time.monotonic() - started
    front.tell([Ready(config.vocabulary_size, config.max_sequence, seconds, files, weights_hash)])
    server = _Server(engine, front, load.spec.window)
    try:
        while True:
            server.turn()
    except Exception as error:  # the executor's: nobody knows what the cache holds
        front.give_up(f"the engine failed: {error!r}")


@dataclass(frozen=True)
class _Checked:
    """The result of checking a request in the thread that compiles grammars. `error` is None if the request is fine."""

    number: int
    error: BaseException | None


class _Server:
    """The engine and its readers. If a reader is `window` tokens behind, its request is paused until the reader has
    taken half of them. A paused request gives its seat and its blocks to others.

    A separate thread compiles grammars, and a request joins the engine when its grammar is ready. So other requests do
    not wait for a slow grammar.
    """

    def __init__(self, engine: Engine, front: Front, window: int) -> None:
        self._engine = engine
        self._front = front
        self._window = window
        self._streams: dict[int, Backlog] = {}
        self._unchecked: dict[int, Request] = {}  # requests whose grammars are being compiled
        self._compiling = ThreadPoolExecutor(1, "grammars")
        self._is_busy = False

    def turn(self) -> None:
        """Handle the received messages, and make a step. Raises what the executor raises."""
        answers = [answer for heard in self._front.heard(wait=not self._is_busy) if (answer := self._take(heard))]
        batch = self._engine.step()
        self._is_busy = bool(batch.chunks)
        if answers := [*answers, *self._new(batch)]:
            self._front.tell(answers)

    def _take(self, heard: Message | _Checked) -> FromEngine | None:
        match heard:
            case Submit():
                return self._submit(heard)
            case Credit():
                if (stream := self._streams.get(heard.number)) is not None:
                    stream.read += heard.tokens
                    stream.resume_if_read(self._engine.scheduler.resume)
            case _Checked():
                if (request := self._unchecked.pop(heard.number, None)) is not None:
                    return self._add(heard.number, request, heard.error)
            case Cancel():
                if self._unchecked.pop(heard.number, None) is not None:
                    return None
                if self._streams.pop(heard.number, None) is not None:
                    self._engine.cancel(str(heard.number))
            case AskStats():
                counting = self._engine.executor
                assert isinstance(counting, CountingExecutor)
                return Stats(heard.number, counting.stats(self._engine, len(self._streams) + len(self._unchecked)))
        return None

    def _submit(self, asked: Submit) -> FromEngine | None:
        request = asked.request(self._engine.clock.now())
        if not asked.sampling.grammar:
            return self._add(asked.number, request)
        self._unchecked[asked.number] = request
        self._compiling.submit(self._check, asked.number)
        return None

    def _check(self, number: int) -> None:
        """Compile the grammar of a request, in the thread for grammars. The engine later uses the compiled grammar."""
        if (request := self._unchecked.get(number)) is None:  # the request was cancelled meanwhile
            return
        error: BaseException | None = None
        try:
            self._engine.executor.check(request)
        except BaseException as caught:  # a panic of llguidance is not an Exception
            error = caught
        self._front.hear(_Checked(number, error))

    def _add(self, number: int, request: Request, error: BaseException | None = None) -> FromEngine | None:
        """Let the engine compute a request, unless `error` or the engine refuses it."""
        try:
            if error is None:
                self._engine.add(request)
        except ValueError as refused:
            error = refused
        if error is None:
            self._streams[number] = Backlog(request, self._window)
            return None
        return Finished.refused(number, error)

    def _new(self, batch: Batch) -> list[FromEngine]:
        """Return the new tokens of all streams in one message, and a message for each stream that has ended."""
        tokens: dict[int, list[int]] = {}
        logprobs: dict[int, list[TokenLogprobs]] = {}
        prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
        cached: dict[int, int] = {}
        ends: list[FromEngine] = []
        for chunk in batch.chunks:
            request = chunk.request
            number = int(request.id)
            if (stream := self._streams.get(number)) is None:
                continue
            if len(request.output) > stream.available:
                tokens[number] = request.output[stream.available :]
                if not stream.available:
                    cached[number] = request.cached_first or 0
                    if request.prompt_logprobs:
                        prompt_logprobs[number] = request.prompt_logprobs
                if request.logprobs:
                    logprobs[number] = request.logprobs[stream.available :]
                stream.available = len(request.output)
            if request.finish is not None:
                ends.append(Finished.of(request))
                del self._streams[number]
            else:
                stream.pause_if_full(self._engine.scheduler.pause)
        return [*([Tokens(tokens, logprobs, prompt_logprobs, cached)] if tokens else []), *ends]
