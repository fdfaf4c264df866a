"""Text to tokens and back: bytes for the course's own models, and the tokenizer that a published model brings along.

>>> tokenizer = load_tokenizer("models/qwen")                 # tokenizer.json and the chat template beside the weights
>>> prompt = tokenizer.encode_chat([{"role": "user", "content": "Hello"}])
>>> decoder = tokenizer.decoder()
>>> for token in generated:
...     print(decoder.push([token]), end="")                  # never half a character
>>> print(decoder.end())
"""

from threeloops.product.text.decoder import TextDecoder
from threeloops.product.text.load import load_tokenizer
from threeloops.product.text.tokenizer import ByteTokenizer, Tokenizer

__all__ = ["ByteTokenizer", "TextDecoder", "Tokenizer", "load_tokenizer"]
