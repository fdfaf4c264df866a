"""GGUF, the files of llama.cpp: a GPT written in F32, F16, Q8_0 or Q4_0, and read back.

>>> export_gguf(model, Path("model.gguf"), TensorType.Q8_0)
>>> load_gguf(Path("model.gguf"), keep_bits=True)            # its layers are QuantizedLinear
>>> read_file(Path("model.gguf")).metadata["llama.block_count"]
2
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.quantized.gguf.blocks import TensorType, decode, encode
    from threeloops.product.quantized.gguf.container import File, StoredTensor, read_file, write_file
    from threeloops.product.quantized.gguf.errors import GGUFError
    from threeloops.product.quantized.gguf.gpt import export_gguf, load_gguf
    from threeloops.product.quantized.gguf.vocabulary import (
        TokenType,
        Vocabulary,
        byte_vocabulary,
        expression_of,
        read_tokenizer,
    )
else:
    import_on_demand(__name__)

__all__ = [
    "File", "GGUFError", "StoredTensor", "TensorType", "TokenType", "Vocabulary", "byte_vocabulary", "decode", "encode",
    "export_gguf", "expression_of", "load_gguf", "read_file", "read_tokenizer", "write_file",
]  # fmt: skip
