"""Run chat templates in a Jinja sandbox, with the filters, functions and tags that transformers adds.

A template is a program written by the publisher of the model. The sandbox gives it no access to files or to Python
objects. The length of the text is limited, but not the time or memory that the template takes until it writes some.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

__all__ = ["ChatTemplate"]

_MOST_CHARACTERS, _MOST_PER_MESSAGE, _MOST_PER_CHARACTER = 1_000_000, 100, 10
"""A template may write this many characters: in all, for each message besides, and for each character of the messages.
Published templates write far fewer."""


class ChatTemplate:
    """Writes a conversation as text in the format that the model was trained on."""

    def __init__(self, source: str, where: str, special: Mapping[str, str]) -> None:
        """Compile the template `source`, which was read from the file `where`.

        `special` maps the names of special tokens, such as `bos_token`, to their texts. Raises ValueError, with the
        line, if `source` is not a valid template.
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
        """Return the conversation as text, followed by the beginning of the assistant's next message.

        Raises ValueError if the template fails, for example because the model does not know a role, and if it writes
        far more than the conversation.
        """
        given = {"messages": [dict(message) for message in messages], "tools": None, "documents": None}
        own = sum(len(text) for message in messages for text in message.values())
        most = _MOST_CHARACTERS + _MOST_PER_MESSAGE * len(messages) + _MOST_PER_CHARACTER * own
        parts, written = [], 0
        try:
            for part in self._template.generate(**self._special, **given, add_generation_prompt=True):
                parts.append(part)
                if (written := written + len(part)) > most:
                    raise ValueError(f"it wrote more than {most} characters for {own} characters of messages")
            return "".join(parts)
        except Exception as error:  # a template may raise anything
            raise ValueError(f"the model's chat template failed on this conversation: {str(error)[:500]}") from None


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
    """Make the extension for the tag {% generation %}.

    Training programs use the tag to find the assistant's words. It does not change the text.
    """
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
    """Replace Jinja's own filter `tojson`, which also escapes HTML: models were trained on plain JSON."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)
