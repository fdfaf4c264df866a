"""Tar shards in the WebDataset layout: the files of a sample lie next to each other and share a key.

A shard is read from front to back, with one open for thousands of samples and no look-ups. Source: Aizman et al. 2019,
"High performance I/O for large scale deep learning", arXiv:2001.01858.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import BinaryIO

from threeloops.data.errors import CorruptData
from threeloops.data.foreign.compression import uncompressed
from threeloops.data.formats.sample import Sample, split_name, unrepeated
from threeloops.data.formats.tar_members import BLOCK, header, read_members
from threeloops.files import replacing

__all__ = ["read_tar_shard", "shard_bytes", "write_tar_shards"]


def shard_bytes(samples: Iterable[Sample]) -> Iterator[bytes]:
    """A shard, piece by piece. Raises ValueError for a repeated key."""
    for sample in unrepeated(samples):
        for name, contents in sample.files():
            yield header(name, len(contents)) + contents + bytes(-len(contents) % BLOCK)
    yield bytes(2 * BLOCK)


def write_tar_shards(folder: Path, samples: Iterable[Sample], samples_per_shard: int) -> list[Path]:
    """Write `shard-000000.tar`, … with `samples_per_shard` each, every shard whole or not at all.

    Raises ValueError for a repeated key.
    """
    if samples_per_shard < 1:
        raise ValueError(f"samples_per_shard = {samples_per_shard}: expected at least 1")
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    rest = unrepeated(samples)
    while kept := list(islice(rest, samples_per_shard)):
        paths.append(Path(folder) / f"shard-{len(paths):06d}.tar")
        with replacing(paths[-1]) as file:
            file.writelines(shard_bytes(kept))
    return paths


def read_tar_shard(file: BinaryIO, shard: str) -> Iterator[Sample]:
    """The samples of a shard, in order, from anything with `read(n)`: a file, or a stream that cannot seek. What gzip
    compressed is decompressed on the way.

    Raises CorruptData naming the shard and the member's offset for what `read_members` refuses, another compression, a
    part that occurs twice in a sample, a sample whose parts are not neighbours, a file without a name before its
    extension, and a name that leads out of the folder.
    """
    seen: set[str] = set()
    members = read_members(uncompressed(file, shard), shard)
    for key, group in groupby(members, lambda member: split_name(member.name)[0]):
        parts: dict[str, bytes] = {}
        place = ""
        for member in group:
            here = f"byte {member.offset:,}"
            place, extension = place or here, split_name(member.name)[1]
            if key == "" or key.endswith("/"):
                raise CorruptData(shard, here, f"{member.name!r} has no key before its extension")
            if key in seen:
                raise CorruptData(
                    shard, here, f"{member.name}: other samples are between this part and the rest of sample {key!r}, "
                    "which was read without it, and so may others have been; write the shard with tar --sort=name"
                )  # fmt: skip
            if extension in parts:
                raise CorruptData(shard, here, f"{member.name}: sample {key!r} already has a part {extension!r}")
            parts[extension] = member.contents
        seen.add(key)
        try:
            sample = Sample(key, parts)
        except ValueError as error:
            raise CorruptData(shard, place, str(error)) from None
        yield sample
