"""A replay as one question and one answer, each plain data with raw buffers: what crosses to the process that executes.

The question holds text of a stranger's cell and a recording of a stranger's making. It is admitted, read and executed here,
in the one place that may come to harm by it.

Results as plain data and back: numbers, texts, containers and this library's dataclasses, never pickled.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from threeloops.frames import Buffer
from threeloops.inner.launches import Launch
from threeloops.inner.meter import L2, Metered
from threeloops.inner.replay.allowlist.admit import Admitted, NotAdmitted, admit
from threeloops.inner.replay.execution import Execution, described, execute, execute_compiled
from threeloops.inner.replay.inputs import Inputs, inputs_from
from threeloops.inner.replay.recordings.reader import read
from threeloops.inner.replay.recordings.steps import DTYPES, EXECUTED, UNEXECUTED, Recording, RecordingRefused

FILE = "cell"
"""What tracebacks and findings call the text of a cell."""

Message = tuple[dict[str, Any], list[Any]]


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came back. `text`: the file of admitted kernels, for the compiler. `refused`: why there is no result."""

    outputs: Any = None
    traffic: Metered = dataclasses.field(default_factory=Metered)
    launches: tuple[Launch, ...] = ()
    torch_bytes: int = 0
    text: str = ""
    refused: str = ""


def question(
    cell: str, recording: Any, inputs: Inputs, storages: Sequence[torch.Tensor] | None, l2: L2 | str | None
) -> Message:
    """What does `recording`, made of what the launcher of `cell` did, compute on these inputs?

    Without storages: what does it launch? Then nothing is executed.
    """
    tree = {
        "cell": cell,
        "recording": recording,
        "inputs": inputs.to_dict(),
        "l2": to_plain(l2),
        "execute": storages is not None,
    }
    return tree, [_bytes(storage) for storage in storages or ()]


def perform(tree: dict[str, Any], buffers: Sequence[Buffer]) -> Message:
    """Answer a question, in this process. Never raises for what the cell or the recording holds."""
    try:
        admitted, recording, sizes = _admitted(tree, tree["execute"])
        if not tree["execute"]:
            return {
                "launches": [launch.to_dict() for launch in described(recording, admitted, sizes)],
                "text": admitted.text,
            }, []
        storages = [_storage(buffer, size) for buffer, size in zip(buffers, sizes, strict=True)]
        execution = execute(recording, admitted, storages, from_plain(tree["l2"]))
    except NotAdmitted as error:
        return {"refused": f"launches a kernel that cannot be judged: {error}"}, []
    except RecordingRefused as error:
        return {"refused": str(error)}, []
    except MemoryError:
        return {"refused": "needs more memory than there is where kernels are judged: use smaller tiles"}, []
    except (RuntimeError, ValueError, OverflowError) as error:
        return {"refused": f"does with torch what fails on these inputs: {str(error)[:500]}"}, []
    return _answer(execution, admitted.text)


def perform_compiled(tree: dict[str, Any], storages: Sequence[torch.Tensor]) -> Any:
    """The outputs of a question that was answered already, computed anew on the device of the inputs."""
    admitted, recording, _ = _admitted(tree, True)
    return execute_compiled(recording, admitted, [storage.clone() for storage in storages])


def _admitted(tree: dict[str, Any], execute: bool) -> tuple[Admitted, Recording, tuple[int, ...]]:
    """The kernels and the recording of a question, checked."""
    admitted = admit(tree["cell"], _names(tree["recording"]), FILE)
    inputs = inputs_from(tree["inputs"])
    limits = EXECUTED if execute else UNEXECUTED
    return admitted, read(tree["recording"], inputs.sizes, admitted.kernels, limits, inputs.places), inputs.sizes


def _names(recording: Any) -> list[str]:
    """Kernels that the recording launches, before it is checked."""
    steps = recording.get("steps") if type(recording) is dict else None
    named = [step.get("kernel") for step in steps if type(step) is dict] if type(steps) is list else []
    return [name for name in named if type(name) is str]


def _answer(execution: Execution, text: str) -> Message:
    buffers: list[Any] = []

    def output(value: Any) -> Any:
        if isinstance(value, tuple):
            return {"tuple": [output(each) for each in value]}
        if value is None:
            return None
        value = value.cpu()
        strides = list(torch.empty_like(value, device="meta").stride())  # without gaps, the axes in the same order
        buffers.append(_bytes(value.contiguous()))
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape), strides, len(buffers) - 1]}

    tree = {
        "outputs": output(execution.outputs),
        "traffic": to_plain(execution.traffic),
        "launches": [launch.to_dict() for launch in execution.launches],
        "torch_bytes": execution.torch_bytes,
        "text": text,
    }
    return tree, buffers


def answer_from(tree: dict[str, Any], buffers: Sequence[Buffer]) -> Answer:
    """The answer in a message. Raises ValueError, KeyError or TypeError for a message that is none."""
    if "refused" in tree:
        return Answer(refused=str(tree["refused"]))

    def output(value: Any) -> Any:
        if value is None:
            return None
        ((tag, content),) = value.items()
        if tag == "tuple":
            return tuple(output(each) for each in content)
        dtype, shape, strides, at = content
        if dtype not in DTYPES:
            raise ValueError(f"a tensor of {dtype}")
        flat = _storage(buffers[at], len(buffers[at])).view(getattr(torch, dtype))
        dense = flat.reshape(shape)
        return torch.empty_strided(shape, strides, dtype=dense.dtype).copy_(dense)

    recorded = tuple(Launch.from_dict(each) for each in tree["launches"])
    if "traffic" not in tree:
        return Answer(launches=recorded, text=str(tree["text"]))
    traffic = from_plain(tree["traffic"])
    if not isinstance(traffic, Metered):
        raise ValueError("an answer without traffic")
    return Answer(output(tree["outputs"]), traffic, recorded, int(tree["torch_bytes"]), str(tree["text"]))


def _bytes(tensor: torch.Tensor) -> Buffer:
    flat = tensor.detach().cpu().reshape(-1)
    flat = flat.as_strided(flat.shape, (1,))  # one element alone may have any stride
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def _storage(buffer: Buffer, size: int) -> torch.Tensor:
    """A flat uint8 tensor of its own with these bytes, aligned as torch aligns."""
    flat = torch.empty(size, dtype=torch.uint8)
    if len(buffer) != size:
        raise ValueError(f"{len(buffer)} bytes for a storage of {size}")
    np.copyto(flat.numpy(), np.frombuffer(buffer, np.uint8))
    return flat


_HOME = "threeloops.inner."
_DEPTH = 32


def to_plain(value: Any) -> Any:
    """The JSON form of a value. Raises TypeError for what is none of the above."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [to_plain(each) for each in value]
    if kind is tuple:
        return {"tuple": [to_plain(each) for each in value]}
    if isinstance(value, Mapping):
        return {"dict": [[to_plain(name), to_plain(each)] for name, each in value.items()]}
    if dataclasses.is_dataclass(value) and kind.__module__.startswith(_HOME):
        fields = [[field.name, to_plain(getattr(value, field.name))] for field in dataclasses.fields(value)]
        return {"record": [kind.__module__, kind.__qualname__, fields]}
    if hasattr(value, "dtype") and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return to_plain(value.item())
    raise TypeError(f"a {kind.__module__}.{kind.__qualname__} is no plain data")


def from_plain(plain: Any, depth: int = 0) -> Any:
    """The value of a JSON form. Raises ValueError for what `to_plain` does not write."""
    kind = type(plain)
    if plain is None or kind in (bool, int, float, str):
        return plain
    if depth > _DEPTH:
        raise ValueError(f"nested more than {_DEPTH} deep")
    if kind is list:
        return [from_plain(each, depth + 1) for each in plain]
    if kind is not dict or len(plain) != 1:
        raise ValueError("a value of an unknown kind")
    ((tag, content),) = plain.items()
    if type(content) is list and tag == "tuple":
        return tuple(from_plain(each, depth + 1) for each in content)
    if type(content) is list and tag == "dict":
        return {from_plain(name, depth + 1): from_plain(each, depth + 1) for name, each in content}
    if type(content) is list and tag == "record":
        module, name, fields = content
        return _record(module, name, {field: from_plain(each, depth + 1) for field, each in fields})
    raise ValueError("a value of an unknown kind")


def _record(module: Any, name: Any, fields: dict[str, Any]) -> Any:
    """A dataclass of this library's, filled field by field; its `__init__` and `__post_init__` are not run."""
    home = sys.modules.get(module) if type(module) is str and module.startswith(_HOME) else None
    kind = vars(home).get(name) if home is not None else None
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise ValueError(f"a record of an unknown class: {str(name)[:80]!r}")
    if list(fields) != [field.name for field in dataclasses.fields(kind)]:
        raise ValueError(f"a {kind.__name__} with other fields")
    record = object.__new__(kind)
    for field, value in fields.items():
        object.__setattr__(record, field, value)
    return record
