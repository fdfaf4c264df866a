"""The inputs of a replay: whole storages and views of them, so that tensors that share memory still do."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch

from threeloops.inner.replay.recordings.steps import BYTES, RecordingRefused, StridedView, dtype_of

__all__ = ["Inputs", "inputs_of", "view"]

_MAX_BYTES = 512 << 20
_DEPTH = 8


class Inputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of one call, without values: `arguments` is [args, kwargs] with a {"tensor": k} for the k-th of
    `views`; `sizes` are bytes of storages."""

    sizes: tuple[int, ...]
    views: tuple[StridedView, ...]
    arguments: Any
    device: str = "cpu"

    def zeros(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments with zeros for values, on the device of the real ones."""
        storages = [torch.zeros(size, dtype=torch.uint8, device=self.device) for size in self.sizes]
        args, kwargs = _unpack(self.arguments, [view(storages[layout.storage], layout) for layout in self.views])
        return args, kwargs


def inputs_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Inputs, list[torch.Tensor]]:
    """Return the inputs of a call, and their storages as flat uint8 tensors.

    Raises TypeError for an argument that is neither a tensor nor plain data, ValueError for one that is too large.
    """
    sizes: list[int] = []
    storages: list[torch.Tensor] = []
    views: list[StridedView] = []
    numbers: dict[int, int] = {}
    devices: set[str] = set()

    def tensor(value: torch.Tensor) -> dict[str, int]:
        value = value.detach()
        name = dtype_of(value)
        if value.layout is not torch.strided or name not in BYTES or value.device.type not in ("cpu", "cuda"):
            raise TypeError(
                f"a {value.layout} tensor of {name} on {value.device}: replay takes dense tensors of numbers"
            )
        identity = value.untyped_storage()._cdata
        if identity not in numbers:
            numbers[identity] = len(sizes)
            flat = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())
            storages.append(flat)
            sizes.append(flat.numel())
            devices.add(str(value.device))
        views.append(StridedView.of(value, numbers[identity]))
        return {"tensor": len(views) - 1}

    arguments = _pack([list(args), dict(kwargs)], tensor)
    if len(devices) > 1:
        raise ValueError(f"the inputs lie on {' and '.join(sorted(devices))}: expected one device")
    if sum(sizes) > _MAX_BYTES:
        raise ValueError(
            f"the inputs take {sum(sizes) >> 20:,} MiB with all that they view: at most {_MAX_BYTES >> 20} MiB"
        )
    return Inputs(tuple(sizes), tuple(views), arguments, devices.pop() if devices else "cpu"), storages


def view(storage: torch.Tensor, strided: StridedView) -> torch.Tensor:
    """Return the tensor that is this view of its storage, a flat tensor of any dtype. It shares the memory."""
    dtype = getattr(torch, strided.dtype)
    if storage.dtype != dtype:
        storage = storage.view(torch.uint8)
        storage = storage[: storage.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
    return storage.as_strided(strided.shape, strided.strides, strided.offset)


def _pack(value: Any, tensor: Callable[[torch.Tensor], Any], depth: int = 0) -> Any:
    """Return plain data with tagged containers. Tensors are replaced by the result of `tensor`."""
    if isinstance(value, torch.Tensor):
        return tensor(value)
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if depth > _DEPTH:
        raise TypeError(f"an argument is nested more than {_DEPTH} deep")
    if isinstance(value, tuple | list):
        items = [_pack(member, tensor, depth + 1) for member in value]
        return items if isinstance(value, list) else {"tuple": items}
    if type(value) is dict:
        return {"dict": [[str(name), _pack(member, tensor, depth + 1)] for name, member in value.items()]}
    raise TypeError(f"an argument is a {type(value).__name__}: replay takes tensors, numbers, texts, lists and tuples")


def _unpack(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(member, tensors) for member in value]
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    match tag:
        case "tensor":
            return tensors[content]
        case "dtype":
            return getattr(torch, content)
        case "tuple":
            return tuple(_unpack(member, tensors) for member in content)
        case "dict":
            return {name: _unpack(member, tensors) for name, member in content}
    raise RecordingRefused("was recorded with arguments that cannot be read")
