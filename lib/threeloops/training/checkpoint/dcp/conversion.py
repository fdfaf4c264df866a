"""Convert a state to and from torch's own format with torch's public reader and writer. One process holds all tensors.

DCP pickles its metadata and all values that are not tensors, so read only files that you trust. Its format has no
checksums, no fsync of folders, and no commit. Keep the original.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from threeloops.training.checkpoint.checkpointer import Loaded
from threeloops.training.checkpoint.format import CheckpointError

__all__ = ["export_dcp", "read_dcp"]


def export_dcp(loaded: Loaded, folder: Path | str) -> None:
    """Write a state that was loaded without a template: tensors and plain values by their names.

    Raises:
        CheckpointError: `folder` exists already, and DCP would overwrite it.
        ValueError: the tensors are only parts.
    """
    if Path(folder).exists() and any(Path(folder).iterdir()):
        raise CheckpointError(f"{folder} is not empty: DCP would mix both; export to a new folder")
    for name, entry in loaded.manifest.tensors.items():
        value = loaded.state.get(name)
        if not isinstance(value, torch.Tensor) or value.shape != entry.shape:
            raise ValueError(f"{name!r} is not complete here: export a state that was loaded without a template")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no process group is there
        dcp.save(dict(loaded.state), storage_writer=dcp.FileSystemWriter(folder, sync_files=True), no_dist=True)


def read_dcp(folder: Path | str) -> dict[str, Any]:
    """Read all tensors completely, however many ranks saved them, and all other values, under the names that DCP gave
    them. Names in a nested dict are joined by dots."""
    reader = dcp.FileSystemReader(folder)
    state: dict[str, Any] = {}
    for name, entry in reader.read_metadata().state_dict_metadata.items():
        is_tensor = isinstance(entry, TensorStorageMetadata)
        state[name] = torch.empty(entry.size, dtype=entry.properties.dtype) if is_tensor else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, storage_reader=reader, no_dist=True)
    return state
