"""Check a request against the limits of the model and of the service."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Protocol

from threeloops.product.service.admission import Client, Refused
from threeloops.product.service.engine import ServedModel
from threeloops.product.service.openai_protocol import ChatRequest, CompletionRequest
from threeloops.product.text import Tokenizer

__all__ = ["Job", "job_of"]

_LONG_TEXT = 10_000
"""A number of characters. A longer text is encoded in a thread, so that other requests do not have to wait."""


class _Limits(Protocol):
    """The settings of the service that limit a request."""

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
    """A request that has been checked. `grammar` is "" if the answer may be any text."""

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
        """Return the text of a prompt, by its index, or None if answers do not begin with it.

        A text is returned as it was sent, and tokens are decoded.
        """
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
        """The largest number of tokens that all choices can have together, including their prompts."""
        return self.asked.n * (self.prompt_tokens + len(self.prompts) * self.max_tokens)


async def job_of(asked: CompletionRequest | ChatRequest, client: Client, settings: _Limits, model: ServedModel) -> Job:
    """Check a request and return its job. Raises Refused if the request can never be answered."""
    if asked.model != settings.name:
        raise Refused(
            404, "model_not_found", f"there is no model {asked.model!r}: this is {settings.name!r}", param="model"
        )
    name = "messages" if isinstance(asked, ChatRequest) else "prompt"
    try:
        if isinstance(asked, CompletionRequest) and asked.characters < _LONG_TEXT:
            prompts = asked.prompts(model.tokenizer)
        else:
            prompts = await asyncio.to_thread(asked.prompts, model.tokenizer)  # a chat template may take any time
        if (largest := max(map(max, prompts))) >= model.vocabulary:
            raise ValueError(f"token {largest} is not in the model's vocabulary of {model.vocabulary} tokens")
    except ValueError as error:
        raise _invalid(name, str(error)) from None
    choices = len(prompts) * asked.n
    if choices > settings.max_running:
        raise _invalid(
            "n" if asked.n > 1 else "prompt",
            f"{len(prompts)} prompts with n = {asked.n} answers each make {choices} answers: expected at most "
            f"{settings.max_running} in one request; send several requests",
        )
    named = {"logit_bias": [int(token) for token in asked.logit_bias], "stop_token_ids": asked.stop_token_ids}
    for parameter, tokens in named.items():
        if (largest := max(tokens, default=-1)) >= model.vocabulary:
            raise _invalid(parameter, f"token {largest} is not in the model's vocabulary of {model.vocabulary} tokens")
    max_tokens = _max_tokens(asked, name, max(map(len, prompts)), settings, model.longest)
    if asked.min_tokens > max_tokens:
        raise _invalid(
            "min_tokens", f"{asked.min_tokens} is more than the answer's limit of {max_tokens} tokens: lower it"
        )
    return Job(asked, client, model.tokenizer, prompts, max_tokens, await _grammar(asked, model))


def _invalid(name: str, problem: str) -> Refused:
    return Refused(400, "invalid_value", f"{name}: {problem}", param=name)


def _max_tokens(asked: CompletionRequest | ChatRequest, name: str, prompt: int, settings: _Limits, longest: int) -> int:
    wanted = asked.max_tokens
    limit = "max_tokens"
    if isinstance(asked, ChatRequest) and asked.max_completion_tokens is not None:
        wanted = asked.max_completion_tokens
        limit = "max_completion_tokens"
    if wanted is not None and wanted > settings.largest_max_tokens:
        raise _invalid(
            limit, f"{wanted} is more than this service's limit of {settings.largest_max_tokens} tokens: lower it"
        )
    room = longest - prompt
    if room < (wanted or 1):
        if wanted is None or room < 1:
            problem = f"leaves no room for an answer in this model's {longest} tokens: shorten it"
        else:
            problem = (
                f"and {limit} = {wanted} are together more than this model's {longest} tokens: shorten the prompt, or "
                f"lower {limit}"
            )
        raise Refused(400, "context_length_exceeded", f"the prompt ({prompt} tokens) {problem}", param=name)
    return min(settings.default_max_tokens, settings.largest_max_tokens, room) if wanted is None else wanted


async def _grammar(asked: CompletionRequest | ChatRequest, model: ServedModel) -> str:
    """Return the grammar that the answer must follow, or "" if the answer may be any text.

    The engine compiles it, and refuses the request if it cannot.
    """
    if (field := asked.structure) is None:
        return ""
    if not model.tokenizer.end_tokens:
        raise _invalid(field, "this model's tokenizer has no end token, so an answer with a structure could never end")
    try:
        return await asyncio.to_thread(asked.grammar)  # a large schema takes a while
    except ValueError as error:
        raise _invalid(field, f"no answer can follow this form: {error}") from None
    except ImportError as error:
        raise Refused(400, "unsupported_parameter", f"{field}: {error}", param=field) from None
