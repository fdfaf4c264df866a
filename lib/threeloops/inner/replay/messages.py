"""A replay as one question to the process that executes kernels, and one answer from it: plain data with raw buffers.

The question holds the text of a student's cell and a recording from a student's process. Both are untrusted: they are
validated here and executed only here, in a process that can do no harm. Nothing is ever unpickled; msgspec checks the
types of everything in both messages.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from threeloops.frames import Buffer
from threeloops.inner.launches import Launch
from threeloops.inner.meter import L2, Metered
from threeloops.inner.replay.allowlist.admit import Admitted, NotAdmitted, admit
from threeloops.inner.replay.execution import execute, execute_compiled
from threeloops.inner.replay.inputs import Inputs, view
from threeloops.inner.replay.recordings.reader import check
from threeloops.inner.replay.recordings.steps import Outputs, Recording, RecordingRefused, StridedView, each_output

__all__ = ["Answer", "Message", "answer_from", "perform", "perform_compiled", "question"]

_FILE = "cell"
"""The name of a cell's text in tracebacks and findings."""

Message = tuple[dict[str, Any], list[Any]]


class _Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cell: str
    recording: Recording
    inputs: Inputs
    l2: L2 | str | None


class _Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer in transit. `outputs` are views of the message's buffers, and `launches` are in the form of
    `Launch.to_dict`."""

    outputs: Outputs = None
    traffic: Metered = msgspec.field(default_factory=Metered)
    launches: tuple[dict[str, Any], ...] = ()
    torch_bytes: int = 0
    text: str = ""
    refused: str = ""


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer to a question. `text` is the file of admitted kernels, for the compiler. `refused` says why there is
    no result."""

    outputs: Any
    traffic: Metered
    launches: tuple[Launch, ...]
    torch_bytes: int
    text: str
    refused: str


def question(
    cell: str, recording: Recording, inputs: Inputs, storages: Sequence[torch.Tensor], l2: L2 | str | None
) -> Message:
    """Ask what `recording`, which a launcher of `cell` made, computes on these inputs. Returns the question."""
    tree = msgspec.to_builtins(_Question(cell, recording, inputs, l2))
    return tree, [_bytes(storage) for storage in storages]


def perform(tree: dict[str, Any], buffers: Sequence[Buffer]) -> Message:
    """Answer a question, in this process. The contents of the cell or the recording never make it raise."""
    asked = msgspec.convert(tree, _Question)
    sizes = asked.inputs.sizes
    outputs = list[Buffer]()

    def sent(tensor: torch.Tensor) -> StridedView:
        """Return a view of a new buffer that holds the tensor without gaps, with its axes in the same order in
        memory."""
        dense = torch.empty_like(tensor, device="cpu").copy_(tensor)
        outputs.append(_bytes(dense.as_strided((dense.numel(),), (1,))))
        return StridedView.of(dense, len(outputs) - 1)

    try:
        admitted = _admitted(asked)
        storages = [_storage(buffer, size) for buffer, size in zip(buffers, sizes, strict=True)]
        done = execute(asked.recording, admitted, storages, asked.l2)
        launched = tuple(launch.to_dict() for launch in done.launches)
        reply = _Reply(each_output(done.outputs, sent), done.traffic, launched, done.torch_bytes, admitted.text)
    except NotAdmitted as error:
        reply = _Reply(refused=f"launches a kernel that cannot be judged: {error}")
    except RecordingRefused as error:
        reply = _Reply(refused=str(error))
    except MemoryError:
        reply = _Reply(refused="needs more memory than there is where kernels are judged: use smaller tiles")
    except (RuntimeError, ValueError, OverflowError) as error:
        reply = _Reply(refused=f"makes PyTorch calls that fail on these inputs: {str(error)[:500]}")
    return msgspec.to_builtins(reply, enc_hook=lambda number: number.item()), outputs


def perform_compiled(tree: dict[str, Any], storages: Sequence[torch.Tensor]) -> Any:
    """Compute the outputs of an already answered question again, on the device of the inputs."""
    asked = msgspec.convert(tree, _Question)
    return execute_compiled(asked.recording, _admitted(asked), [storage.clone() for storage in storages])


def _admitted(asked: _Question) -> Admitted:
    """Return the kernels of a question. Checks its recording."""
    admitted = admit(asked.cell, {step.kernel for step in asked.recording.launches}, _FILE)
    check(asked.recording, asked.inputs.sizes, admitted.kernels, given=asked.inputs.views)
    return admitted


def answer_from(tree: dict[str, Any], buffers: Sequence[Buffer]) -> Answer:
    """Return the answer in a message. Raises an exception for a message that is not one."""
    reply = msgspec.convert(tree, _Reply)

    def received(output: StridedView) -> torch.Tensor:
        buffer = buffers[output.storage]
        return view(_storage(buffer, len(buffer)), output)

    launches = tuple(Launch.from_dict(launch) for launch in reply.launches)
    outputs = each_output(reply.outputs, received)
    return Answer(outputs, reply.traffic, launches, reply.torch_bytes, reply.text, reply.refused)


def _bytes(flat: torch.Tensor) -> Buffer:
    return memoryview(flat.detach().cpu().view(torch.uint8).numpy()) if flat.numel() else b""


def _storage(buffer: Buffer, size: int) -> torch.Tensor:
    """Return a flat uint8 tensor of its own with these bytes, aligned as torch aligns."""
    flat = torch.empty(size, dtype=torch.uint8)
    if len(buffer) != size:
        raise ValueError(f"{len(buffer)} bytes for a storage of {size}")
    np.copyto(flat.numpy(), np.frombuffer(buffer, np.uint8))
    return flat
