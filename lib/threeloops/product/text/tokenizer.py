"""The interface of all tokenizers, and the simplest tokenizer: every byte is a token."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from threeloops.product.text.decoder import TextDecoder

__all__ = ["ByteTokenizer", "Tokenizer", "checked"]


class Tokenizer(Protocol):
    """Turns text into tokens and tokens into text, and knows which tokens end a text."""

    vocabulary: int
    """The size of the vocabulary: every token that `encode` returns is below it."""
    end_tokens: frozenset[int]
    """Tokens with which the model ends its text."""
    fingerprint: str
    """A string that differs between tokenizers that give different tokens or texts."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text that the model will continue.

        Raises ValueError if the string contains half of a surrogate pair.
        """
        ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Return the tokens of a conversation, followed by the beginning of the assistant's next message.

        A message has a `role` and a `content`. Raises ValueError if the model has no chat template, or if the template
        fails on the conversation.
        """
        ...

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text. They may be only part of a character.

        Special and unknown tokens add none.
        """
        ...

    def special(self, token: int) -> str:
        """Return the name of a special token, which adds no text, or "" for any other token."""
        ...

    def decoder(self, *, continues: bool = False) -> TextDecoder:
        """Return a decoder for the tokens that the model generates.

        With `continues`, the tokens continue a text that has already begun.
        """
        ...


class ByteTokenizer:
    """A tokenizer whose tokens are the bytes of UTF-8. The course's own models use it."""

    vocabulary = 256
    end_tokens = frozenset({0})
    """The byte that ends a text in the training data of the course's models."""
    fingerprint = "bytes"

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(checked(text).encode())

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Return the tokens of the conversation, written as one line "role: content" per message and "assistant: ".

        A message with a `name` has the name in place of the role. The course's models were trained on program text, so
        these roles mean nothing to them. A message that contains a line "user: " looks like two messages.
        """
        turns = [f"{message.get('name') or message['role']}: {message['content']}\n" for message in messages]
        return self.encode("".join(turns) + "assistant: ")

    def piece(self, token: int) -> bytes:
        return bytes((token,)) if token < self.vocabulary else b""

    def special(self, token: int) -> str:
        return ""

    def decoder(self, *, continues: bool = False) -> TextDecoder:
        return TextDecoder(self.piece)


def checked(text: str) -> str:
    """Return the text unchanged. Raises ValueError if it contains half of a surrogate pair, which JSON allows."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"character {error.start} is half of a surrogate pair, which is not text") from None
    return text
