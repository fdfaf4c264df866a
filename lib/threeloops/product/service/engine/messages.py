"""Messages between the front and the engine's process: structs that `threeloops.frames` sends over a socket pair.

The front sends Load once, then Submit, Credit, Cancel and AskStats. The engine answers with Ready or Failed, then
Tokens, Finished and Stats. The front gives each request a number. Tokens are sent against credit: a request begins with
`window` credits, and the front gives more as its reader takes tokens. If a reader stops reading, only its own request
is paused, and its blocks go to others.
"""

import msgspec

from threeloops.product.grammar import GrammarError
from threeloops.product.request import Finish, Request, RequestFailed, Sampling, TokenLogprobs
from threeloops.product.token_stream import TokenStream

__all__ = [
    "AskStats", "Cancel", "Credit", "EngineSpec", "EngineStats", "Failed", "Finished", "FromEngine", "Load", "Message",
    "Ready", "Stats", "Submit", "ToEngine", "Tokens",
]  # fmt: skip

_ERRORS: dict[str, type[Exception]] = {"refused": ValueError, "ungrammatical": GrammarError}
"""The error that readers get for an outcome. Outcomes that are not listed give RequestFailed."""


class EngineSpec(msgspec.Struct, frozen=True):
    """Everything that an engine's process is told when it starts."""

    model: str
    """A name of `threeloops.product.trained`, a folder that `threeloops.models.llama_folder` reads, or a GGUF file."""
    blocks: int = 1024
    block_size: int = 16  # tokens
    max_running: int = 64
    token_budget: int = 512
    threads: int = 0
    """The number of torch's threads. 0 leaves the choice to torch."""
    device: str = "auto"
    """"cpu", "cuda", or "auto" for the GPU if there is one."""
    dtype: str = "auto"
    """The name of torch's dtype of weights and cache, or "auto" for that of the files."""
    quantization: str = "auto"
    """"int8" or "int4" for weights rounded to these, or "auto" for those of the files."""
    window: int = 64
    """Tokens that may be under way to a reader."""
    fingerprint: bool = False
    """Whether to hash the weights, by which cached answers are told apart."""


class EngineStats(msgspec.Struct, frozen=True):
    """The state of an engine at one moment. Counts of events begin when its process started."""

    running: int = 0
    waiting: int = 0
    paused: int = 0
    """Requests whose readers do not read."""
    streams: int = 0
    """Requests that have not been answered to their ends, in any of these states."""
    blocks_free: int = 0
    blocks_total: int = 0
    steps: int = 0
    preemptions: int = 0
    prefix_tokens_asked: int = 0
    prefix_tokens_hit: int = 0


class Load(msgspec.Struct, tag=True):
    spec: EngineSpec


class Submit(msgspec.Struct, tag=True):
    number: int
    prompt: tuple[int, ...]
    sampling: Sampling
    priority: int = 0
    client: str = ""
    cache_salt: str = ""

    @classmethod
    def of(cls, number: int, request: Request) -> "Submit":
        return cls(number, request.prompt, request.sampling, request.priority, request.client, request.cache_salt)

    def request(self, arrival: float, *, keeps_blocks: bool = False) -> Request:
        """Return a request for an engine. Its id is the number in decimal."""
        return Request(
            str(self.number),
            self.prompt,
            self.sampling,
            arrival=arrival,
            priority=self.priority,
            client=self.client,
            cache_salt=self.cache_salt,
            keeps_blocks=keeps_blocks,
        )


class Credit(msgspec.Struct, tag=True):
    """The reader has taken this many more tokens."""

    number: int
    tokens: int


class Cancel(msgspec.Struct, tag=True):
    number: int


class AskStats(msgspec.Struct, tag=True):
    number: int


class Ready(msgspec.Struct, tag=True):
    """The model is loaded and has computed its first tokens."""

    vocabulary: int
    max_sequence: int
    seconds: float  # from Load to here
    files: str = ""  # the folder or file that the model was loaded from; "" for a model of the course
    fingerprint: str = ""  # hexadecimal, of the sizes and all weights, if the spec asked for it


class Failed(msgspec.Struct, tag=True):
    """The process is about to end, for this reason."""

    reason: str


class Tokens(msgspec.Struct, tag=True, omit_defaults=True):
    """New tokens by request, those of one step if the front keeps up.

    `logprobs` has one element for each token of the requests that ask for them. Two fields come only with the first
    tokens of a request: `cached` is the number of tokens of its prompt that the prefix cache had. `prompt_logprobs` has
    an element for each token of its prompt after the first, if the request asks for them."""

    tokens: dict[int, list[int]]
    logprobs: dict[int, list[TokenLogprobs]] = {}
    prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
    cached: dict[int, int] = {}


class Finished(msgspec.Struct, tag=True):
    """`outcome` is stop, length, refused (it can never run; `message` says why), ungrammatical (its grammar cannot be
    followed) or failed."""

    number: int
    outcome: str
    message: str = ""

    @classmethod
    def of(cls, request: Request) -> "Finished":
        """Tell how a request of `Submit.request` has finished."""
        assert request.finish is not None
        outcome = request.finish.value
        if request.finish is Finish.ERROR:
            outcome = "ungrammatical" if request.is_grammar_at_fault else "failed"
        return cls(int(request.id), outcome, request.error)

    @classmethod
    def refused(cls, number: int, error: BaseException) -> "Finished":
        """Tell why a request was not started. An error that is not a ValueError is not the request's fault."""
        if not isinstance(error, ValueError):
            return cls(number, "failed", repr(error))
        return cls(number, "ungrammatical" if isinstance(error, GrammarError) else "refused", str(error))

    def end(self, stream: TokenStream) -> None:
        """End the stream of the request's reader, with an error if the outcome is one."""
        if self.outcome in (Finish.STOP.value, Finish.LENGTH.value):
            stream.request.finish = Finish(self.outcome)
            stream.end()
        else:
            stream.fail(_ERRORS.get(self.outcome, RequestFailed)(self.message))


class Stats(msgspec.Struct, tag=True):
    number: int
    stats: EngineStats


ToEngine = Load | Submit | Credit | Cancel | AskStats
FromEngine = Ready | Failed | Tokens | Finished | Stats
Message = ToEngine | FromEngine
