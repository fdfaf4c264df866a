"""Run chat templates in a Jinja sandbox, with the filters, functions and tags that transformers adds.

A template is a program written by the publisher of the model. The sandbox gives it no access to files or to Python
objects. The length of the text is limited, and so is the time that the template takes: the clock is checked at each
step of a loop and each call of a macro. A single step cannot be interrupted, so operators that could take very long in
one step are limited too. There is no other limit on the memory that a template uses.
"""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

__all__ = ["ChatTemplate"]

_MOST_CHARACTERS = 1_000_000
_MOST_PER_MESSAGE = 100
_MOST_PER_CHARACTER = 10
"""A template may write this many characters: in all, for each message besides, and for each character of the messages.
Published templates write far fewer."""
_SECONDS = 5.0
"""The processor time that a template may take. Published templates take milliseconds."""
_LONGEST = 10_000_000
"""The largest length of a text or list that `*` may make by repetition."""


class ChatTemplate:
    """Writes a conversation as text in the format that the model was trained on."""

    def __init__(self, source: str, where: str, special: Mapping[str, str]) -> None:
        """Compile the template `source`, which was read from the file `where`.

        `special` maps the names of special tokens, such as `bos_token`, to their texts. Raises ValueError, with the
        line, if `source` is not a valid template.
        """
        from jinja2 import TemplateSyntaxError

        try:
            self._environment = _environment()
            self._template = _compiled(self._environment, source)
        except TemplateSyntaxError as error:
            raise ValueError(
                f"{where}: the chat template is not valid in line {error.lineno}: {error.message}"
            ) from None
        self._special = dict(special)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the conversation as text, followed by the beginning of the assistant's next message.

        Raises ValueError if the template fails, for example because the model does not know a role. Also raises it if
        the template takes too long, or writes far more text than the conversation has.
        """
        given = {"messages": [dict(message) for message in messages], "tools": None, "documents": None}
        own = sum(len(text) for message in messages for text in message.values())
        most = _MOST_CHARACTERS + _MOST_PER_MESSAGE * len(messages) + _MOST_PER_CHARACTER * own
        parts = []
        written = 0
        self._environment.start_clock()
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

    class Limited(ImmutableSandboxedEnvironment):
        """A sandbox that ends a template that takes too long, in `check_clock`, which templates call at each step."""

        intercepted_binops = frozenset({"*", "**"})

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._clock = threading.local()  # per thread, because other threads run the same template

        def start_clock(self) -> None:
            self._clock.end = time.thread_time() + _SECONDS

        def check_clock(self) -> bool:
            if time.thread_time() > self._clock.end:
                raise ValueError(f"it took more than {_SECONDS:g} s of processor time")
            return True

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_size(operator, left, right)
            return super().call_binop(context, operator, left, right)

    environment = Limited(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _generation()])
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _now}
    return environment


def _compiled(environment: Any, source: str) -> Any:
    """Compile a template that calls `check_clock` at each step of a loop, and in each macro and block."""
    from jinja2 import nodes

    def check() -> nodes.Call:
        return nodes.Call(nodes.EnvironmentAttribute("check_clock"), [], [], None, None)

    tree = environment.parse(source)
    for node in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block))):
        node.body.insert(0, nodes.ExprStmt(check()))
        if isinstance(node, nodes.For) and node.test is not None:
            node.test = nodes.And(check(), node.test)
    return environment.template_class.from_code(environment, environment.compile(tree), environment.make_globals(None))


def _check_size(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation that could take very long in one step.

    Raises OverflowError if the result is an integer beyond 64-bit floats, and ValueError if it is a very long text or
    list.
    """
    if operator == "**":
        float(left) ** right  # floats raise OverflowError at once, but integers would be computed forever
        return
    if isinstance(left, int) and isinstance(right, int):
        float(left * right)  # so that an integer cannot be squared again and again
    for text, times in ((left, right), (right, left)):
        if hasattr(text, "__len__") and isinstance(times, int) and len(text) * times > _LONGEST:
            raise ValueError(f"* would repeat {len(text)} elements {times} times: expected at most {_LONGEST} in all")


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
