"""Recognition of token files that other programs wrote, with a line of Python that imports them."""

import struct
from pathlib import Path

import numpy as np

__all__ = ["describe_foreign"]

_LLM_C = {20240520: "<u2", 20240801: "<u4"}
"""Magic numbers of llm.c, with the type of the tokens. FineWeb's shards for llm.c and modded-nanogpt use them."""
_LLM_C_HEADER_BYTES = 1024
_MEGATRON = b"MMIDIDX\0\0"
_MEGATRON_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_IMPORT = "from threeloops.data.formats.token_shards import write_token_shards"
_UNSIGNED = {"i1": "<u1", "i2": "<u2", "i4": "<u4", "i8": "<u4", "u8": "<u4"}
"""The types to which tokens are converted, by kind and size. Token shards store the other integers as they are."""


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
    full = str(path.absolute())
    words = struct.unpack_from("<3i", head) if len(head) >= 12 else (0,)
    if words[0] in _LLM_C:
        piece = f'np.memmap({full!r}, "{_LLM_C[words[0]]}", "r", {_LLM_C_HEADER_BYTES})'
        return f"a shard of {words[2]:,} tokens in llm.c's format, as FineWeb's are", f"[{piece}]", numbers
    if path.suffix == ".idx" and head.startswith(_MEGATRON) and len(head) > 17:
        if (kind := _MEGATRON_TYPES.get(head[17])) is None:
            return None
        data = str(path.absolute().with_suffix(".bin"))
        piece = f'np.memmap({data!r}, "{kind}", "r"){_as_unsigned(np.dtype(kind))}'
        return f"the index of a Megatron corpus, whose tokens are in {path.stem}.bin", f"[{piece}]", numbers
    rows = '(np.asarray(row["input_ids"], "<u4") for row in {})'
    if head.startswith(b"ARROW1\0\0") or path.suffix == ".arrow":  # a stream of Arrow begins with no magic
        data = f"Dataset.from_file({full!r})"
        return (
            "an Arrow table, as the package datasets writes",
            rows.format(data),
            f"{numbers}; from datasets import Dataset",
        )
    if head.startswith(b"PAR1"):
        data = f"Dataset.from_parquet({full!r})"
        return "a Parquet table", rows.format(data), f"{numbers}; from datasets import Dataset"
    if head.startswith(b"\x93NUMPY"):
        try:
            dtype = np.load(path, mmap_mode="r").dtype
        except ValueError:  # an array of objects, or a file that is cut short
            return None
        if dtype.kind not in "iu":
            return None
        return "a NumPy array", f'[np.load({full!r}, mmap_mode="r").ravel(){_as_unsigned(dtype)}]', numbers
    if path.suffix == ".bin" and not head.startswith(b"3LTOKENS") and path.stem in ("train", "val", "test"):
        return (
            "a file of tokens without a header, as nanoGPT writes",
            f'[np.memmap({full!r}, "<u2", "r")]',
            numbers,
        )
    return None


def _as_unsigned(dtype: np.dtype) -> str:
    """Return the end of an expression that converts tokens to a type of token shards. Return "" if none is needed."""
    kind = _UNSIGNED.get(f"{dtype.kind}{dtype.itemsize}")
    return f'.astype("{kind}")' if kind else ""
