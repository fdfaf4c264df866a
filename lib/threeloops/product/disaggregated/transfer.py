"""The travel of a prompt's keys and values from the machine that computed them to the machine that goes on.

A prompt is computed in one or more steps. Its cache can leave whole after the last step, chunk by chunk after each
step, or layer by layer while a step still computes the layers above. Messages leave in the order in which they are
ready, one at a time. As in the rest of the course, a message of s bytes occupies the link for s/β and arrives α later,
so latencies overlap (`threeloops.training.collectives.cost`). What the host does for each message occupies the link
too: `overhead` seconds.

The time that decoding waits for is the exposed part: from the end of the last step to the arrival of the last byte.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from threeloops.models.gpt_config import GPTConfig
from threeloops.simulation.link import Server
from threeloops.training.collectives.cost import Link
from threeloops.units import require_whole

__all__ = ["CacheShape", "ComputedChunk", "Handover", "Part", "Travel", "Way", "send", "travel"]

Way = Literal["whole", "chunks", "layers"]
"""The moment when parts of a prompt's cache may leave: after the prompt, after each chunk, or after each layer."""


@dataclass(frozen=True)
class CacheShape:
    """The size of a cache: `layers`, and the bytes that one token takes in one of them.

    Grouped-query attention keeps a key and a value for each key-value head: use `of`. Latent attention keeps one short
    vector instead, of (rank + rotary dimensions) elements, so give its bytes.
    """

    layers: int
    layer_bytes: float

    def __post_init__(self) -> None:
        require_whole(layers=self.layers)
        if not 0 < self.layer_bytes < math.inf:
            raise ValueError(f"layer_bytes = {self.layer_bytes!r}: expected the bytes of a token in a layer, above 0")

    @classmethod
    def of(cls, config: GPTConfig, bytes_per_element: float = 2) -> "CacheShape":
        """Return the shape of the cache of `config`, whose keys and values have `bytes_per_element` bytes each."""
        return cls(config.layers, 2 * config.kv_heads * config.head_dim * bytes_per_element)

    @property
    def token_bytes(self) -> float:
        return self.layers * self.layer_bytes


@dataclass(frozen=True)
class ComputedChunk:
    """A part of a prompt: `tokens` of it, whose keys and values are computed between `start` and `end`, in seconds.

    The layers follow one another evenly. Tokens that a prefix cache has are a chunk that ends when it starts.
    """

    start: float
    end: float
    tokens: int

    def __post_init__(self) -> None:
        require_whole(of="tokens", tokens=self.tokens)
        if not self.start <= self.end:
            raise ValueError(f"{self}: expected an end that is not before the start")


@dataclass(frozen=True)
class Part:
    """One message: its bytes, and when they are ready to leave."""

    ready: float
    bytes: float


@dataclass(frozen=True)
class Handover:
    """A way to hand caches over: what leaves when (`way`), on which link, and what each message costs its sender.

    With `way` = "layers", `layers_per_message` layers travel together; the last message of a chunk may have fewer.
    """

    link: Link
    shape: CacheShape
    way: Way = "layers"
    overhead: float = 0.0
    layers_per_message: int = 1

    def __post_init__(self) -> None:
        require_whole(of="layers", layers_per_message=self.layers_per_message)
        if self.way not in get_args(Way):
            raise ValueError(f"way = {self.way!r}: expected 'whole', 'chunks' or 'layers'")
        if not 0 <= self.overhead < math.inf:
            raise ValueError(f"overhead = {self.overhead!r}: expected seconds, at least 0")

    def parts(self, chunk: ComputedChunk) -> list[Part]:
        """Return the messages of one chunk. For "whole", that is the only chunk: all tokens, at the end of the last
        step."""
        shape = self.shape
        if self.way != "layers" or chunk.start == chunk.end:
            return [Part(chunk.end, chunk.tokens * shape.token_bytes)]
        lasts = [*range(self.layers_per_message, shape.layers, self.layers_per_message), shape.layers]
        layer = (chunk.end - chunk.start) / shape.layers
        parts = []
        before = 0
        for last in lasts:
            ready = chunk.end if last == shape.layers else chunk.start + last * layer
            parts.append(Part(ready, (last - before) * chunk.tokens * shape.layer_bytes))
            before = last
        return parts

    def occupied(self, size: float) -> float:
        """Return the seconds for which a message of `size` bytes keeps the link from sending another."""
        return self.overhead + size / self.link.bandwidth


@dataclass(frozen=True)
class Travel:
    """The whole way of one prompt's cache. `computed` is the end of its last step, `arrival` that of its last byte."""

    computed: float
    arrival: float
    bytes: float
    messages: int

    @property
    def exposed(self) -> float:
        """The seconds for which only the transfer is awaited."""
        return self.arrival - self.computed


def send(part: Part, handover: Handover, ports: Sequence[Server]) -> float:
    """Return when a message arrives that occupies all of `ports` at once: those of its sender and of its receiver.

    Call it in the order in which messages are ready. Without ports, the link is free.
    """
    seconds = handover.occupied(part.bytes)
    leaves = max([part.ready, *(port.free_at for port in ports)])
    for port in ports:
        port.serve(leaves, seconds)
    return leaves + seconds + handover.link.latency


def travel(chunks: Iterable[ComputedChunk], handover: Handover, port: Server | None = None) -> Travel:
    """Send the cache of one prompt, computed in these chunks, over a link that nobody else uses at the same time.

    `port` is the sender's end of the link, if it has sent something before. Raises ValueError for a prompt without
    tokens, or if a chunk begins before the previous one ends.
    """
    steps = list(chunks)
    if not steps:
        raise ValueError("a prompt without chunks: expected at least one ComputedChunk")
    for earlier, later in zip(steps, steps[1:], strict=False):
        if later.start < earlier.end:
            raise ValueError(f"{later} begins before {earlier} ends: expected the steps of one prompt, in order")
    computed = steps[-1].end
    if handover.way == "whole":
        steps = [ComputedChunk(computed, computed, sum(step.tokens for step in steps))]
    port = port or Server()
    parts = [part for step in steps for part in handover.parts(step)]
    arrival = max(send(part, handover, [port]) for part in parts)
    return Travel(computed, arrival, sum(part.bytes for part in parts), len(parts))
