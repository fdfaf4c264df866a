"""What goes over the wire: OpenAI's completions, chat completions and models, as far as this service has them.

What a request asks for and the service does not have is refused by name, since an answer that ignores it is wrong
without saying so. Fields that change no answer (`user`, `metadata`, …) are accepted. Beyond OpenAI's there are vLLM's
`top_k`, `ignore_eos` and `cache_salt`.
"""

import secrets
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from threeloops.product.request import Sampling
from threeloops.product.text import Tokenizer

__all__ = [
    "ChatChoice", "ChatCompletion", "ChatMessage", "ChatRequest", "Completion", "CompletionChoice",
    "CompletionRequest", "Message", "Model", "ModelList", "TextPart", "TokensOfPrompt", "Usage", "usage",
]  # fmt: skip

_Stop = Annotated[str, Field(min_length=1, max_length=1024)]
_Tokens = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, fail_fast=True)]
_One = Field(min_length=1, max_length=1, fail_fast=True)
_MOST_FIELDS = 64
_IGNORED = {
    "metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user",
}  # fmt: skip
"""Fields that change no answer of this service."""
_UNSUPPORTED = {
    "audio": (),
    "best_of": (1,),
    "echo": (),
    "frequency_penalty": (),
    "function_call": ("none", "auto"),
    "functions": (),
    "logit_bias": (),
    "logprobs": (),
    "modalities": (["text"],),
    "prediction": (),
    "presence_penalty": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "suffix": (),
    "tool_choice": ("none", "auto"),
    "tools": (),
    "top_logprobs": (),
    "verbosity": (),
    "web_search_options": (),
}  # fmt: skip
"""Fields that this service does not have, each with values by which a client asks for what it gets anyway; null, false,
0 and empty ones are such values too."""


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _with_null(schema: dict[str, Any]) -> None:
    for name, known in schema.get("properties", {}).items():
        if name not in schema.get("required", ()) and {"type": "null"} not in known.get("anyOf", ()):
            schema["properties"][name] = {"anyOf": [known, {"type": "null"}]}


class _Sent(_Wire):
    """What clients send. OpenAI's send null for what was not set, so null stands for the default."""

    model_config = ConfigDict(json_schema_extra=_with_null)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {name: value for name, value in data.items() if value is not None or name not in optional}


class _StreamOptions(_Sent):
    include_usage: bool = False
    include_obfuscation: bool = False


class _Generation(_Sent):
    """What both kinds of requests say."""

    model: str = Field(max_length=200)
    max_tokens: int | None = Field(None, ge=1, description="tokens of the answer at most")
    temperature: float = Field(1.0, ge=0, le=2, description="0 takes the likeliest token")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, le=256, description="as vLLM's: 0 keeps the whole vocabulary")
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
        for name in _UNSUPPORTED.keys() & data.keys():
            if data[name] and data[name] not in _UNSUPPORTED[name]:
                said = "this service does not support {param}: leave it out"
                raise PydanticCustomError("unsupported", said, {"param": name})
        return {name: value for name, value in data.items() if name not in _UNSUPPORTED and name not in _IGNORED}

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

    def sampling(self, max_tokens: int, end_tokens: frozenset[int]) -> Sampling:
        """A request without a seed gets one that nobody can guess."""
        seed = secrets.randbits(63) if self.seed is None else self.seed % 2**63
        stop = frozenset[int]() if self.ignore_eos else end_tokens
        return Sampling(max_tokens, self.temperature, self.top_k, self.top_p, seed, stop)


class CompletionRequest(_Generation):
    """POST /v1/completions. A prompt is text, or a list of tokens; one prompt per request."""

    prompt: str | _Tokens | Annotated[list[str], _One] | Annotated[list[_Tokens], _One] = Field(
        description="text, a list of tokens, or a list with one of these"
    )

    @property
    def characters(self) -> int:
        """Of the text to encode."""
        text = self.prompt if isinstance(self.prompt, str) else self.prompt[0]
        return len(text) if isinstance(text, str) else 0

    def tokens(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Raises ValueError for an empty prompt."""
        prompt: Any = self.prompt
        if isinstance(prompt, list) and not isinstance(prompt[0], int):
            prompt = prompt[0]
        tokens = tokenizer.encode(prompt) if isinstance(prompt, str) else tuple(prompt)
        if not tokens:
            raise ValueError("the prompt is empty: expected at least one character")
        return tokens


class TextPart(_Sent):
    type: Literal["text"]
    text: str


class Message(_Sent):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    name: str | None = Field(None, max_length=64)

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(_Generation):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: int | None = Field(None, ge=1, description="OpenAI's newer name of max_tokens")

    @property
    def characters(self) -> int:
        """Of the text to encode."""
        return sum(len(message.text) for message in self.messages)

    def tokens(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Raises ValueError if the model's chat template refuses the conversation, or there is none."""
        named = [({"name": message.name} if message.name else {}) for message in self.messages]
        given = [{"role": message.role, "content": message.text} for message in self.messages]
        return tokenizer.encode_chat([one | name for one, name in zip(given, named, strict=True)])


class TokensOfPrompt(_Wire):
    cached_tokens: int = 0


class Usage(_Wire):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: TokensOfPrompt


def usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    """`Usage` as plain data."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class _Choice(_Wire):
    index: Literal[0] = 0
    finish_reason: Literal["stop", "length"] | None
    logprobs: None = None


class CompletionChoice(_Choice):
    text: str


class ChatMessage(_Wire):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(_Choice):
    message: ChatMessage


class _Answer(_Wire):
    id: str
    created: int
    model: str
    system_fingerprint: str = Field(description="the version of the model that answered")


class Completion(_Answer):
    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: Usage


class ChatCompletion(_Answer):
    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: Usage


class Model(_Wire):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["threeloops"] = "threeloops"


class ModelList(_Wire):
    object: Literal["list"] = "list"
    data: list[Model]
