"""Tar shards in the WebDataset layout: the files of a sample lie next to each other and share a key.

A shard is opened once and read from front to back, for thousands of samples. All headers are read first, because only
they show whether another part of a sample follows later. Source: Aizman et al. 2019,
"High performance I/O for large scale deep learning", arXiv:2001.01858.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import BinaryIO

from threeloops.data.errors import CorruptData
from threeloops.data.foreign.compression import require_uncompressed, uncompressed
from threeloops.data.formats.sample import Sample, split_name, unrepeated
from threeloops.data.formats.tar_members import BLOCK, Member, header, list_members
from threeloops.files import replacing

__all__ = ["TarShards", "read_tar_shard", "shard_bytes", "write_tar_shards"]


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
    while shard := list(islice(rest, samples_per_shard)):
        paths.append(Path(folder) / f"shard-{len(paths):06d}.tar")
        with replacing(paths[-1]) as file:
            file.writelines(shard_bytes(shard))
    return paths


def read_tar_shard(file: BinaryIO, shard: str) -> Iterator[Sample]:
    """Yield the samples of a shard in order. The headers of all its members are read before the first sample.

    A stream that cannot seek, or a gzip file, is first copied to a temporary file.

    Raises CorruptData, naming the shard and the member's offset, in the cases of `list_members`, if a sample has a part
    twice, if its parts are not neighbours, or if a file has no name before its extension: all before the first sample.
    Also raises it for a name that leads out of the folder.
    """
    whole = uncompressed(file, shard)
    for key, parts in _index(whole, shard):
        yield _read(whole, shard, key, parts)


class TarShards:
    """The samples of tar shards, numbered in the order of the shards and of the samples within each shard.

    The constructor reads the headers of all members. To share the samples among ranks and workers, give a `Loader` the
    `sizes` of the shards. It shuffles whole shards, so each batch is read from one or two places:

    >>> shards = TarShards(paths)
    >>> Loader(shards.load, len(shards), 32, SamplerState(seed=1), shards=shards.sizes, rank=rank, ranks=ranks)

    Raises CorruptData in the cases of `read_tar_shard`, and for a compressed shard: it has no random access.
    """

    def __init__(self, paths: Iterable[Path | str]) -> None:
        self.paths = [Path(path) for path in paths]
        self._samples = []
        for path in self.paths:
            with path.open("rb") as file:
                require_uncompressed(file, path.name)
                self._samples.append(_index(file, path.name))
        self.sizes = tuple(map(len, self._samples))
        self._firsts = list(accumulate(self.sizes, initial=0))

    def __len__(self) -> int:
        return self._firsts[-1]

    def load(self, numbers: Iterable[int]) -> list[Sample]:
        """Read the samples with these numbers. Neighbours need only one open. Raises IndexError for a bad number."""
        samples: list[Sample] = []
        for shard, wanted in groupby(map(int, numbers), self._shard_of):
            path = self.paths[shard]
            first = self._firsts[shard]
            with path.open("rb") as file:
                samples += [_read(file, path.name, *self._samples[shard][number - first]) for number in wanted]
        return samples

    def _shard_of(self, number: int) -> int:
        if not 0 <= number < len(self):
            raise IndexError(
                f"sample {number}: expected 0 to {len(self) - 1}, since the shards have {len(self)} samples"
            )
        return bisect_right(self._firsts, number) - 1


_Parts = dict[str, Member]


def _index(file: BinaryIO, shard: str) -> list[tuple[str, _Parts]]:
    """Return the samples of a shard in order, each as its key and the members that are its parts."""
    samples: dict[str, _Parts] = {}
    last = ""
    for member in list_members(file, shard):
        key, extension = split_name(member.name)
        here = f"byte {member.offset:,}"
        if key == "" or key.endswith("/"):
            raise CorruptData(shard, here, f"{member.name!r} has no key before its extension")
        if key != last and key in samples:
            raise CorruptData(
                shard,
                here,
                f"{member.name}: other samples are between this part and the rest of sample {key!r}; "
                "write the shard with tar --sort=name",
            )
        parts = samples.setdefault(key, {})
        if extension in parts:
            raise CorruptData(shard, here, f"{member.name}: sample {key!r} already has a part {extension!r}")
        parts[extension] = member
        last = key
    return list(samples.items())


def _read(file: BinaryIO, shard: str, key: str, parts: _Parts) -> Sample:
    contents: dict[str, bytes] = {}
    for extension, member in parts.items():
        file.seek(member.begin)
        contents[extension] = data = file.read(member.size)
        if len(data) < member.size:
            wrong = f"{member.name}: {len(data):,} bytes where its header promised {member.size:,}"
            raise CorruptData(shard, f"byte {member.offset:,}", f"{wrong}: the shard was cut after it was listed")
    try:
        return Sample(key, contents)
    except ValueError as error:
        raise CorruptData(shard, f"byte {next(iter(parts.values())).offset:,}", str(error)) from None
