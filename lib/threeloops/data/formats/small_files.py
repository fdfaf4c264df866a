"""The baseline: one file for every part of every sample, as most data sets arrive."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from threeloops.data.formats.sample import Sample, split_name, unrepeated

__all__ = ["list_samples", "read_sample", "write_small_files"]


def write_small_files(folder: Path, samples: Iterable[Sample]) -> None:
    """Write `folder/key.extension` for every part.

    Raises ValueError for a repeated key, and for one that `list_samples` would return in another form ("./a", "x//a").
    """
    for sample in unrepeated(samples):
        for name, contents in sample.files():
            if (listed := PurePosixPath(name).as_posix()) != name:
                raise ValueError(f"key = {sample.key!r}: its file {name!r} would be listed as {listed!r}; use that key")
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents)


def list_samples(folder: Path) -> dict[str, list[Path]]:
    """The files of each sample by key, in the order of their names."""
    files: dict[str, list[Path]] = {}
    for path in sorted(p for p in Path(folder).rglob("*") if p.is_file()):
        files.setdefault(split_name(path.relative_to(folder).as_posix())[0], []).append(path)
    return files


def read_sample(key: str, files: list[Path]) -> Sample:
    """One sample: an open, a read and a close for each part."""
    return Sample(key, {split_name(path.name)[1]: path.read_bytes() for path in files})
