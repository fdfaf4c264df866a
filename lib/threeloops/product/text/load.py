"""Find the tokenizer of a model."""

from pathlib import Path

from threeloops.product.text.folder import read_folder
from threeloops.product.text.tokenizer import ByteTokenizer, Tokenizer
from threeloops.product.tokenizer_files import read_object

__all__ = ["load_tokenizer"]


def load_tokenizer(model: str) -> Tokenizer:
    """Return the tokenizer of `model`: a folder, a GGUF file, or "" for a model of the course, whose tokens are bytes.

    A folder without a `tokenizer.json` gets the byte tokenizer if its `config.json` states a vocabulary of 256 tokens,
    or none. A GGUF file without a tokenizer gets it if its embedding has 256 rows. Raises ValueError if a model of
    another size has no tokenizer, and for files that are not usable.
    """
    if not model:
        return ByteTokenizer()
    path = Path(model)
    if path.is_file():
        from threeloops.product.text.gguf import read_gguf  # imports PyTorch, which the service otherwise does not need

        return read_gguf(path)
    if (path / "tokenizer.json").exists():
        return read_folder(path)
    size = read_object(path / "config.json").get("vocab_size", ByteTokenizer.vocabulary)
    if size != ByteTokenizer.vocabulary:
        old = [name for name in ("tokenizer.model", "vocab.json") if (path / name).exists()]
        has = f"has {old[0]} and no tokenizer.json" if old else "has no tokenizer.json"
        raise ValueError(
            f"{model} {has}, and its vocabulary has {size} tokens: expected a tokenizer.json beside the weights (write "
            "it with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)), or a vocabulary of "
            f"{ByteTokenizer.vocabulary} tokens, which are bytes"
        )
    return ByteTokenizer()
