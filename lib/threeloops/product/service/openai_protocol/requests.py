"""What clients ask for: OpenAI's completions and chat completions, as far as this service has them, with some fields of
vLLM's (`top_k`, `ignore_eos`, `cache_salt`, …).
"""

import secrets
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from threeloops.product.request import Sampling
from threeloops.product.service.openai_protocol.fields import (
    UNSUPPORTED,
    UNSUPPORTED_IN_A_MESSAGE,
    Sent,
    refused,
    without,
)

__all__ = ["END_OF_TEXT", "ChatRequest", "CompletionRequest", "Message", "TextPart"]

END_OF_TEXT = 0
"""The byte that ends a text in what the course's models were trained on."""

_Stop = Annotated[str, Field(min_length=1, max_length=1024)]
_Tokens = Annotated[list[Annotated[int, Field(ge=0, le=255)]], Field(min_length=1, fail_fast=True)]
_One = Field(min_length=1, max_length=1, fail_fast=True)
_MOST_FIELDS = 64


class _StreamOptions(Sent):
    include_usage: bool = False
    continuous_usage_stats: bool = Field(False, description="as vLLM's: the usage so far, in every event")
    include_obfuscation: bool = False


class _Generation(Sent):
    """What both kinds of requests say."""

    model: str = Field(max_length=200)
    max_tokens: int | None = Field(None, ge=1, description="tokens of the answer at most")
    temperature: float = Field(1.0, ge=0, le=2, description="0 takes the likeliest token")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, lt=2**31, description="as vLLM's: 0 and -1 keep the whole vocabulary")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="the same seed gives the same answer")
    stop: _Stop | Annotated[list[_Stop], Field(fail_fast=True)] | None = Field(
        None, description="a string that ends the answer, or up to four"
    )
    stream: bool = False
    stream_options: _StreamOptions | None = None
    n: int = Field(1, description="only 1")
    ignore_eos: bool = Field(False, description="as vLLM's: go on after the end of a text")
    cache_salt: str | None = Field(None, max_length=128, description="as vLLM's: whoever shares it shares prefixes")

    @model_validator(mode="before")
    @classmethod
    def _asks_for_what_there_is(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if len(data) > _MOST_FIELDS:  # an error for each would keep everybody else waiting
            raise ValueError(f"{len(data)} fields: expected at most {_MOST_FIELDS}")
        return without(data, UNSUPPORTED)

    @field_validator("n")
    @classmethod
    def _is_one(cls, n: int) -> int:
        if n != 1:
            raise ValueError("this service gives one answer: expected n = 1, or send the request several times")
        return n

    @field_validator("stop")
    @classmethod
    def _are_few(cls, stop: str | list[str] | None) -> str | list[str] | None:
        if isinstance(stop, list) and len(stop) > 4:
            raise ValueError(f"{len(stop)} stop strings: expected at most 4")
        return stop

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def sampling(self, max_tokens: int) -> Sampling:
        """A request without a seed gets one that nobody can guess."""
        seed = secrets.randbits(63) if self.seed is None else self.seed % 2**63
        stop = frozenset[int]() if self.ignore_eos else frozenset({END_OF_TEXT})
        return Sampling(max_tokens, self.temperature, max(0, self.top_k), self.top_p, seed, stop)


class CompletionRequest(_Generation):
    """POST /v1/completions. A prompt is text, or a list of bytes; one prompt per request."""

    prompt: str | _Tokens | Annotated[list[str], _One] | Annotated[list[_Tokens], _One] = Field(
        description="text, a list of bytes, or a list with one of these"
    )

    def tokens(self) -> tuple[int, ...]:
        """Raises ValueError for an empty prompt."""
        prompt: Any = self.prompt
        if isinstance(prompt, list) and not isinstance(prompt[0], int):
            prompt = prompt[0]
        tokens = _encoded(prompt) if isinstance(prompt, str) else tuple(prompt)
        if not tokens:
            raise ValueError("the prompt is empty: expected at least one character")
        return tokens


class TextPart(Sent):
    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(kind := data.get("type"), str) and kind != "text":
            raise refused("type", f"this service reads text only, and this part is {kind[:64]!r}")
        return data


class Message(Sent):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    name: str | None = Field(None, max_length=64)

    @model_validator(mode="before")
    @classmethod
    def _asks_for_what_there_is(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("role") in ("tool", "function"):
            raise refused("role", f"this service calls no tools, and this message is of a {data['role']}")
        return without(data, UNSUPPORTED_IN_A_MESSAGE)

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(_Generation):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: int | None = Field(None, ge=1, description="OpenAI's newer name of max_tokens")

    def tokens(self) -> tuple[int, ...]:
        return _encoded(_chat_prompt(self.messages))


def _chat_prompt(messages: list[Message]) -> str:
    """The conversation as one text: "user: " and so on before each message, a line break after it, and "assistant: " at
    the end for the model to go on from.

    The course's models were trained on program text and know no roles, so this is a template without a meaning of its
    own; a message may also contain "user: ", and nothing tells that from a turn.
    """
    turns = [f"{message.name or message.role}: {message.text}\n" for message in messages]
    return "".join(turns) + "assistant: "


def _encoded(text: str) -> tuple[int, ...]:
    try:
        return tuple(text.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"character {error.start} is half of a surrogate pair, which is no text") from None
