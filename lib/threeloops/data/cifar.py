"""A local copy of CIFAR-10: 60,000 colour images of 32 × 32 in ten classes (Krizhevsky 2009,
https://www.cs.toronto.edu/~kriz/cifar.html). The course neither ships nor downloads it.

Both published forms are read: `cifar-10-batches-bin` (records of one label byte and 3,072 image bytes) and
`cifar-10-batches-py` (pickles, which torchvision unpacks). A pickle can call any function that it names, so only the
names that arrays need are allowed.
"""

import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from threeloops.data.errors import CorruptData

__all__ = ["Cifar10", "HELD_OUT", "TRAINING", "local_cifar10"]

_FOLDER = "THREELOOPS_CIFAR10"
"""Environment variable that names the folder."""
TRAINING = tuple(f"data_batch_{number}" for number in range(1, 6))
HELD_OUT = ("test_batch",)
_SHAPE = (3, 32, 32)
_CLASSES = 10
_PIXELS = 3 * 32 * 32
_HARMLESS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),  # how Python 3 writes bytes in an old protocol
}


class Cifar10(NamedTuple):
    """Images (N, 3, 32, 32) uint8, red, green, blue; labels (N,) int64, 0 … 9. The first `training` are to train on."""

    images: np.ndarray
    labels: np.ndarray
    training: int

    @property
    def held_out(self) -> int:
        return len(self.labels) - self.training


def local_cifar10() -> Cifar10 | None:
    """Read the data set in the folder THREELOOPS_CIFAR10, or return None if the variable is not set. Raises as
    `_read_cifar10`."""
    folder = os.environ.get(_FOLDER)
    return _read_cifar10(Path(folder)) if folder else None


def _read_cifar10(folder: Path) -> Cifar10:
    """Read either form from `folder`. Raises FileNotFoundError naming what is missing, and CorruptData for a bad
    file."""
    for suffix, read in ((".bin", _records), ("", _pickled)):
        if (folder / f"{TRAINING[0]}{suffix}").is_file():
            paths = [folder / f"{name}{suffix}" for name in TRAINING + HELD_OUT]
            if missing := [path for path in paths if not path.is_file()]:
                raise FileNotFoundError(f"{missing[0]} is missing: unpack the whole archive again")
            parts = [read(path) for path in paths]
            images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            return Cifar10(images, labels, sum(len(part[1]) for part in parts[: len(TRAINING)]))
    raise FileNotFoundError(
        f"{folder}: neither {TRAINING[0]}.bin nor {TRAINING[0]} lies here; expected the unpacked folder "
        f"cifar-10-batches-bin or cifar-10-batches-py. Point {_FOLDER} to it, or unset {_FOLDER}"
    )


def _records(path: Path) -> tuple[np.ndarray, np.ndarray]:
    content = np.fromfile(path, np.uint8)
    if not len(content) or len(content) % (1 + _PIXELS):
        raise CorruptData(path, f"byte {len(content)}", f"it ends here; expected records of {1 + _PIXELS} bytes")
    records = content.reshape(-1, 1 + _PIXELS)
    return _checked(path, records[:, 1:], records[:, 0])


def _pickled(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with path.open("rb") as file:
            content = _Arrays(file, encoding="bytes").load()
        images = content[b"data"]
        labels = content[b"labels"]
    except Exception as error:  # a damaged pickle may raise anything
        raise CorruptData(path, "pickle", f"{error}; expected a dictionary with b'data' and b'labels'") from None
    return _checked(path, images, labels)


def _checked(path: Path, images: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    expected = f"expected whole numbers from 0 to {_CLASSES - 1} of shape (N,)"
    labels = _array(path, "labels", labels, expected)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not ((labels >= 0) & (labels < _CLASSES)).all():
        raise CorruptData(path, "labels", f"{labels.dtype} {labels.shape}, {expected}")
    expected = f"expected uint8 ({len(labels)}, {_PIXELS})"
    images = _array(path, "images", images, expected)
    if images.shape != (len(labels), _PIXELS) or images.dtype != np.uint8:
        raise CorruptData(path, "images", f"{images.dtype} {images.shape} for {len(labels)} labels; {expected}")
    return images.reshape(-1, *_SHAPE), labels.astype(np.int64)


def _array(path: Path, what: str, values: Any, expected: str) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError:  # rows of different lengths
        raise CorruptData(path, what, f"no array at all, {expected}") from None


class _Arrays(pickle.Unpickler):
    """Unpickles numbers, texts, containers and numpy arrays, nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _HARMLESS:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no array needs")
        return super().find_class(module, name)
