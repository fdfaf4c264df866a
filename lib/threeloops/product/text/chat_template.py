"""Chat templates as transformers runs them: Jinja in a sandbox, with its extras and without the rest.

A template is a program from whoever published the model, so it runs where it can neither change nor reach anything.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

__all__ = ["ChatTemplate"]


class ChatTemplate:
    """Writes a conversation as the text that the model was trained on."""

    def __init__(self, source: str, where: str, special: Mapping[str, str]) -> None:
        """`special` are the texts of the special tokens by their names, such as `bos_token`.

        Raises ValueError, with the line, if `source`, from the file `where`, is not a template.
        """
        from jinja2 import TemplateSyntaxError

        try:
            self._template = _environment().from_string(source)
        except TemplateSyntaxError as error:
            raise ValueError(
                f"{where}: the chat template is not valid in line {error.lineno}: {error.message}"
            ) from None
        self._special = dict(special)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The conversation, and the beginning of the assistant's next message.

        Raises ValueError if the template fails or refuses, such as for a role that the model does not know.
        """
        given = {"messages": [dict(message) for message in messages], "tools": None, "documents": None}
        try:
            return self._template.render(**self._special, **given, add_generation_prompt=True)
        except Exception as error:  # a template may raise anything
            raise ValueError(f"the model's chat template refuses this conversation: {str(error)[:500]}") from None


def _environment() -> Any:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _generation()]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _now}
    return environment


def _generation() -> Any:
    """The tag {% generation %}, by which trainers mark the assistant's words; here it changes nothing."""
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's own filter also escapes for HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)
