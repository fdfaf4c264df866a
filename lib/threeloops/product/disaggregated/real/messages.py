"""Messages between the front, the prefill process and the decode process.

A request goes to the prefill process, which asks the decode process for blocks (Reserve). The answer says how many of
the prompt's blocks are there already (Reserved). The others follow as they are computed (Blocks), and then the first
token (Handed), which the decode process acknowledges (Received). The prefill process tells the front about the first
token at once, and the decode process about all of them (Progress). The process in which a request ends says so
(Finished).
"""

import msgspec

from threeloops.product.request import TokenLogprobs
from threeloops.product.service.engine.messages import Cancel, EngineSpec, Failed, Finished, Submit

__all__ = [
    "Abandon", "AskRoleState", "AskUnfinished", "Blocks", "CacheFormat", "Connect", "Connected",
    "Disconnected", "FromDecode", "FromPrefill", "FromRole", "Handed", "HandoverError", "HasRead", "Hello",
    "Progress", "Received", "Reserve", "Reserved", "RoleReady", "RoleState", "StartRole", "ToRole", "Unfinished",
    "Welcome",
]  # fmt: skip


class HandoverError(RuntimeError):
    """The other process broke the protocol of a handover, or its cache is not like this one."""


class CacheFormat(msgspec.Struct, frozen=True):
    """The properties in which two caches must agree, so that a block of one is a block of the other."""

    version: int  # of these messages
    weights: str  # a hash of the model's sizes and weights, in hexadecimal
    layers: int
    kv_heads: int
    head_dim: int
    block_size: int  # tokens
    dtype: str

    def check_equal(self, other: "CacheFormat") -> None:
        """Raise HandoverError with the names and both values of all properties that differ from those of `other`."""
        unequal = [
            f"{name} is {getattr(self, name)!r} here and {getattr(other, name)!r} there"
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(other, name)
        ]
        if unequal:
            raise HandoverError(f"{', '.join(unequal)}: start both processes with the same model, dtype and block size")


# From the prefill process to the decode process.


class Hello(msgspec.Struct, tag=True):
    """The first message. `generation` is the number that the front gave to this connection."""

    format: CacheFormat
    generation: int


class Reserve(msgspec.Struct, tag=True):
    """Ask for a seat and the blocks of a prompt."""

    request: Submit


class Blocks(msgspec.Struct, tag=True):
    """Blocks of a request from place `first` of its table, in `layers` layers from `layer`. Their bytes follow."""

    number: int
    first: int
    count: int
    layer: int
    layers: int


class Handed(msgspec.Struct, tag=True):
    """All blocks have been sent, and `token` is the first of the output."""

    number: int
    token: int
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    cached: int = 0
    """The tokens of the prompt that the prefix cache of the prefill process had."""


class Abandon(msgspec.Struct, tag=True):
    """Forget a request. If its reader is gone, the front tells both processes, and this comes as well, behind what was
    sent before."""

    number: int


# From the decode process to the prefill process. Finished says that a request can never run there.


class Welcome(msgspec.Struct, tag=True):
    """The answer to Hello. If `refused` is not empty, it is the reason why the connection ends."""

    refused: str = ""


class Reserved(msgspec.Struct, tag=True):
    """The blocks of a request are reserved, and the first `cached` of them hold its keys and values already."""

    number: int
    cached: int


class Received(msgspec.Struct, tag=True):
    """The request runs here: its blocks may be freed there."""

    number: int


FromPrefill = Hello | Reserve | Blocks | Handed | Abandon
FromDecode = Welcome | Reserved | Received | Finished


# From the front to either process. Submit and Cancel are those of the engine's process.


class StartRole(msgspec.Struct, tag=True):
    """Load the model, and be one of the two processes."""

    role: str  # prefill or decode
    spec: EngineSpec
    handover: str = "layers"
    room: int = 0
    """The tokens of the decode process's cache, for the prefill process."""
    listen: str = ""
    """The path of the decode process's socket."""


class Connect(msgspec.Struct, tag=True):
    """Tell the prefill process to connect to the decode process that listens at `path`."""

    path: str
    generation: int


class HasRead(msgspec.Struct, tag=True):
    """The reader of a request has taken so many tokens, all together. A process that does not have the request yet, or
    lost it with an earlier message, is right again with the next."""

    number: int
    tokens: int


class AskUnfinished(msgspec.Struct, tag=True):
    """Ask which requests are left, once connection `generation` has ended and all that it brought has been taken in."""

    question: int
    generation: int


class AskRoleState(msgspec.Struct, tag=True):
    question: int


ToRole = StartRole | Connect | Submit | Cancel | HasRead | AskUnfinished | AskRoleState


# From either process to the front. Failed and Finished are those of the engine's process.


class RoleReady(msgspec.Struct, tag=True):
    """The model is loaded and has computed its first tokens; the decode process listens."""


class Connected(msgspec.Struct, tag=True):
    generation: int


class Disconnected(msgspec.Struct, tag=True):
    """A connection could not be made, or has ended, for this reason."""

    generation: int
    reason: str


class Progress(msgspec.Struct, tag=True, omit_defaults=True):
    """New tokens of a request, of which the first is number `start` of its output. `cached` is the number of tokens of
    its prompt that the prefix cache of the prefill process had."""

    number: int
    start: int
    tokens: list[int]
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    cached: int = 0


class Unfinished(msgspec.Struct, tag=True):
    """The numbers of the requests that are left."""

    question: int
    numbers: list[int]


class RoleState(msgspec.Struct, tag=True):
    """The state of a process at one moment. Counts begin when it started."""

    question: int = 0
    waiting: int = 0
    running: int = 0
    paused: int = 0
    receiving: int = 0
    """Requests whose blocks are reserved and whose keys and values are on their way."""
    held: int = 0
    """Requests whose prompts are computed, and whose blocks the decode process has not acknowledged."""
    blocks_free: int = 0
    blocks_total: int = 0
    steps: int = 0
    preemptions: int = 0
    sent_bytes: int = 0
    """The bytes of keys and values that were sent."""
    fault: str = ""
    """The error of the table of blocks, or "" if it has none."""


FromRole = RoleReady | Failed | Connected | Disconnected | Progress | Finished | Unfinished | RoleState
