"""The rules for all messages, and the fields of OpenAI and vLLM that this service does not support.

The service rejects a field that it does not support and names it, unless the value is the default or the field cannot
change the answer. If it ignored the field, the client would get a wrong answer without knowing. Default values are
allowed because some clients send every field they know.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

__all__ = [
    "UNSUPPORTED", "UNSUPPORTED_IN_A_MESSAGE", "Absent", "Sent", "Wire", "refused", "unfit",
    "without",
]  # fmt: skip

_TEXT = "this service reads and writes text only"
_TOOLS = "this service calls no tools"
_NOTHING: tuple[Any, ...] = (None, False, 0, "", [], {})


class Absent:
    """A field that this service does not support, the reason, and the values that change nothing (`neutral`)."""

    def __init__(self, *neutral: Any, why: str = "this service does not support it", also: tuple[Any, ...] = _NOTHING):
        self.neutral = (*also, *neutral)
        self.why = why


def _only(*neutral: Any) -> Absent:
    """Return an `Absent` that allows only null and `neutral`, for a field in which False or 0 has a meaning."""
    return Absent(*neutral, also=(None,))


UNSUPPORTED: Mapping[str, Absent] = {
    # fields of OpenAI
    "audio": Absent(why=_TEXT),
    "best_of": Absent(1),
    "function_call": Absent("none", "auto", why=_TOOLS),
    "functions": Absent(why=_TOOLS),
    "modalities": Absent(["text"], why=_TEXT),
    "prediction": Absent(),
    "reasoning_effort": Absent(),
    "suffix": Absent(),
    "tool_choice": Absent("none", "auto", why=_TOOLS),
    "tools": Absent(why=_TOOLS),
    "verbosity": Absent(),
    "web_search_options": Absent(why=_TOOLS),
    # fields of vLLM
    "add_generation_prompt": _only(True),
    "add_special_tokens": Absent(True),
    "allowed_token_ids": Absent(),
    "bad_words": Absent(),
    "chat_template": Absent(),
    "chat_template_kwargs": Absent(),
    "continue_final_message": Absent(),
    "detokenize": _only(True),
    "documents": Absent(),
    "early_stopping": Absent(),
    "guided_grammar": Absent(),
    "guided_whitespace_pattern": Absent(),
    "include_stop_str_in_output": Absent(),
    "kv_transfer_params": Absent(),
    "length_penalty": _only(1),
    "logits_processors": Absent(),
    "mm_processor_kwargs": Absent(why=_TEXT),
    "priority": Absent(),
    "prompt_logprobs": _only(),
    "return_token_ids": Absent(),
    "return_tokens_as_token_ids": Absent(),
    "skip_special_tokens": _only(True),
    "spaces_between_special_tokens": _only(True),
    "structural_tag": Absent(),
    "truncate_prompt_tokens": _only(),
    "use_beam_search": Absent(),
    "vllm_xargs": Absent(),
}

UNSUPPORTED_IN_A_MESSAGE: Mapping[str, Absent] = {
    "annotations": Absent(why=_TEXT),
    "audio": Absent(why=_TEXT),
    "function_call": Absent(why=_TOOLS),
    "reasoning": Absent(),
    "reasoning_content": Absent(),
    "refusal": Absent(),
    "tool_call_id": Absent(why=_TOOLS),
    "tool_calls": Absent(why=_TOOLS),
}
"""Clients of OpenAI send the service's own messages back, with null for each field that was missing."""

_IGNORED = {
    "guided_decoding_backend", "include_reasoning", "metadata", "parallel_tool_calls", "parsed", "prompt_cache_key",
    "prompt_cache_retention", "request_id", "safety_identifier", "service_tier", "store", "user",
}  # fmt: skip
"""Fields that cannot change an answer of this service."""


def without(data: Mapping[str, Any], unsupported: Mapping[str, Absent]) -> dict[str, Any]:
    """Return `data` without the fields that change nothing.

    Raises PydanticCustomError for the first of the `unsupported` fields whose value is not neutral.
    """
    for name in data:
        if (absent := unsupported.get(name)) is not None and data[name] not in absent.neutral:
            raise refused(name, absent.why)
    return {name: value for name, value in data.items() if name not in unsupported and name not in _IGNORED}


def refused(name: str, why: str) -> PydanticCustomError:
    """Make the error for an unsupported field `name` of the object that is being validated."""
    return PydanticCustomError("unsupported", "{why}: leave it out", {"param": name, "why": why})


def unfit(name: str, why: str) -> PydanticCustomError:
    """Make the error for a field `name`, of the object being validated, whose value contradicts another field."""
    return PydanticCustomError("unfit", "{why}", {"param": name, "why": why})


class Wire(BaseModel):
    """A message, or an object within one. Its types are strict, and fields it does not define are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _with_null(schema: dict[str, Any]) -> None:
    for name, field in schema.get("properties", {}).items():
        if name not in schema.get("required", ()) and {"type": "null"} not in field.get("anyOf", ()):
            schema["properties"][name] = {"anyOf": [field, {"type": "null"}]}


class Sent(Wire):
    """An object that clients send. Null stands for the default, since OpenAI's clients send it for unset fields."""

    model_config = ConfigDict(json_schema_extra=_with_null)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {name: value for name, value in data.items() if value is not None or name not in optional}
