"""Make answers follow a grammar: a JSON schema, a regular expression, or a choice of texts.

A request carries its grammar as text. The engine follows it with the library `llguidance`, which compiles the grammar
and computes after each token which tokens may come next. For that it needs the bytes of the model's tokens.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

__all__ = ["Grammars", "grammar_of_choice", "grammar_of_regex", "grammar_of_schema"]

_MOST_COMPILED = 64


def grammar_of_schema(schema: Mapping[str, Any]) -> str:
    """Return the grammar of JSON that fits a schema.

    It allows no white space, because a small model may otherwise write white space without end. Raises ValueError if
    `schema` is not a valid schema.
    """
    try:
        return _matcher_class().grammar_from_json_schema(json.dumps(schema), defaults={"whitespace_flexible": False})
    except RecursionError:
        raise ValueError("the schema nests objects too deeply: expected a few dozen levels") from None


def grammar_of_regex(regex: str) -> str:
    """Return the grammar of the texts that a regular expression matches as a whole."""
    return _matcher_class().grammar_from_regex(regex)


def grammar_of_choice(choice: Sequence[str]) -> str:
    """Return the grammar that allows exactly one of the texts in `choice`."""
    rules = " | ".join(json.dumps(text) for text in choice)
    return _matcher_class().grammar_from_lark(f"start: {rules}")


class Grammars:
    """Compiled grammars for one vocabulary. `tokens` are the bytes of each token; any token of `ends` ends a text."""

    def __init__(self, tokens: Sequence[bytes], ends: Sequence[int]) -> None:
        self._tokens, self._ends = tokens, ends
        self._tokenizer: Any = None
        self._compiled = lru_cache(_MOST_COMPILED)(self._compile)

    def check(self, grammar: str) -> None:
        """Check that a grammar can be followed. Raises ValueError, with the message of llguidance, if not."""
        self._compiled(grammar)

    def matcher(self, grammar: str) -> Any:
        """Return an `llguidance.LLMatcher` for a text that begins now."""
        return self._compiled(grammar).deep_copy()

    def _compile(self, grammar: str) -> Any:
        matcher_class = _matcher_class()
        from llguidance import LLTokenizer, TokenizerWrapper

        if self._tokenizer is None:
            wrapper = TokenizerWrapper(_Vocabulary(self._tokens, self._ends))
            self._tokenizer = LLTokenizer(wrapper, n_vocab=len(self._tokens), eos_token=list(self._ends))
        matcher = matcher_class(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher


class _Vocabulary:
    """The tokenizer that llguidance needs.

    llguidance encodes only bytes that the grammar prescribes, and accepts any tokens that spell them. This tokenizer
    takes the longest token at each position.
    """

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], ends: Sequence[int]) -> None:
        self.tokens, self.special_token_ids = list(tokens), list(ends)
        self.eos_token_id = ends[0]
        self._numbers = {text: token for token, text in reversed(list(enumerate(tokens))) if token not in ends}
        self._longest = max(map(len, self._numbers), default=0)

    def __call__(self, text: bytes) -> list[int]:
        found, start = [], 0
        while start < len(text):
            for end in range(min(len(text), start + self._longest), start, -1):
                if (token := self._numbers.get(text[start:end])) is not None:
                    break
            else:
                break  # no token matches here, so llguidance handles the rest token by token
            found.append(token)
            start = end
        return found


def _matcher_class() -> Any:
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise ImportError("structured output needs the package llguidance: pip install llguidance") from error
    return LLMatcher
