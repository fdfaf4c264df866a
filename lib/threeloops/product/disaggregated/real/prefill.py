"""The role that computes prompts and sends their keys and values away.

Blocks are asked for before a prompt is computed. So its keys and values can leave while it is, and they need not wait
for an answer that would be heard only after the next step. A prompt whose blocks are not yet reserved when it is done
keeps its own until they are. So if the decode side is full, this side fills up as well, and then prompts wait.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from threeloops.frames import Buffer
from threeloops.product.batching import Engine, Executor
from threeloops.product.decode import PagedCache
from threeloops.product.disaggregated.real.messages import (
    Abandon,
    Blocks,
    FromDecode,
    FromRole,
    Handed,
    HandoverError,
    Progress,
    Received,
    Reserve,
    Reserved,
    Welcome,
)
from threeloops.product.request import Batch, Chunk, Finish, Request, Sampling
from threeloops.product.service.engine.messages import Finished, Submit

__all__ = ["HANDOVERS", "PrefillRole", "Send"]

HANDOVERS = ("whole", "chunks", "layers")
"""The moments at which blocks leave: after the prompt, after the step that filled them, or in it, after each layer."""
_AHEAD = 4
"""The number of requests whose blocks may be asked for before their prompts are computed."""
Send = Callable[[msgspec.Struct, Buffer], None]
"""Sends a message and the bytes of blocks to the other role."""


@dataclass(eq=False)
class _Prompt:
    """A request here. Counts of blocks are places in its table."""

    submitted: Submit  # the whole request
    request: Request  # ends with its first token
    is_asked: bool = False
    is_reserved: bool = False
    is_handed: bool = False
    sent: int = 0  # blocks that are there, in all layers

    @property
    def number(self) -> int:
        return self.submitted.number

    @property
    def sampling(self) -> Sampling:
        return self.submitted.sampling

    @property
    def is_done(self) -> bool:
        return self.request.finish is not None


class _Current:
    """An executor that passes steps on and remembers the one that it computes."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.batch = Batch()
        self.check = executor.check

    def execute(self, batch: Batch) -> Sequence[Sequence[int] | Exception]:
        self.batch = batch
        return self.executor.execute(batch)


class PrefillRole:
    """An engine that computes prompts for another one. Methods are called between two steps.

    `tell` gives a message to the front. `room` is the number of tokens of the other side's cache. Raises ValueError for
    a handover that is not in `HANDOVERS`.
    """

    def __init__(
        self,
        engine: Engine,
        cache: PagedCache,
        tell: Callable[[FromRole], None],
        *,
        room: int,
        handover: str = "layers",
        ahead: int = _AHEAD,
    ) -> None:
        if handover not in HANDOVERS:
            raise ValueError(f"handover = {handover!r}: expected one of {', '.join(HANDOVERS)}")
        self.engine = engine
        self.handover = handover
        self._cache = cache
        self._tell = tell
        self._room = room
        self._ahead = ahead
        self._send: Send | None = None
        self._prompts: dict[str, _Prompt] = {}  # by the ids of their requests, in the order in which they came
        self._current = _Current(engine.executor)
        engine.executor = self._current
        if handover == "layers":
            cache.watch = self._layer_written

    @property
    def unfinished(self) -> list[int]:
        """The numbers of the requests that the other side has not acknowledged."""
        return [prompt.number for prompt in self._prompts.values()]

    def submit(self, submitted: Submit) -> None:
        """Take a request, or tell the front why it can never run."""
        sampling = submitted.sampling
        request = submitted.request(self.engine.clock.now(), keeps_blocks=True)
        try:
            longest = len(request.prompt) + sampling.max_tokens - 1
            if longest > self._room:
                raise ValueError(
                    f"request {request.id!r}: {len(request.prompt)} tokens of prompt and max_tokens = "
                    f"{sampling.max_tokens} need a cache of {longest} tokens; the decode side has {self._room}: "
                    "shorten the prompt, lower max_tokens, or give that cache more blocks"
                )
            self.engine.executor.check(request)  # of the whole request, before its first token is on its way
            request.sampling = replace(sampling, max_tokens=1)
            self.engine.add(request)
        except ValueError as error:
            self._tell(Finished.refused(submitted.number, error))
            return
        self._prompts[request.id] = _Prompt(submitted, request)

    def cancel(self, number: int) -> None:
        """Forget a request, here and on the other side."""
        if (prompt := self._prompts.get(str(number))) is not None:
            self._drop(prompt)
        if self._send is not None:
            self._send(Abandon(number), b"")

    def connected(self, send: Send) -> None:
        """Send to this other side from now on."""
        self._send = send

    def disconnected(self) -> None:
        """Keep all requests that the other side has not acknowledged, for the next connection."""
        self._send = None
        for prompt in self._prompts.values():
            prompt.is_asked = prompt.is_reserved = prompt.is_handed = False

    def hear(self, message: FromDecode) -> None:
        """Take in a message of the other side. Raises HandoverError if it makes no sense."""
        if isinstance(message, Welcome):
            raise HandoverError("Welcome after the connection was made")
        if (prompt := self._prompts.get(str(message.number))) is None:  # cancelled meanwhile
            return
        if not (prompt.is_handed if isinstance(message, Received) else prompt.is_asked):
            raise HandoverError(f"request {message.number}: {type(message).__name__} without its question")
        match message:
            case Reserved():
                self._reserved(prompt, message.cached)
            case Received():
                self._drop(prompt)
            case Finished():
                self._tell(message)
                self._drop(prompt)

    def step(self) -> bool:
        """Compute a step and send what it has completed. Returns whether there was anything to compute."""
        self._ask()
        batch = self.engine.step()
        for chunk in batch.chunks:
            self._after(chunk)
        if not batch.chunks:
            self._withdraw()
        return bool(batch.chunks)

    def _ask(self) -> None:
        """Ask for the blocks of the first requests, of those that compute, and of those that are done.

        A request for one token needs none.
        """
        if self._send is None:
            return
        ahead = self._ahead - sum(prompt.is_asked and not prompt.is_done for prompt in self._prompts.values())
        for prompt in self._prompts.values():
            if prompt.is_asked or prompt.sampling.max_tokens == 1:
                continue
            if prompt.is_done or prompt.request.running or ahead > 0:
                ahead -= not prompt.is_done
                prompt.is_asked = True
                self._send(Reserve(prompt.submitted), b"")

    def _reserved(self, prompt: _Prompt, cached: int) -> None:
        if prompt.is_reserved or not 0 <= cached <= self._blocks(prompt):
            raise HandoverError(
                f"request {prompt.number}: {cached} blocks are said to be cached; its prompt has "
                f"{self._blocks(prompt)}, and they must be reserved once"
            )
        prompt.is_reserved = True
        prompt.sent = cached
        self._flush(prompt)

    def _withdraw(self) -> None:
        """Give reserved blocks back if prompts that are done wait for them, while those that they are for cannot be
        computed, because this cache is full of prompts that are done."""
        if self._send is None or not any(
            prompt.is_done and prompt.is_asked and not prompt.is_reserved for prompt in self._prompts.values()
        ):
            return
        for prompt in self._prompts.values():
            if prompt.is_reserved and not prompt.is_done:
                self._send(Abandon(prompt.number), b"")
                prompt.is_asked = prompt.is_reserved = False

    def _after(self, chunk: Chunk) -> None:
        """Tell about a chunk that has been computed, and send the blocks that it has completed."""
        request = chunk.request
        prompt = self._prompts[request.id]
        if request.finish is Finish.ERROR:
            self._tell(Finished.of(request))
            self._abandon(prompt)
            return
        if self.handover == "layers" and prompt.is_reserved:
            prompt.sent = max(prompt.sent, self._complete(chunk))
        if prompt.is_done:
            self._tell_first(prompt)
            if request.output[0] in prompt.sampling.stop or prompt.sampling.max_tokens == 1:
                self._tell(Finished.of(request))
                self._abandon(prompt)
                return
        self._flush(prompt)

    def _tell_first(self, prompt: _Prompt) -> None:
        request = prompt.request
        self._tell(
            Progress(
                prompt.number, 0, request.output, request.logprobs, request.prompt_logprobs, request.cached_first or 0
            )
        )

    def _layer_written(self, layer: int) -> None:
        """Send the blocks of a layer that the step in progress has just completed."""
        for chunk in self._current.batch.chunks:
            prompt = self._prompts.get(chunk.request.id)
            if prompt is not None and prompt.is_reserved:
                self._send_blocks(prompt, self._complete(chunk), range(layer, layer + 1))

    def _complete(self, chunk: Chunk) -> int:
        """The number of blocks that are complete when a chunk has been computed."""
        end = chunk.start + chunk.count
        size = self._cache.block_size
        return -(-end // size) if end == len(chunk.request.prompt) else end // size

    def _blocks(self, prompt: _Prompt) -> int:
        """The number of blocks of a prompt."""
        return -(-len(prompt.request.prompt) // self._cache.block_size)

    def _flush(self, prompt: _Prompt) -> None:
        """Send what is complete and has not been sent, as far as the handover lets it leave now."""
        if not prompt.is_reserved or self._send is None or (self.handover == "whole" and not prompt.is_done):
            return
        request = prompt.request
        complete = self._blocks(prompt) if prompt.is_done else request.computed // self._cache.block_size
        self._send_blocks(prompt, complete, self._cache.layers)
        prompt.sent = max(prompt.sent, complete)
        if prompt.is_done:
            prompt.is_handed = True
            cached = request.cached_first or 0
            handed = Handed(prompt.number, request.output[0], request.logprobs, request.prompt_logprobs, cached)
            self._send(handed, b"")

    def _send_blocks(self, prompt: _Prompt, upto: int, layers: range) -> None:
        if upto > prompt.sent and self._send is not None:
            data = self._cache.read_blocks(prompt.request.block_table[prompt.sent : upto], layers)
            self._send(Blocks(prompt.number, prompt.sent, upto - prompt.sent, layers.start, len(layers)), data)

    def _abandon(self, prompt: _Prompt) -> None:
        if prompt.is_asked and self._send is not None:
            self._send(Abandon(prompt.number), b"")
        self._drop(prompt)

    def _drop(self, prompt: _Prompt) -> None:
        del self._prompts[prompt.request.id]
        self.engine.cancel(prompt.request.id)
        self.engine.release(prompt.request)
