"""The process of one role: it loads the model, connects to the other process, and makes steps until the front is gone.

Standard input is its end of a socket pair with the front. Threads receive from the front and from the other process,
and another thread sends blocks. Between two steps the main thread takes in what has come.
"""

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import Engine
from threeloops.product.decode import ModelRunner
from threeloops.product.disaggregated.real.decode import DecodeRole
from threeloops.product.disaggregated.real.link import BlockLink
from threeloops.product.disaggregated.real.messages import (
    AskRoleState,
    AskUnfinished,
    CacheFormat,
    Connect,
    Connected,
    Disconnected,
    FromDecode,
    FromPrefill,
    FromRole,
    HandoverError,
    HasRead,
    Hello,
    RoleReady,
    RoleState,
    StartRole,
    ToRole,
    Unfinished,
    Welcome,
)
from threeloops.product.disaggregated.real.prefill import PrefillRole
from threeloops.product.service.engine.counting import CountingExecutor
from threeloops.product.service.engine.front import Front
from threeloops.product.service.engine.loading import files_of, fingerprint, load_engine, words_of
from threeloops.product.service.engine.messages import Cancel, Submit

__all__ = ["main"]

_VERSION = 1
"""The version of the messages between the two processes."""
_GREETING_SECONDS = 10.0
"""The time that the other process has to answer when a connection is made."""


def main() -> None:
    """Serve the socket that is standard input. Printed output goes to standard error."""
    front = Front(ToRole)
    (start,) = front.heard(wait=True)
    assert isinstance(start, StartRole)
    try:
        process = _Process(start, front)
    except Exception as error:  # whatever a model can be wrong with
        front.give_up(f"the model {start.spec.model!r} cannot be loaded: {words_of(error)}")
    try:
        while True:
            process.turn()
    except Exception as error:  # the executor's: nobody knows what the cache holds
        front.give_up(f"the {start.role} engine failed: {error!r}")


def _cache_format(weights: str, config: GPTConfig, block_size: int, dtype: object) -> CacheFormat:
    """Return the format of a cache for a model whose weights have this hash."""
    name = str(dtype).removeprefix("torch.")
    return CacheFormat(_VERSION, weights, config.layers, config.kv_heads, config.head_dim, block_size, name)


def _role_state(engine: Engine) -> RoleState:
    """Return the state of an engine between two steps, without the counts of its steps."""
    scheduler = engine.scheduler
    groups = (scheduler.waiting, scheduler.running, scheduler.paused, scheduler.receiving, scheduler.held)
    fault = ""
    try:
        scheduler.blocks.check_integrity([request.block_table for group in groups for request in group])
    except AssertionError as error:
        fault = str(error)
    return RoleState(
        waiting=len(scheduler.waiting),
        running=len(scheduler.running),
        paused=len(scheduler.paused),
        receiving=len(scheduler.receiving),
        held=len(scheduler.held),
        blocks_free=scheduler.blocks.free,
        blocks_total=scheduler.blocks.blocks,
        fault=fault,
    )


@dataclass(frozen=True)
class _Linked:
    """A connection was made."""

    link: BlockLink
    generation: int


@dataclass(frozen=True)
class _Heard:
    """A message of the other process."""

    link: BlockLink
    message: Any
    blocks: bytearray


@dataclass(frozen=True)
class _Lost:
    link: BlockLink
    reason: str


class _Process:
    """A role and its connections."""

    def __init__(self, start: StartRole, front: Front) -> None:
        self._front = front
        spec = start.spec
        self._engine, model = load_engine(spec, files_of(spec.model))
        counting = self._engine.executor
        assert isinstance(counting, CountingExecutor)
        runner = counting.executor
        assert isinstance(runner, ModelRunner)
        self._counting = counting
        self._cache = runner.cache
        self._format = _cache_format(fingerprint(model), model.config, spec.block_size, model.head.weight.dtype)
        self._told: list[FromRole] = []
        self._link: BlockLink | None = None
        self._generation = 0
        self._questions: list[AskUnfinished] = []
        self._is_busy = False
        self._role: PrefillRole | DecodeRole
        if start.role == "prefill":
            self._role = PrefillRole(
                self._engine, self._cache, self._told.append, room=start.room, handover=start.handover
            )
        else:
            self._role = DecodeRole(self._engine, self._cache, self._told.append, window=spec.window)
            self._listen(start.listen)
        front.tell([RoleReady()])

    def turn(self) -> None:
        """Take in what has come, and make a step. Raises what the executor raises."""
        for item in self._front.heard(wait=not self._is_busy):
            self._take(item)
        self._is_busy = self._role.step()
        if self._told:
            self._front.tell(self._told)
            self._told.clear()

    def _take(self, item: Any) -> None:
        match item:
            case Submit():
                self._role.submit(item)
            case Cancel():
                self._role.cancel(item.number)
            case HasRead():
                if isinstance(self._role, DecodeRole):
                    self._role.read(item)
            case _Heard():
                if item.link is self._link:
                    self._hear(item)
            case _Lost():
                if item.link is self._link:
                    self._disconnect(item.reason)
            case _Linked():
                self._connected(item.link, item.generation)
            case Connect():
                self._connect(item)
            case AskUnfinished():
                self._questions.append(item)
                self._answer()
            case AskRoleState():
                sent = 0 if self._link is None else self._link.sent_bytes
                state = _role_state(self._engine)
                self._told.append(
                    msgspec.structs.replace(
                        state,
                        question=item.question,
                        steps=self._counting.steps,
                        preemptions=self._counting.preemptions,
                        sent_bytes=sent,
                    )
                )

    def _hear(self, heard: _Heard) -> None:
        try:
            if isinstance(self._role, DecodeRole):
                self._role.hear(heard.message, heard.blocks)
            else:
                self._role.hear(heard.message)
        except HandoverError as error:
            self._disconnect(str(error))

    def _connected(self, link: BlockLink, generation: int) -> None:
        if self._link is not None:
            self._disconnect("another connection took its place")
        self._link = link
        self._generation = generation
        self._role.connected(link.send)
        self._told.append(Connected(generation))

    def _disconnect(self, reason: str) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
            self._role.disconnected()
            self._told.append(Disconnected(self._generation, reason))
            self._answer()

    def _answer(self) -> None:
        """Answer the questions about connections that have ended."""
        is_open = self._link is not None
        for question in [
            question for question in self._questions if not (is_open and self._generation == question.generation)
        ]:
            self._questions.remove(question)
            self._told.append(Unfinished(question.question, self._role.unfinished))

    # The prefill process connects.

    def _connect(self, asked: Connect) -> None:
        end = socket.socket(socket.AF_UNIX)
        link = BlockLink(end, FromDecode, 0)
        link.bound(_GREETING_SECONDS)
        try:
            end.connect(asked.path)
            link.send_now(Hello(self._format, asked.generation))
            welcome, _ = link.receive()
            if not isinstance(welcome, Welcome):
                raise HandoverError(f"{type(welcome).__name__}: expected Welcome")
            if welcome.refused:
                raise HandoverError(welcome.refused)
        except (OSError, EOFError, HandoverError) as error:
            end.close()
            self._told.append(Disconnected(asked.generation, f"no connection to the decode process: {error}"))
            return
        self._connected(link, asked.generation)
        self._start(link)

    # The decode process listens.

    def _listen(self, path: str) -> None:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        listening.listen()
        threading.Thread(target=self._accept, args=(listening,), name="prefill", daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            end, _ = listening.accept()
            with suppress(OSError, EOFError, HandoverError):
                self._greet(end)

    def _greet(self, end: socket.socket) -> None:
        link = BlockLink(end, FromPrefill, self._cache.nbytes)
        link.bound(_GREETING_SECONDS)
        hello, _ = link.receive()
        if not isinstance(hello, Hello):
            raise HandoverError(f"{type(hello).__name__}: expected Hello")
        try:
            self._format.check_equal(hello.format)
        except HandoverError as error:
            link.send_now(Welcome(f"the decode process refuses the prefill process: {error}"))
            return
        self._front.hear(_Linked(link, hello.generation))
        link.send_now(Welcome())
        self._start(link)

    def _start(self, link: BlockLink) -> None:
        link.start(
            lambda message, blocks: self._front.hear(_Heard(link, message, blocks)),
            lambda reason: self._front.hear(_Lost(link, reason)),
        )
