"""Make answers follow a grammar: a JSON schema, a regular expression, or a choice of texts.

A request carries its grammar as text. The engine follows it with the library `llguidance`, which compiles the grammar
and computes after each token which tokens may come next. For that it needs the bytes of the model's tokens.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

__all__ = ["GrammarError", "Grammars", "check_progress", "grammar_of_choice", "grammar_of_regex", "grammar_of_schema"]

_MOST_COMPILED = 64
_LARGEST = 1 << 16
"""Bytes of a schema, a regular expression, or a choice."""
_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_SCHEMAS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
"""Keys of a schema under which names that the client chose have schemas."""
_VALUES = {"const", "enum", "default", "examples"}
"""Keys of a schema under which are values, and no schemas."""
_TOKENS_TRIED = 8
"""Some grammars compile and fail once the first tokens are read, so these are tried when a grammar is compiled."""


class GrammarError(ValueError):
    """A grammar that cannot be compiled, or not be followed any further."""


def grammar_of_schema(schema: Mapping[str, Any]) -> str:
    """Return the grammar of JSON that fits a schema.

    It allows no white space, because a small model may otherwise write white space without end. Raises ValueError if
    `schema` is not a valid schema.
    """
    try:
        text = _of_size(json.dumps(schema))
        _check_bounds(schema)
        return _matcher_class().grammar_from_json_schema(text, defaults={"whitespace_flexible": False})
    except RecursionError:
        raise ValueError("the schema nests objects too deeply: expected a few dozen levels") from None


def grammar_of_regex(regex: str) -> str:
    """Return the grammar of the texts that a regular expression matches as a whole."""
    return _matcher_class().grammar_from_regex(_of_size(regex))


def grammar_of_choice(choice: Sequence[str]) -> str:
    """Return the grammar that allows exactly one of the texts in `choice`."""
    rules = _of_size(" | ".join(json.dumps(text) for text in choice))
    return _matcher_class().grammar_from_lark(f"start: {rules}")


def _of_size(text: str) -> str:
    """Return `text`. Raises ValueError if it is so long that compiling it would delay other requests."""
    if (size := len(text.encode())) > _LARGEST:
        raise ValueError(f"its text has {size} bytes: expected at most {_LARGEST}")
    return text


def _check_bounds(schema: Mapping[str, Any]) -> None:
    """Raise ValueError for a bound that llguidance would round, because an answer could then break it."""
    parts: list[Any] = [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, Mapping):
            for name, value in part.items():
                if name in _BOUNDS and isinstance(value, int | float) and abs(value) > 2**53:
                    raise ValueError(f"{name} = {str(value)[:64]}: expected a number from -2^53 to 2^53")
                if name in _SCHEMAS and isinstance(value, Mapping):
                    parts += value.values()
                elif name not in _VALUES:
                    parts.append(value)


class Grammars:
    """Compiled grammars for one vocabulary. `tokens` are the bytes of each token; any token of `ends` ends a text."""

    def __init__(self, tokens: Sequence[bytes], ends: Sequence[int]) -> None:
        """Build llguidance's tokenizer, which takes seconds for a vocabulary of 150,000 tokens.

        Raises ImportError if llguidance is not installed.
        """
        self._matcher_class = _matcher_class()
        from llguidance import LLTokenizer, TokenizerWrapper

        self._ends = ends
        wrapper = TokenizerWrapper(_Vocabulary(tokens, ends))
        self._tokenizer = LLTokenizer(wrapper, n_vocab=len(tokens), eos_token=list(ends))
        self._compiled = lru_cache(_MOST_COMPILED)(self._compile)

    def matcher(self, grammar: str) -> Any:
        """Return an `llguidance.LLMatcher` for a text that begins now. Compiles the grammar if it is a new one.

        Raises GrammarError, with the message of llguidance, if the grammar cannot be followed.
        """
        return self._compiled(grammar).deep_copy()

    def _compile(self, grammar: str) -> Any:
        matcher = self._matcher_class(self._tokenizer, grammar, log_level=0)
        check_progress(matcher)
        self._try(matcher.deep_copy())
        return matcher

    def _try(self, matcher: Any) -> None:
        """Follow the grammar for a few tokens, each the first that is allowed."""
        for _ in range(_TOKENS_TRIED):
            mask = matcher.compute_bitmask()
            check_progress(matcher)
            allowed = (8 * at + bit for at, octet in enumerate(mask) if octet for bit in range(8) if octet >> bit & 1)
            token = next((token for token in allowed if token not in self._ends), None)
            if token is None:
                return
            matcher.consume_tokens([token])
            check_progress(matcher)


def check_progress(matcher: Any) -> None:
    """Raises GrammarError if the matcher has failed."""
    if matcher.is_error():
        message, _, _ = matcher.get_error().partition("\n<state>")  # the rest shows the state of the parser
        first, *more = message.splitlines() or [""]
        if "panic" in message.lower():  # a fault of the library, with a backtrace
            first = "llguidance cannot process it"
            more = []
        elif first == "NoExtensionBias":
            first = "at some place no token can come next"
        reasons = [line for line in more if line.startswith("error: ")]  # of a regular expression
        raise GrammarError(" ".join([first, *reasons]))


class _Vocabulary:
    """The tokenizer that llguidance needs.

    llguidance encodes only bytes that the grammar prescribes, and accepts any tokens that spell them. This tokenizer
    takes the longest token at each position.
    """

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], ends: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self.special_token_ids = list(ends)
        self.eos_token_id = ends[0]
        self._numbers = {text: token for token, text in reversed(list(enumerate(tokens))) if token not in ends}
        self._longest = max(map(len, self._numbers), default=0)

    def __call__(self, text: bytes) -> list[int]:
        tokens = []
        start = 0
        while start < len(text):
            for end in range(min(len(text), start + self._longest), start, -1):
                if (token := self._numbers.get(text[start:end])) is not None:
                    break
            else:
                break  # no token matches here, so llguidance handles the rest token by token
            tokens.append(token)
            start = end
        return tokens


def _matcher_class() -> Any:
    from llguidance import LLMatcher

    return LLMatcher
