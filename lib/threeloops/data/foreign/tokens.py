"""Recognition of token files that other programs wrote, with a line of Python that imports them."""

import struct
from pathlib import Path

__all__ = ["describe_foreign"]

_LLM_C = {20240520: "<u2", 20240801: "<u4"}
"""Magic numbers of llm.c, with the type of the tokens. FineWeb's shards for llm.c and modded-nanogpt use them."""
_LLM_C_HEADER_BYTES = 1024
_MEGATRON = b"MMIDIDX\0\0"
_MEGATRON_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_IMPORT = "from threeloops.data.formats.token_shards import write_token_shards"
_UNSIGNED = {"<u1": "<u1", "<i1": "<u1", "<u2": "<u2", "<i2": "<u2", "<u4": "<u4", "<i4": "<u4", "<i8": "<u4"}


def describe_foreign(path: Path) -> str:
    """Describe the format of a file that is not a token shard, and how to import it.

    For a folder, describe the first file with a recognised format. Return "" if no format is recognised. The function
    reads only the beginning of each file.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file())
        files.sort(key=lambda file: file.suffix != ".idx")  # an .idx file describes the .bin next to it
        return next(filter(None, map(describe_foreign, files)), "")
    with path.open("rb") as file:
        head = file.read(64)
    kind = _kind(path, head)
    if kind is None:
        return ""
    name, pieces, imports = kind
    return (
        f"{path.name} is {name}. Import it with: {_IMPORT}; {imports}; "
        f"write_token_shards(new_folder, {pieces}, tokens_per_shard=10**8)"
    )


def _kind(path: Path, head: bytes) -> tuple[str, str, str] | None:
    """Return the format's name, an expression for its arrays of tokens, and the imports of that expression."""
    numbers = "import numpy as np"
    words = struct.unpack_from("<3i", head) if len(head) >= 12 else (0,)
    if words[0] in _LLM_C:
        piece = f'np.memmap("{path.name}", "{_LLM_C[words[0]]}", "r", {_LLM_C_HEADER_BYTES})'
        return f"a shard of {words[2]:,} tokens in llm.c's format, as FineWeb's are", f"[{piece}]", numbers
    if path.suffix == ".idx" and head.startswith(_MEGATRON) and len(head) > 17:
        if (dtype := _MEGATRON_TYPES.get(head[17])) is None:
            return None
        piece = f'np.memmap("{path.stem}.bin", "{dtype}", "r").astype("{_UNSIGNED[dtype]}")'
        return f"the index of a Megatron corpus, whose tokens are in {path.stem}.bin", f"[{piece}]", numbers
    rows = '(np.asarray(row["input_ids"], "<u4") for row in {})'
    if head.startswith(b"ARROW1\0\0") or path.suffix == ".arrow":  # a stream of Arrow begins with no magic
        data = f'Dataset.from_file("{path.name}")'
        return (
            "an Arrow table, as the package datasets writes",
            rows.format(data),
            f"{numbers}; from datasets import Dataset",
        )
    if head.startswith(b"PAR1"):
        data = f'Dataset.from_parquet("{path.name}")'
        return "a Parquet table", rows.format(data), f"{numbers}; from datasets import Dataset"
    if head.startswith(b"\x93NUMPY"):
        return "a NumPy array", f'[np.load("{path.name}", mmap_mode="r").ravel()]', numbers
    if path.suffix == ".bin" and not head.startswith(b"3LTOKENS") and path.stem in ("train", "val", "test"):
        return (
            "a file of tokens without a header, as nanoGPT writes",
            f'[np.memmap("{path.name}", "<u2", "r")]',
            numbers,
        )
    return None
