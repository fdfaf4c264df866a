"""One of the two processes, as the front sees it."""

import asyncio
from collections.abc import Callable
from itertools import count

from threeloops.product.disaggregated.real.messages import (
    AskRoleState,
    AskUnfinished,
    FromRole,
    RoleReady,
    RoleState,
    StartRole,
    Unfinished,
)
from threeloops.product.request import EngineStopped
from threeloops.product.service.engine.link import EngineProcess
from threeloops.product.service.engine.messages import Failed

__all__ = ["Side"]


class Side(EngineProcess):
    """A process with its role. `hear` gets the messages for the service, and `lost` is called when it is gone."""

    def __init__(
        self, start: StartRole, hear: Callable[["Side", FromRole], None], lost: Callable[["Side"], None]
    ) -> None:
        super().__init__(f"the {start.role} process", FromRole, self._receive, lambda: lost(self))
        self.role = start.role
        self.listens = start.listen
        """The path of its socket, if it is the decode process."""
        self._pass_on = hear
        self._start = start
        self._numbers = count()

    async def launch(self) -> None:
        """Start the process, which begins to load its model."""
        await self.start("threeloops.product.disaggregated.real.process", self._start)

    async def wait_loaded(self, seconds: float) -> None:
        """Raises EngineStopped, with the reason, if the process ends before its model is loaded, or is too slow."""
        try:
            async with asyncio.timeout(seconds):
                await self.wait_ready()
        except TimeoutError:
            self.kill(f"{self.name} has not loaded its model within {seconds:g} s")
            await self.wait_gone()
            raise EngineStopped(self.reason) from None

    async def unfinished(self, generation: int, seconds: float) -> set[int]:
        """Return the requests that are left there after connection `generation`. Raises EngineStopped."""
        answer = await self._answer_to(AskUnfinished(next(self._numbers), generation), seconds)
        assert isinstance(answer, Unfinished)
        return set(answer.numbers)

    async def state(self, seconds: float) -> RoleState:
        """Raises EngineStopped if the process is gone, or does not answer within `seconds`."""
        answer = await self._answer_to(AskRoleState(next(self._numbers)), seconds)
        assert isinstance(answer, RoleState)
        return answer

    async def _answer_to(self, question: AskUnfinished | AskRoleState, seconds: float) -> Unfinished | RoleState:
        if not self.ready:
            raise EngineStopped(self.reason or f"{self.name} is loading its model")
        return await self.ask(question.question, question, seconds)

    def _receive(self, message: FromRole) -> None:
        match message:
            case RoleReady():
                self.loaded.set()
            case Failed():
                self.reason = message.reason
            case Unfinished() | RoleState():
                self.answer(message.question, message)
            case _:
                self._pass_on(self, message)
