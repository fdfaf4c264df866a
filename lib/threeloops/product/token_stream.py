"""The tokens of one request, between the engine that computes them and the task that reads them.

A request keeps its output, so a reader needs no queue of tokens: it is a position in that output. If the reader is too
far behind, the request is paused, and its seat and blocks go to other requests meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from threeloops.product.request import Finish, Request

__all__ = ["Backlog", "TokenStream"]


@dataclass(eq=False)
class Backlog:
    """How far a reader is behind. At `window` unread tokens the request is paused, until half of them are read."""

    request: Request
    window: int
    available: int = 0
    read: int = 0
    paused: bool = False

    def pause_if_full(self, pause: Callable[[Request], None]) -> None:
        """Call `pause` if the reader is `window` tokens behind."""
        if self.available - self.read >= self.window:
            pause(self.request)
            self.paused = True

    def resume_if_read(self, resume: Callable[[Request], None]) -> None:
        """Call `resume` if the request is paused and at most half of `window` is unread."""
        if self.paused and self.available - self.read <= self.window // 2:
            self.paused = False
            resume(self.request)


@dataclass(eq=False)
class TokenStream(Backlog, AsyncIterator[int]):
    """An iterator over the tokens of a request, for one task. It waits for the next token, and ends with the request.

    The engine's side adds tokens to `request.output`. It sets `available`, `error` and `done`, in this order, and then
    `changed`. If `error` is set, it is raised after the last token.
    """

    resume: Callable[[Request], None] | None = None
    """Called if the request is paused and its reader has caught up."""
    error: Exception | None = None
    done: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def fail(self, error: Exception) -> None:
        """End the request and the stream with an error."""
        self.request.finish = Finish.ERROR
        self.request.error = str(error)
        self.error = error
        self.end()

    def end(self) -> None:
        """End the stream after the tokens that are available."""
        self.done = True
        self.changed.set()

    async def __anext__(self) -> int:
        while True:
            done = self.done  # before `available`: a token that comes later sets `changed` again
            if is_unread := self.read < self.available:
                self.read += 1
            if self.resume is not None:  # even without a new token: the pause may have begun after the last was read
                self.resume_if_read(self.resume)
            if is_unread:
                return self.request.output[self.read - 1]
            if done:
                raise self.error or StopAsyncIteration
            await self.changed.wait()
            self.changed.clear()
