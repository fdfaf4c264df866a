"""What a client asked for, checked against what the model and the service can do."""

import asyncio
import time
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from threeloops.product.grammar import Grammars
from threeloops.product.service.admission import Client, Refused
from threeloops.product.service.engine import ServedModel
from threeloops.product.service.openai_protocol import ChatRequest, CompletionRequest
from threeloops.product.text import ByteTokenizer, Tokenizer

__all__ = ["Job", "job_of"]

_LONG_TEXT = 10_000
"""Characters. To encode more would keep all other requests waiting, so it is done in a thread."""


class _Limits(Protocol):
    """What the service's settings say of one request."""

    @property
    def name(self) -> str: ...
    @property
    def max_running(self) -> int: ...
    @property
    def default_max_tokens(self) -> int: ...
    @property
    def largest_max_tokens(self) -> int: ...


@dataclass(frozen=True)
class Job:
    """What was asked for, checked. `grammar` is "" for any text."""

    asked: CompletionRequest | ChatRequest
    client: Client
    tokenizer: Tokenizer
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    grammar: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def is_chat(self) -> bool:
        return isinstance(self.asked, ChatRequest)

    def echoed(self, prompt: int) -> str | None:
        """The text of a prompt, by its place, if answers begin with it: as it was sent, or that of its tokens."""
        if not isinstance(self.asked, CompletionRequest) or not self.asked.echo:
            return None
        if isinstance(sent := self.asked.each[prompt], str):
            return sent
        decoder = self.tokenizer.decoder()
        return decoder.push(sent) + decoder.end()

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.asked.n

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def most_tokens(self) -> int:
        """Tokens of all choices, their prompts included."""
        return self.asked.n * (self.prompt_tokens + len(self.prompts) * self.max_tokens)


async def job_of(asked: CompletionRequest | ChatRequest, client: Client, settings: _Limits, model: ServedModel) -> Job:
    """Raises Refused for what can never be answered."""
    if asked.model != settings.name:
        raise Refused(
            404, "model_not_found", f"there is no model {asked.model!r}: this is {settings.name!r}", param="model"
        )
    name = "messages" if isinstance(asked, ChatRequest) else "prompt"
    try:
        if asked.characters < _LONG_TEXT:
            prompts = asked.prompts(model.tokenizer)
        else:
            prompts = await asyncio.to_thread(asked.prompts, model.tokenizer)
        if (largest := max(map(max, prompts))) >= model.vocabulary:
            raise ValueError(f"token {largest} is not in the model's vocabulary of {model.vocabulary} tokens")
    except ValueError as error:
        raise _invalid(name, str(error)) from None
    choices = len(prompts) * asked.n
    if choices > settings.max_running:
        raise _invalid(
            "n" if asked.n > 1 else "prompt",
            f"{len(prompts)} prompts with n = {asked.n} answers each are {choices} answers at once, and this service "
            f"computes {settings.max_running}: send several requests",
        )
    if (largest := max(map(int, asked.logit_bias), default=-1)) >= model.vocabulary:
        raise _invalid("logit_bias", f"token {largest} is not one of the model's, 0 to {model.vocabulary - 1}")
    max_tokens = _max_tokens(asked, name, max(map(len, prompts)), settings, model.longest)
    if asked.min_tokens > max_tokens:
        raise _invalid("min_tokens", f"{asked.min_tokens} is more than max_tokens, {max_tokens}: lower it")
    return Job(asked, client, model.tokenizer, prompts, max_tokens, await _grammar(asked))


def _invalid(name: str, said: str) -> Refused:
    return Refused(400, "invalid_value", f"{name}: {said}", param=name)


def _max_tokens(asked: CompletionRequest | ChatRequest, name: str, prompt: int, settings: _Limits, longest: int) -> int:
    wanted = asked.max_tokens
    if isinstance(asked, ChatRequest) and asked.max_completion_tokens is not None:
        wanted = asked.max_completion_tokens
    if wanted is not None and wanted > settings.largest_max_tokens:
        raise _invalid("max_tokens", f"{wanted} is more than this service gives, {settings.largest_max_tokens}")
    room = longest - prompt
    if room < (wanted or 1):
        raise Refused(
            400,
            "context_length_exceeded",
            f"{name} ({prompt} tokens) and max_tokens ({wanted or 1}) together are more than this model's "
            f"{longest} tokens: shorten the {name}, or lower max_tokens",
            param=name,
        )
    return wanted or min(settings.default_max_tokens, settings.largest_max_tokens, room)


async def _grammar(asked: CompletionRequest | ChatRequest) -> str:
    """What an answer must follow; "" if it may be any text. A thread compiles it, since that may take a while."""
    if (field := asked.structure) is None:
        return ""
    try:
        return await asyncio.to_thread(_checked, asked)
    except ValueError as error:
        raise _invalid(field, f"it cannot be followed: {error}") from None
    except ImportError as error:
        raise Refused(400, "unsupported_parameter", f"{field}: {error}", param=field) from None


def _checked(asked: CompletionRequest | ChatRequest) -> str:
    grammar = asked.grammar()
    _bytes_grammars().check(grammar)
    return grammar


@cache
def _bytes_grammars() -> Grammars:
    """Whether a grammar can be followed depends on the bytes of texts, and not on how tokens divide them."""
    return Grammars([bytes([byte]) for byte in range(256)], sorted(ByteTokenizer.end_tokens))
