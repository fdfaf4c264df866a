"""What the service answers: completions, chat completions and models, as OpenAI's clients read them."""

from typing import Any, Literal

from pydantic import Field

from threeloops.product.service.openai_protocol.fields import Wire

__all__ = [
    "ChatChoice", "ChatCompletion", "ChatMessage", "Completion", "CompletionChoice", "Model", "ModelList",
    "TokensOfPrompt", "Usage", "usage",
]  # fmt: skip


class TokensOfPrompt(Wire):
    cached_tokens: int = 0


class Usage(Wire):
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


class _Choice(Wire):
    index: Literal[0] = 0
    finish_reason: Literal["stop", "length"] | None
    logprobs: None = None


class CompletionChoice(_Choice):
    text: str


class ChatMessage(Wire):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(_Choice):
    message: ChatMessage


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
