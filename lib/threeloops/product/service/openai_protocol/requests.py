"""The requests that clients send: OpenAI's completions and chat completions, with some fields of vLLM.

Fields of vLLM are `top_k`, `ignore_eos` and `cache_salt`, for example.
"""

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from threeloops.product.request import Sampling
from threeloops.product.service.openai_protocol.fields import (
    UNSUPPORTED,
    UNSUPPORTED_IN_A_MESSAGE,
    Absent,
    Sent,
    refused,
    unfit,
    without,
)
from threeloops.product.service.openai_protocol.structure import Structured
from threeloops.product.text import Tokenizer, checked

__all__ = ["ChatRequest", "CompletionRequest", "Message", "TextPart"]

_Text = Annotated[str, AfterValidator(checked)]
_Stop = Annotated[str, Field(min_length=1, max_length=1024)]
_Token = Annotated[int, Field(ge=0, lt=2**31)]
_Tokens = Annotated[list[_Token], Field(min_length=1, fail_fast=True)]
_Some = Field(min_length=1, max_length=1024, fail_fast=True)
_Bias = Annotated[float, Field(ge=-100, le=100)]
_Penalty = Annotated[float, Field(ge=-2, le=2)]
_MOST_FIELDS = 64


class _StreamOptions(Sent):
    include_usage: bool = False
    continuous_usage_stats: bool = Field(False, description="a field of vLLM: send the usage so far in every event")
    include_obfuscation: bool = False


class _Generation(Structured):
    """The fields that both kinds of requests have."""

    unsupported: ClassVar[Mapping[str, Absent]]

    model: str = Field(max_length=200)
    max_tokens: int | None = Field(None, ge=1, description="the largest number of tokens in the answer")
    temperature: float = Field(1.0, ge=0, le=2, description="0 always takes the likeliest token")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(
        0, ge=-1, lt=2**31, description="a field of vLLM: only the k likeliest tokens are drawn; 0 and -1 turn it off"
    )
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="the same seed gives the same random numbers")
    stop: _Stop | Annotated[list[_Stop], Field(fail_fast=True)] | None = Field(
        None, description="a string that ends the answer, or up to four of them"
    )
    stop_token_ids: Annotated[list[_Token], Field(max_length=1024, fail_fast=True)] = Field(
        [], description="a field of vLLM: tokens that end the answer, as the model's own end tokens do"
    )
    stream: bool = False
    stream_options: _StreamOptions | None = None
    n: int = Field(1, ge=1, le=128, description="the number of answers to each prompt")
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    repetition_penalty: float = Field(
        1.0, ge=0.01, le=100, description="a field of vLLM: values above 1 make repetition less likely; 1 turns it off"
    )
    min_p: float = Field(
        0.0,
        ge=0,
        le=1,
        description="a field of vLLM: the least probability, relative to the likeliest token; 0 turns it off",
    )
    min_tokens: int = Field(
        0, ge=0, description="a field of vLLM: the answer does not end before it has this many tokens"
    )
    logit_bias: Annotated[dict[str, _Bias], Field(max_length=1024)] = Field(
        {}, description="maps numbers of tokens to biases, which are added to the tokens' logits"
    )
    ignore_eos: bool = Field(False, description="a field of vLLM: continue after a token that ends a text")
    cache_salt: str | None = Field(
        None, max_length=128, description="a field of vLLM: only requests with the same salt share cached prefixes"
    )

    @model_validator(mode="before")
    @classmethod
    def _asks_for_what_there_is(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if len(data) > _MOST_FIELDS:  # reporting an error for each would delay all other requests
            raise ValueError(f"the request has {len(data)} fields: expected at most {_MOST_FIELDS}")
        if data.get("best_of") == data.get("n"):
            data = {name: value for name, value in data.items() if name != "best_of"}
        return without(data, cls.unsupported)

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _are_of_tokens(cls, biases: Any) -> Any:
        names: dict[int, str] = {}
        for name in map(str, biases) if isinstance(biases, dict) else ():
            if not (name.isascii() and name.isdecimal() and len(name) < 10):
                raise ValueError(f"{name[:64]!r}: expected the number of a token, such as '65'")
            if (other := names.setdefault(int(name), name)) != name:
                raise ValueError(f"{other!r} and {name!r} are the same token: leave one of the two out")
        return biases

    @model_validator(mode="after")
    def _has_a_stream_for_its_options(self) -> "_Generation":
        if self.stream_options is not None and not self.stream:
            raise unfit("stream_options", "it requires stream = true: add that, or leave stream_options out")
        return self

    @model_validator(mode="after")
    def _ends_where_its_form_does(self) -> "_Generation":
        if self.min_tokens and (form := self.structure) is not None:
            raise unfit("min_tokens", f"{form} alone decides where the answer ends: leave one of the two out")
        return self

    @field_validator("stop")
    @classmethod
    def _are_few(cls, stop: str | list[str] | None) -> str | list[str] | None:
        if isinstance(stop, list) and len(stop) > 4:
            raise ValueError(f"{len(stop)} stop strings: expected at most 4")
        return stop

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def sampling(self, max_tokens: int, end_tokens: frozenset[int], *, answer: int = 0, grammar: str = "") -> Sampling:
        """Return the sampling settings of answer number `answer` of the n answers.

        A request without a seed gets a random one that nobody can guess.
        """
        seed = secrets.randbits(63) if self.seed is None else (self.seed + answer) % 2**63
        goes_on = self.ignore_eos and not grammar  # a grammar allows no tokens after the end of the text
        ends = frozenset() if goes_on else end_tokens
        return Sampling(
            max_tokens,
            self.temperature,
            max(0, self.top_k),
            self.top_p,
            seed,
            ends.union(self.stop_token_ids),
            min_p=self.min_p,
            min_tokens=self.min_tokens,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=tuple((int(token), bias) for token, bias in self.logit_bias.items()),
            grammar=grammar,
            logprobs=self.most_logprobs,
            prompt_logprobs=self.most_logprobs if self.echoes else None,
        )

    @property
    def most_logprobs(self) -> int | None:
        """How many of the likeliest tokens to report at each position. None reports no log-probabilities."""
        raise NotImplementedError

    @property
    def echoes(self) -> bool:
        """Tell whether each answer begins with its prompt."""
        return False

    def prompts(self, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
        """Return the tokens of each prompt. Raises ValueError if a prompt is empty."""
        raise NotImplementedError


class CompletionRequest(_Generation):
    """The body of POST /v1/completions. `prompt` is a text, a list of tokens, or a list of either."""

    unsupported: ClassVar[Mapping[str, Absent]] = {**UNSUPPORTED, "top_logprobs": Absent()}

    prompt: str | _Tokens | Annotated[list[str], _Some] | Annotated[list[_Tokens], _Some] = Field(
        description="a text, a list of tokens, or a list of either"
    )
    max_tokens: int | None = Field(
        None, ge=0, description="the largest number of tokens in the answer; 0, with echo, gives the prompt alone"
    )
    echo: bool = Field(False, description="begin the answer, and its logprobs, with the prompt")
    logprobs: int | None = Field(
        None, ge=0, le=20, description="how many of the likeliest tokens to report at each position"
    )

    @model_validator(mode="after")
    def _asks_for_some_text(self) -> "CompletionRequest":
        if self.max_tokens == 0 and not self.echo:
            raise unfit("max_tokens", "0 requires echo = true, since the answer would be empty: add that, or raise it")
        return self

    @property
    def echoes(self) -> bool:
        return self.echo

    @property
    def most_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def each(self) -> list[str | list[int]]:
        """The list of prompts, also if the request has only one."""
        given: Any = self.prompt
        return [given] if isinstance(given, str) or isinstance(given[0], int) else given

    @property
    def characters(self) -> int:
        """The number of characters of text to encode."""
        return sum(len(one) for one in self.each if isinstance(one, str))

    def prompts(self, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
        prompts = tuple(tokenizer.encode(one) if isinstance(one, str) else tuple(one) for one in self.each)
        if not all(prompts):
            raise ValueError("the prompt is empty: expected at least one character")
        return prompts


class TextPart(Sent):
    type: Literal["text"]
    text: _Text

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(kind := data.get("type"), str) and kind != "text":
            raise refused("type", f"this service reads text only, and this is {kind[:64]!r}")
        return data


class Message(Sent):
    role: Literal["system", "developer", "user", "assistant"]
    content: _Text | Annotated[list[TextPart], Field(fail_fast=True)]
    name: str | None = Field(None, max_length=64)

    @model_validator(mode="before")
    @classmethod
    def _asks_for_what_there_is(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("role") in ("tool", "function"):
            raise refused("role", f"this service calls no tools, and this message has the role {data['role']!r}")
        return without(data, UNSUPPORTED_IN_A_MESSAGE)

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(_Generation):
    """The body of POST /v1/chat/completions."""

    unsupported: ClassVar[Mapping[str, Absent]] = {**UNSUPPORTED, "echo": Absent()}

    messages: list[Message] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: int | None = Field(
        None, ge=1, description="OpenAI's newer name for max_tokens, which it overrides"
    )

    logprobs: bool = Field(False, description="report how likely each token was")
    top_logprobs: int = Field(0, ge=0, le=20, description="how many of the likeliest tokens to report at each position")

    @model_validator(mode="after")
    def _asks_for_both(self) -> "ChatRequest":
        if self.top_logprobs and not self.logprobs:
            raise unfit("top_logprobs", "it requires logprobs = true: add that, or leave top_logprobs out")
        return self

    @property
    def most_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    def prompts(self, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
        """Return the tokens of the conversation, as the only prompt.

        Raises ValueError if the model has no chat template, or if the template fails on the conversation.
        """
        turns = [{"role": message.role, "content": message.text, "name": message.name} for message in self.messages]
        conversation = [{key: text for key, text in turn.items() if text is not None} for turn in turns]
        return (tokenizer.encode_chat(conversation),)
