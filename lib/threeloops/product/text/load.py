"""Which tokenizer belongs to a model."""

from pathlib import Path

from threeloops.product.text.folder import read_folder, read_object
from threeloops.product.text.tokenizer import ByteTokenizer, Tokenizer

__all__ = ["load_tokenizer"]


def load_tokenizer(model: str) -> Tokenizer:
    """The tokenizer in a model's folder or GGUF file; bytes for a model of the course, by its name.

    A folder or file without a tokenizer is one of bytes if its vocabulary has 256 tokens. Raises ValueError for another
    vocabulary, and for files that cannot be used.
    """
    path = Path(model)
    if path.is_file():
        from threeloops.product.text.gguf import read_gguf  # PyTorch with it, which the service itself does without

        return read_gguf(path)
    if (path / "tokenizer.json").exists():
        return read_folder(path)
    size = read_object(path / "config.json").get("vocab_size", ByteTokenizer.vocabulary)
    if size != ByteTokenizer.vocabulary:
        old = [name for name in ("tokenizer.model", "vocab.json") if (path / name).exists()]
        has = f"has {old[0]} and no tokenizer.json" if old else "has no tokenizer.json"
        raise ValueError(
            f"{model} {has}, and its vocabulary has {size} tokens: expected a tokenizer.json beside the weights, as "
            "transformers' AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes it, or "
            f"{ByteTokenizer.vocabulary} tokens for a model of bytes"
        )
    return ByteTokenizer()
