"""The text that the course's model learns: the Python source of the running Python's standard library.

It is on every machine, its licence (PSF) permits this use, and a model's output can be judged at a glance. A byte is a
token. One file in twenty, chosen by a hash of its name, is held out: the same files in every version.
"""

import functools
import hashlib
import sysconfig
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

# ruff: noqa: F821  the strings are jaxtyping shapes, not forward references

__all__ = ["SEPARATOR", "decode", "encode", "standard_library"]

SEPARATOR = 0
"""The byte between two files, and before the first: a prompt that begins with it begins a file."""
_SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


def encode(text: str) -> list[int]:
    return list(text.encode())


def decode(tokens: list[int]) -> str:
    """Bytes that are not UTF-8, as when generation stops within a character, become replacement characters."""
    return bytes(tokens).decode(errors="replace")


def standard_library(root: Path | None = None) -> tuple[Int[Tensor, "train"], Int[Tensor, "held_out"]]:
    """Return the bytes of all modules except tests, to train on and held out, as uint8, about 12 million. A process
    reads its own library once, so do not change the result.

    Raises FileNotFoundError if there are no sources, as in a Python that was installed without them.
    """
    return _read(root) if root else _own()


@functools.cache
def _own() -> tuple[Tensor, Tensor]:
    return _read(Path(sysconfig.get_paths()["stdlib"]))


def _read(root: Path) -> tuple[Tensor, Tensor]:
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not _SKIPPED.intersection(name.parts):
            held_out = hashlib.blake2b(name.as_posix().encode()).digest()[0] % 20 == 0
            parts[held_out].append(bytes([SEPARATOR]) + path.read_bytes())
    if not parts[False] or not parts[True]:
        raise FileNotFoundError(
            f"{root}: expected the standard library's sources, found {sum(map(len, parts.values()))} files; install "
            "the package that has them (python3-full, libpython3-stdlib), or pass the folder of another Python"
        )
    train, held_out = (torch.frombuffer(bytearray(b"".join(parts[kind])), dtype=torch.uint8) for kind in (False, True))
    return train, held_out
