"""What form a client wants its answer to have: OpenAI's `response_format`, and vLLM's fields for the same."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from threeloops.product.grammar import grammar_of_choice, grammar_of_regex, grammar_of_schema
from threeloops.product.service.openai_protocol.fields import Sent, unfit

__all__ = ["Structured"]

_Regex = Annotated[str, Field(min_length=1, max_length=16_384)]
_Choice = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=1024, fail_fast=True)]
_Schema = dict[str, Any] | str


class _JsonSchema(Sent):
    name: str = Field(min_length=1, max_length=64)
    described: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool = Field(False, description="every schema is followed strictly")


class _ResponseFormat(Sent):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> "_ResponseFormat":
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise unfit("json_schema", "expected with the type json_schema, and only with it")
        return self


class _StructuredOutputs(Sent):
    described: _Schema | None = Field(None, alias="json")
    regex: _Regex | None = None
    choice: _Choice | None = None
    json_object: bool = False


class Structured(Sent):
    """A request whose answer may have to have a form. At most one of the fields may ask for one."""

    response_format: _ResponseFormat | None = None
    guided_json: _Schema | None = Field(None, description="as vLLM's: a JSON schema")
    guided_regex: _Regex | None = Field(None, description="as vLLM's: the answer matches it as a whole")
    guided_choice: _Choice | None = Field(None, description="as vLLM's: the answer is one of these")
    structured_outputs: _StructuredOutputs | None = Field(None, description="as vLLM's: one of these forms")

    @model_validator(mode="after")
    def _asks_for_one_form(self) -> "Structured":
        if len(forms := self._forms()) > 1:
            raise unfit(forms[1][0], f"{forms[0][0]} asks for a form of the answer already: expected one of them")
        return self

    @property
    def structure(self) -> str | None:
        """The field that asks for a form; None if the answer may be any text."""
        return next((name for name, _, _ in self._forms()), None)

    def grammar(self) -> str:
        """Of the form. Raises ValueError for one that cannot be described."""
        ((_, kind, form),) = self._forms()
        if kind == "choice":
            return grammar_of_choice(form)
        if kind == "regex":
            return grammar_of_regex(form)
        if isinstance(form, str):
            try:
                form = json.loads(form)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"the schema is not JSON: {error}") from None
        return grammar_of_schema(form)

    def _forms(self) -> list[tuple[str, str, Any]]:
        """(field, kind, form)"""
        wanted, more = self.response_format, self.structured_outputs
        found: list[tuple[str, str, Any]] = []
        if wanted is not None and wanted.type != "text":
            schema = wanted.json_schema.described if wanted.json_schema else {"type": "object"}
            found.append(("response_format", "json", schema))
        for kind in ("json", "regex", "choice"):
            found.append((f"guided_{kind}", kind, getattr(self, f"guided_{kind}")))
        if more is not None:
            found += [
                ("structured_outputs", "json", more.described),
                ("structured_outputs", "json", {"type": "object"} if more.json_object else None),
                ("structured_outputs", "regex", more.regex),
                ("structured_outputs", "choice", more.choice),
            ]
        return [each for each in found if each[2] is not None]
