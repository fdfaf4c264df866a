"""Tar shards in the WebDataset layout: the files of a sample lie next to each other and share a key.

A shard is read from front to back: one open for thousands of samples, and no look-up for any. Source: Aizman et al.
2019, "High performance I/O for large scale deep learning", arXiv:2001.01858.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from threeloops.data.errors import CorruptData
from threeloops.data.formats.sample import Sample, split_name, unrepeated
from threeloops.data.formats.tar_members import BLOCK, header, read_members
from threeloops.files import replacing


def shard_bytes(samples: Iterable[Sample]) -> Iterator[bytes]:
    """A shard, piece by piece. Raises ValueError for a key that comes twice."""
    for sample in unrepeated(samples):
        for name, contents in sample.files():
            yield header(name, len(contents)) + contents + bytes(-len(contents) % BLOCK)
    yield bytes(2 * BLOCK)


def write_tar_shard(path: Path, samples: Iterable[Sample]) -> None:
    """Write one shard, whole or not at all."""
    with replacing(path) as file:
        for piece in shard_bytes(samples):
            file.write(piece)


def write_tar_shards(folder: Path, samples: Iterable[Sample], samples_per_shard: int) -> list[Path]:
    """`shard-000000.tar`, … with so many samples each. Raises ValueError for a key that comes twice, in any of them."""
    if samples_per_shard < 1:
        raise ValueError(f"samples_per_shard = {samples_per_shard}: expected at least 1")
    paths: list[Path] = []
    kept: list[Sample] = []
    Path(folder).mkdir(parents=True, exist_ok=True)

    def flush() -> None:
        paths.append(Path(folder) / f"shard-{len(paths):06d}.tar")
        write_tar_shard(paths[-1], kept)
        kept.clear()

    for sample in unrepeated(samples):
        kept.append(sample)
        if len(kept) == samples_per_shard:
            flush()
    if kept:
        flush()
    return paths


def read_tar_shard(file: BinaryIO, shard: str) -> Iterator[Sample]:
    """The samples of a shard, in order, from anything with `read(n)`: a file, or a stream that cannot seek.

    Raises CorruptData naming the shard and the offset of the member: what `read_members` refuses, a part that occurs
    twice in a sample, a file without a name before its extension, a name that leads out of the folder.
    """
    key, place = "", ""
    parts: dict[str, bytes] = {}
    for member in read_members(file, shard):
        member_key, extension = split_name(member.name)
        if member_key != key and parts:
            yield _sample(key, parts, shard, place)
            parts = {}
        here = f"byte {member.offset:,}"
        if member_key == "" or member_key.endswith("/"):
            raise CorruptData(shard, here, f"{member.name!r} has no key before its extension")
        if extension in parts:
            raise CorruptData(shard, here, f"{member.name}: sample {key!r} already has a part {extension!r}")
        key, place = member_key, place if parts else here
        parts[extension] = member.contents
    if parts:
        yield _sample(key, parts, shard, place)


def _sample(key: str, parts: dict[str, bytes], shard: str, place: str) -> Sample:
    try:
        return Sample(key, parts)
    except ValueError as error:
        raise CorruptData(shard, place, str(error)) from None
