"""Run a tokenizer with the `tokenizers` library, whichever file describes it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from threeloops.product.text.chat_template import ChatTemplate
from threeloops.product.text.decoder import TextDecoder
from threeloops.product.text.pieces import Pieces
from threeloops.product.text.tokenizer import checked

__all__ = ["LibraryTokenizer"]


class LibraryTokenizer:
    """A tokenizer that the `tokenizers` library runs. Text may contain special tokens, as in transformers."""

    def __init__(
        self,
        library: Any,
        *,
        where: str,
        end_tokens: Iterable[int],
        fingerprint: str,
        template: ChatTemplate | None,
    ) -> None:
        """Wrap `library`, a `tokenizers.Tokenizer` that was read from the file or folder `where`.

        Raises ValueError if its decoder does not work token by token.
        """
        self._library = library
        self._where = where
        self._template = template
        library.no_truncation()
        library.no_padding()
        self.vocabulary: int = max(library.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.end_tokens = frozenset(end_tokens)
        self.fingerprint = fingerprint
        added = library.get_added_tokens_decoder()
        self._special = {token: added_token.content for token, added_token in added.items() if added_token.special}
        decoder = library.decoder
        described = json.loads(decoder.__getstate__()) if decoder is not None else {"type": None}
        try:
            self._pieces = Pieces(library.id_to_token, frozenset(self._special), described)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def encode(self, text: str) -> tuple[int, ...]:
        return self._encoded(text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        if self._template is None:
            raise ValueError(
                f"the model has no chat template in {self._where}: send a prompt to /v1/completions, or serve a model "
                "that was trained to chat"
            )
        tokens = self._encoded(self._template.render(messages), add_special_tokens=False)
        if not tokens:
            raise ValueError("the model's chat template gives an empty text for this conversation")
        return tokens

    def piece(self, token: int) -> bytes:
        return self._pieces.piece(token)

    def special(self, token: int) -> str:
        return self._special.get(token, "")

    def decoder(self, *, continues: bool = False) -> TextDecoder:
        return TextDecoder(self.piece, None if continues else self._pieces.first)

    def _encoded(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        # `encode_batch` lets other threads run meanwhile, and `encode` does not
        (encoded,) = self._library.encode_batch([checked(text)], add_special_tokens=add_special_tokens)
        return tuple(encoded.ids)
