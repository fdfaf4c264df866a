"""The vocabulary of serving: a request, its sampling settings, and the part of it that one step computes.

There is no separate prefill and decode. A request is a list of tokens, `computed` of which have their keys and values
in the cache. A step computes some of the others. A new prompt has all of its tokens uncomputed, and a decoding request
has one. A preempted request starts again from nothing, and the tokens of a cached prefix count as computed from the
beginning. (vLLM's second engine schedules in the same way.)
"""

import math
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from threeloops.units import require_whole

__all__ = [
    "Batch", "Chunk", "EngineStopped", "Finish", "Phase", "Request", "RequestFailed", "Sampling", "TokenLogprobs",
]  # fmt: skip


class RequestFailed(RuntimeError):
    """This request ended with an error; others go on."""


class EngineStopped(RuntimeError):
    """The engine is not ready, has failed, or was closed: it computes nothing."""


class Phase(Enum):
    """The phase that a request is in."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


class Finish(Enum):
    """The reason why a request ended. The values are those of OpenAI's `finish_reason`, if it has one."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True)
class Sampling:
    """The settings for choosing the next token and for ending. Raises ValueError naming the field that is out of range.

    `temperature` 0 takes the likeliest token. `top_k` 0, `top_p` 1 and `min_p` 0 keep the whole vocabulary. A request
    with a `seed` gives the same tokens whatever it is batched with. `stop` holds the tokens that end it.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: frozenset[int] = frozenset()
    min_p: float = 0.0  # tokens with less than this share of the likeliest one's chance are never drawn
    min_tokens: int = 0  # so many tokens come before one of `stop` may
    repetition_penalty: float = (
        1.0  # for what stands in prompt or output: logits are divided by it, or multiplied if < 0
    )
    presence_penalty: float = 0.0  # taken off the logit of each token of the output
    frequency_penalty: float = 0.0  # the same, as many times as the token stands there
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, what is added to its logit)
    grammar: str = ""  # of `threeloops.product.grammar`: the output is the beginning of a text of it
    logprobs: int | None = None  # how many of the likeliest tokens to report with each token; None reports nothing
    prompt_logprobs: int | None = None  # the same for tokens of the prompt

    def __post_init__(self) -> None:
        require_whole(1, max_tokens=self.max_tokens)
        require_whole(0, top_k=self.top_k, seed=self.seed, min_tokens=self.min_tokens)
        require_whole(0, logprobs=self.logprobs or 0, prompt_logprobs=self.prompt_logprobs or 0)
        if not 0 <= self.temperature < math.inf:
            raise ValueError(
                f"temperature = {self.temperature!r}: expected a number, at least 0 (0: the likeliest token)"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p = {self.top_p!r}: expected a share above 0, at most 1 (1: the whole vocabulary)")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p = {self.min_p!r}: expected a share from 0 to 1 (0: the whole vocabulary)")
        if not 0 < self.repetition_penalty < math.inf:
            raise ValueError(f"repetition_penalty = {self.repetition_penalty!r}: expected a number above 0 (1: none)")
        for name in ("presence_penalty", "frequency_penalty"):
            if not math.isfinite(value := getattr(self, name)):
                raise ValueError(f"{name} = {value!r}: expected a finite number (0: none)")
        if not all(math.isfinite(bias) for _, bias in self.logit_bias):
            raise ValueError(f"logit_bias = {self.logit_bias!r}: expected finite numbers")

    @cached_property
    def is_adjusted(self) -> bool:
        """Whether logits are changed before a token is chosen from them."""
        return bool(
            self.min_tokens
            or self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
            or self.logit_bias
            or self.grammar
        )


@dataclass(frozen=True)
class TokenLogprobs:
    """The log-probability of a token, and those of the likeliest tokens at its place, in falling order. They are the
    model's own: without temperature, penalties or anything else that shapes the choice."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(eq=False)
class Request:
    """One prompt and its results so far. Raises ValueError for a prompt without tokens."""

    # filled by whoever asks
    id: str
    prompt: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    arrival: float = 0.0  # seconds on the engine's clock
    priority: int = 0  # the smaller, the sooner
    client: str = ""  # whose share it takes from, where the scheduler is fair
    cache_salt: str = ""  # requests with different salts share no blocks of the prefix cache
    keeps_blocks: bool = False  # once it has ended with a token, its blocks stay until `Engine.release`

    # filled by the scheduler
    place: tuple[float, ...] = ()  # what it is sorted by: the order of the policy, then how many were added before
    block_table: list[int] = field(default_factory=list)
    computed: int = 0  # tokens whose keys and values are in the cache
    cached: int = 0  # of these, taken from the prefix cache at the latest admission
    cached_first: int | None = None  # the same at the first admission; None before it
    preemptions: int = 0
    running: bool = False
    block_keys: list[bytes] = field(default_factory=list)  # of the full blocks of its tokens, for the prefix cache

    # filled by the engine
    output: list[int] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)  # seconds on the engine's clock, one per token of `output`
    logprobs: list[TokenLogprobs] = field(
        default_factory=list
    )  # one per token of `output`, if the sampling asks for it
    prompt_logprobs: list[TokenLogprobs] = field(
        default_factory=list
    )  # one per token of `prompt` after the first, if the sampling asks for it
    finish: Finish | None = None
    error: str = ""
    is_grammar_at_fault: bool = False  # whether it ended with an error because its grammar could not be followed

    def __post_init__(self) -> None:
        self.prompt = tuple(self.prompt)
        if not self.prompt:
            raise ValueError(f"request {self.id!r}: the prompt is empty; expected at least one token")

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.prompt, *self.output)

    def tokens_from(self, start: int, count: int) -> list[int]:
        """`count` tokens from position `start`, of the prompt and then of the output."""
        own = max(0, start - len(self.prompt))
        tokens = [*self.prompt[start : start + count]]
        return tokens + self.output[own : own + count - len(tokens)]

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def uncomputed(self) -> int:
        return self.length - self.computed

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Tell whether the request asks for log-probabilities of its prompt that have not been computed yet."""
        return self.sampling.prompt_logprobs is not None and len(self.prompt_logprobs) < len(self.prompt) - 1

    @property
    def phase(self) -> Phase:
        if self.finish is not None:
            return Phase.FINISHED
        if not self.running:
            return Phase.WAITING
        return Phase.DECODE if self.output and self.uncomputed == 1 else Phase.PREFILL


@dataclass(frozen=True)
class Chunk:
    """The part of a request that one step computes: `count` tokens from position `start`, the first uncomputed one,
    with room in the cache for `guesses` more that a draft may propose.

    `samples` says whether the step reaches the request's last token, and so gives it a new one. Both keep the values of
    the time when the chunk was made: a chunk is a record of the step, also after it.
    """

    request: Request
    count: int
    guesses: int = 0
    start: int = field(init=False)
    samples: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", self.request.computed)
        object.__setattr__(self, "samples", self.count == self.request.uncomputed)


@dataclass(frozen=True)
class Batch:
    """The work of one step: chunks, and blocks to copy before (source, destination)."""

    chunks: tuple[Chunk, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()

    @property
    def tokens(self) -> int:
        return sum(chunk.count + chunk.guesses for chunk in self.chunks)
