"""CIFAR-10 from both forms in which it is published, in small; what is damaged or hostile is named."""

import os
import pickle
from functools import partial

import numpy as np
import pytest
from threeloops.data.cifar import _FOLDER, HELD_OUT, TRAINING, _read_cifar10, local_cifar10
from threeloops.data.errors import CorruptData

NAMES = TRAINING + HELD_OUT
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (len(NAMES), 4, 3072), dtype=np.uint8)
LABELS = RNG.integers(0, 10, (len(NAMES), 4))
packed = partial(pickle.dumps, protocol=2)  # that of the published files


@pytest.fixture
def binary(tmp_path):
    for name, images, labels in zip(NAMES, IMAGES, LABELS, strict=True):
        (tmp_path / f"{name}.bin").write_bytes(np.column_stack([labels.astype(np.uint8), images]).tobytes())
    return tmp_path


@pytest.fixture
def pickled(tmp_path):
    for name, images, labels in zip(NAMES, IMAGES, LABELS, strict=True):
        content = {b"batch_label": b"x", b"labels": labels.tolist(), b"data": images, b"filenames": [b"a.png"] * 4}
        (tmp_path / name).write_bytes(packed(content))
    return tmp_path


@pytest.mark.parametrize("form", ["binary", "pickled"])
def test_both_forms_hold_the_same_images(form, request, monkeypatch):
    folder = request.getfixturevalue(form)
    found = _read_cifar10(folder)
    assert np.array_equal(found.images, IMAGES.reshape(-1, 3, 32, 32))
    assert np.array_equal(found.labels, LABELS.reshape(-1)) and found.labels.dtype == np.int64
    assert (found.training, found.held_out) == (20, 4)
    monkeypatch.setenv(_FOLDER, str(folder))
    assert np.array_equal(local_cifar10().images, found.images)


def test_the_old_name_of_numpys_core_is_read(pickled):
    """The published pickles are from numpy 1, whose arrays are rebuilt by numpy.core.multiarray."""
    for name in NAMES:
        path = pickled / name
        path.write_bytes(path.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert _read_cifar10(pickled).training == 20


def test_without_a_copy_there_is_none(monkeypatch, tmp_path):
    monkeypatch.delenv(_FOLDER, raising=False)
    assert local_cifar10() is None
    monkeypatch.setenv(_FOLDER, str(tmp_path))
    with pytest.raises(FileNotFoundError, match="cifar-10-batches-bin or cifar-10-batches-py.*unset"):
        local_cifar10()


def test_a_missing_batch_is_named(binary):
    (binary / "data_batch_3.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_3\.bin is missing"):
        _read_cifar10(binary)


@pytest.mark.parametrize("content", [b"", bytes(3074), bytes(3073 * 2 - 1)])
def test_a_file_of_another_length_is_cut_off(binary, content):
    (binary / "test_batch.bin").write_bytes(content)
    with pytest.raises(CorruptData, match=rf"test_batch\.bin, byte {len(content)}: .*3073"):
        _read_cifar10(binary)


def test_a_label_of_an_eleventh_class_is_refused(binary):
    (binary / "test_batch.bin").write_bytes(bytes([10]) + bytes(3072))
    with pytest.raises(CorruptData, match="0 to 9"):
        _read_cifar10(binary)


NO_LABELS = [
    ([1, [2]], r"labels: .*expected whole numbers from 0 to 9 of shape \(N,\)"),
    (None, r"labels: object \(\), expected whole numbers from 0 to 9 of shape \(N,\)"),
    ([[1], [2]], r"labels: int64 \(2, 1\), expected whole numbers from 0 to 9 of shape \(N,\)"),
    (7, r"labels: int64 \(\), expected whole numbers from 0 to 9 of shape \(N,\)"),
]


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("here_it_ran",)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (packed({b"data": Hostile(), b"labels": []}), "mkdir, which no array needs"),
        (packed({b"labels": [1]}), "expected a dictionary with b'data'"),
        (packed({b"data": np.zeros((1, 7), np.uint8), b"labels": [1]}), r"expected uint8 \(1, 3072\)"),
        (packed({b"data": np.zeros((1, 3072)), b"labels": [1]}), "float64"),
        (packed({b"data": np.zeros((1, 3072), np.uint8), b"labels": ["cat"]}), "0 to 9"),
        *((packed({b"data": np.zeros((2, 3072), np.uint8), b"labels": wrong}), says) for wrong, says in NO_LABELS),
        (packed({b"data": [[1], [2, 3]], b"labels": [1, 2]}), r"images: .*expected uint8 \(2, 3072\)"),
        (packed({b"data": None, b"labels": [1, 2]}), r"images: .*expected uint8 \(2, 3072\)"),
        (b"not a pickle", "pickle"),
    ],
)
def test_a_pickle_that_is_no_batch_is_refused_and_runs_nothing(pickled, content, says, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (pickled / "data_batch_2").write_bytes(content)
    with pytest.raises(CorruptData, match=says):
        _read_cifar10(pickled)
    assert not (tmp_path / "here_it_ran").exists()
