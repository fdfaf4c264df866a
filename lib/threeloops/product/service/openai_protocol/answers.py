"""The service's answers, in the format of OpenAI's API: completions, chat completions and models."""

from typing import Any, Literal

from pydantic import Field

from threeloops.product.service.openai_protocol.fields import Wire

__all__ = [
    "ChatChoice", "ChatCompletion", "ChatLogprobs", "ChatMessage", "Completion", "CompletionChoice",
    "CompletionLogprobs", "Model", "ModelList", "TokensOfPrompt", "Usage", "usage",
]  # fmt: skip


class TokensOfPrompt(Wire):
    cached_tokens: int = 0


class Usage(Wire):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: TokensOfPrompt


def usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    """Return the fields of a `Usage` as a dictionary, from numbers of tokens."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class _Choice(Wire):
    index: int = 0
    finish_reason: Literal["stop", "length"] | None


class CompletionLogprobs(Wire):
    """Lists that have one element for each token. The first token of a prompt has no log-probabilities."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(_Choice):
    text: str
    logprobs: CompletionLogprobs | None = None


class _LikelyToken(Wire):
    token: str
    logprob: float
    bytes: list[int]


class _ChatToken(_LikelyToken):
    top_logprobs: list[_LikelyToken]


class ChatLogprobs(Wire):
    content: list[_ChatToken]
    refusal: None = None


class ChatMessage(Wire):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(_Choice):
    message: ChatMessage
    logprobs: ChatLogprobs | None = None


class _Answer(Wire):
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


class Model(Wire):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["threeloops"] = "threeloops"


class ModelList(Wire):
    object: Literal["list"] = "list"
    data: list[Model]
