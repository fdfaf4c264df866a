"""Convert text to tokens and back.

The course's own models take bytes as tokens. A published model brings its own tokenizer.

>>> tokenizer = load_tokenizer("models/qwen")                 # tokenizer.json and the chat template beside the weights
>>> prompt = tokenizer.encode_chat([{"role": "user", "content": "Hello"}])
>>> decoder = tokenizer.decoder()
>>> for token in generated:
...     print(decoder.push([token]), end="")                  # never half a character
>>> print(decoder.end())
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.text.decoder import TextDecoder
    from threeloops.product.text.load import load_tokenizer
    from threeloops.product.text.tokenizer import ByteTokenizer, Tokenizer, checked
else:
    import_on_demand(__name__)

__all__ = ["ByteTokenizer", "TextDecoder", "Tokenizer", "checked", "load_tokenizer"]
