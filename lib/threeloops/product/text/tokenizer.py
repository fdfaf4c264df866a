"""What every tokenizer here can do, and the simplest one: a byte is a token."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from threeloops.product.text.decoder import TextDecoder

__all__ = ["ByteTokenizer", "Tokenizer", "checked"]


class Tokenizer(Protocol):
    """Turns text into tokens and tokens into text, and knows which tokens end a text."""

    vocabulary: int
    """The number of tokens that `encode` may give: all are below it."""
    end_tokens: frozenset[int]
    """Tokens after which the model has finished its text."""
    fingerprint: str
    """Differs between tokenizers that give different tokens or texts."""

    def encode(self, text: str) -> tuple[int, ...]:
        """The tokens of a text to continue. Raises ValueError for a string that is not text."""
        ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """The tokens of a conversation, up to where the assistant's next message begins.

        A message has a `role` and a `content`. Raises ValueError if the model has no chat template, or if its template
        refuses the conversation.
        """
        ...

    def piece(self, token: int) -> bytes:
        """The bytes that a token adds to a text, often part of a character; none for special and unknown tokens."""
        ...

    def special(self, token: int) -> str:
        """The token's own text if it is special, which it does not add to a text; "" if it is not."""
        ...

    def decoder(self, *, continues: bool = False) -> TextDecoder:
        """A decoder for the tokens that the model generates. With `continues`, they go on in the middle of a text."""
        ...


class ByteTokenizer:
    """Takes the bytes of UTF-8 as tokens, as the course's models do."""

    vocabulary = 256
    end_tokens = frozenset({0})
    """The byte that ends a text in the training data of the course's models."""
    fingerprint = "bytes"

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(checked(text).encode())

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """The conversation as one text: "user: " and so on before each message, a line break after it, and at the end
        "assistant: " for the model to go on from.

        The course's models were trained on program text and know no roles, so this template has no meaning to them. A
        message may also contain "user: ", and nothing tells that from a turn.
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
    """The text itself. Raises ValueError if a character is half of a surrogate pair, which JSON can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"character {error.start} is half of a surrogate pair, which is not text") from None
    return text
