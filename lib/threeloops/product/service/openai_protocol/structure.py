"""The fields with which a request sets the form of its answer: OpenAI's `response_format`, and those of vLLM."""

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
    strict: bool = Field(False, description="true changes nothing: every schema is followed strictly")


class _ResponseFormat(Sent):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> "_ResponseFormat":
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise unfit("json_schema", "expected if type is 'json_schema', and only then")
        return self


class _StructuredOutputs(Sent):
    described: _Schema | None = Field(None, alias="json")
    regex: _Regex | None = None
    choice: _Choice | None = None
    json_object: bool = False


class Structured(Sent):
    """A request that may set the form of its answer, with at most one of these fields."""

    response_format: _ResponseFormat | None = None
    guided_json: _Schema | None = Field(None, description="a field of vLLM: the answer is JSON that fits this schema")
    guided_regex: _Regex | None = Field(None, description="a field of vLLM: the whole answer matches it")
    guided_choice: _Choice | None = Field(None, description="a field of vLLM: the answer is one of these texts")
    structured_outputs: _StructuredOutputs | None = Field(
        None, description="a field of vLLM: one of these four ways to set the form"
    )

    @model_validator(mode="after")
    def _asks_for_one_form(self) -> "Structured":
        if len(forms := self._forms()) > 1:
            raise unfit(forms[1][0], f"{forms[0][0]} already sets a form for the answer: expected at most one form")
        return self

    @property
    def structure(self) -> str | None:
        """The name of the field that sets the form of the answer, or None if the answer may be any text."""
        return next((name for name, _, _ in self._forms()), None)

    def grammar(self) -> str:
        """Return the grammar of the form that the request sets. Raises ValueError if the form is not valid."""
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
        """List the forms that the request sets, each as (field, kind, form)."""
        wanted = self.response_format
        more = self.structured_outputs
        forms: list[tuple[str, str, Any]] = []
        if wanted is not None and wanted.type != "text":
            schema = wanted.json_schema.described if wanted.json_schema else {"type": "object"}
            forms.append(("response_format", "json", schema))
        for kind in ("json", "regex", "choice"):
            forms.append((f"guided_{kind}", kind, getattr(self, f"guided_{kind}")))
        if more is not None:
            forms += [
                ("structured_outputs", "json", more.described),
                ("structured_outputs", "json", {"type": "object"} if more.json_object else None),
                ("structured_outputs", "regex", more.regex),
                ("structured_outputs", "choice", more.choice),
            ]
        return [form for form in forms if form[2] is not None]
