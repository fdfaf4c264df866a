"""Drive a student's asynchronous saver from a test: call by call, with writes that wait until the test lets them go.

The test makes the tensors and changes them between the calls, as a training step does. Behind the wall the tensors lie
in memory that both sides have mapped. The saver's thread calls the test when a write begins and when it ends. So the
test itself sees the order of calls, writes and returns, and the tensors of each write. The student's process reports
the addresses of these tensors. An address counts only if the process has the same bytes there, read from outside.
"""

import mmap
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from threeloops.lab.checking import wall
from threeloops.lab.disks.on_disk import in_folder

__all__ = ["Saving", "saving"]

_STEPS = range(1, 9)
_LONGEST_WAIT = 4.0
"""Seconds. A save that waits for its own write would otherwise never return."""

_MOST_BYTES = 64 << 20
"""The largest tensor that the test compares with the memory of the student's process."""

_Layout = list[tuple[str, torch.dtype, int, list[int], list[int]]]
"""The tensors in one buffer, each as name, type, offset in elements, shape and strides."""


class Saving:
    """A record of what a saver did, made by the test. `state` has the tensors that training changes."""

    def __init__(self, state: dict[str, Tensor], fails: tuple[int, ...]) -> None:
        self.state = state
        self.attached: list[str] = []
        """The names of copies that require gradients, so that autograd keeps what they were made of."""
        self.log: list[str] = []
        self.written: dict[int, dict[str, Tensor]] = {}
        self.places: dict[str, set[int]] = {}
        """The addresses of the copies of each tensor. An address that does not hold the copy counts as a new one."""
        self._fails = fails
        self._gates = {step: threading.Event() for step in _STEPS}
        self._going = set[int]()
        self._saver: Any = None

    def save(self, step: int) -> None:
        """Call `save` with the state. Raises what the student's method raises."""
        _save(self._saver, step)
        self.log.append(f"save {step} returned")

    def save_beside(self, step: int) -> threading.Thread:
        """Call `save` in a thread. The test may change the state meanwhile, but must not call the saver."""

        def save() -> None:
            try:
                self.save(step)
            except Exception as error:
                self.log.append(f"save {step} raised {type(error).__name__}: {error}")

        thread = threading.Thread(target=save, daemon=True)
        thread.start()
        return thread

    def wait(self) -> None:
        _wait(self._saver)
        self.log.append("wait returned")

    def let_go(self, *steps: int) -> None:
        """Let the writes of these steps continue, both those that wait and those that will come."""
        for step in steps or _STEPS:
            self._gates[step].set()

    def begins(self, step: int) -> bool:
        """Wait until the test lets this write go. Return whether it fails."""
        self.log.append(f"write {step} begins")
        self._gates[step].wait(_LONGEST_WAIT)
        if step in self._fails:
            return True
        self._going.add(step)
        return False

    def ends(self, step: int, tensors: dict[str, Tensor], places: dict[str, int], attached: list[str]) -> None:
        self._going.remove(step)  # a write that was not let go has not happened
        self.written[step] = {name: tensor.clone() for name, tensor in tensors.items()}
        for name, place in places.items():
            self.places.setdefault(name, set()).add(place if _holds(place, tensors[name]) else -step)
        self.attached += [name for name in attached if name not in self.attached]
        self.log.append(f"write {step} ends")


@contextmanager
def saving(
    saver_class: Callable[..., Any],
    state: dict[str, Tensor],
    fails: tuple[int, ...] = (),
    parameters: tuple[str, ...] = (),
) -> Iterator[Saving]:
    """Drive a new saver, `saver_class(write)`, with a copy of `state`, in which views of the same tensor stay views.

    Args:
        fails: the steps whose write raises an OSError, or a RuntimeError if the step is even.
        parameters: the names of tensors that require gradients when the saver gets them.
    """
    layout, size = _layout_of(state)
    with in_folder({}) as folder:
        buffer = folder.shared("state", size)
        tensors = _tensors_in(buffer, layout)
        for name, tensor in state.items():
            tensors[name].copy_(tensor)
        run = Saving(tensors, fails)
        with wall.offered(run.begins, waits=True) as begins, wall.offered(run.ends, waits=True) as ends:
            path = None if wall.connection is None else str(folder.path / "state")
            run._saver = _made(saver_class, path or tensors, layout, begins, ends, parameters)
            yield run


def _holds(place: int, tensor: Tensor) -> bool:
    """Tell whether the student's process has the bytes of this tensor at the address `place`."""
    if wall.connection is None:
        return True
    if tensor.nbytes > _MOST_BYTES:
        return False
    content = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return type(place) is int and 0 <= place < 1 << 63 and wall.connection.memory_at(place, len(content)) == content


def _layout_of(state: Mapping[str, Tensor]) -> tuple[_Layout, int]:
    """Return the place of each tensor in one buffer for all storages, and the size of this buffer in bytes."""
    starts = dict[int, int]()
    layout = _Layout()
    size = 0
    for name, tensor in state.items():
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in starts:
            starts[storage.data_ptr()] = size
            size += -(-storage.nbytes() // 64) * 64
        offset = starts[storage.data_ptr()] // tensor.element_size() + tensor.storage_offset()
        layout.append((name, tensor.dtype, offset, list(tensor.shape), list(tensor.stride())))
    return layout, size


def _tensors_in(buffer: Any, layout: _Layout) -> dict[str, Tensor]:
    return {
        name: torch.frombuffer(buffer, dtype=dtype).as_strided(shape, stride, offset)
        for name, dtype, offset, shape, stride in layout
    }


# Where the student's objects live


class _Saver:
    """A student's saver and the state that it gets."""

    def __init__(self, saver: Any, state: dict[str, Tensor], parameters: tuple[str, ...]) -> None:
        self.saver = saver
        self.state = state
        self.parameters = parameters


@wall.student_side
def _made(
    saver_class: Callable[..., Any],
    state: str | dict[str, Tensor],
    layout: _Layout,
    begins: Callable[..., bool],
    ends: Callable[..., None],
    parameters: tuple[str, ...],
) -> _Saver:
    if isinstance(state, str):
        with open(state, "r+b") as file:
            state = _tensors_in(mmap.mmap(file.fileno(), 0), layout)
    copies = []  # keep all copies, so that a new one never gets an old address

    def write(step: int, copy: dict[str, Tensor]) -> None:
        if begins(step):
            raise (RuntimeError if step % 2 == 0 else OSError)(f"no space for step {step}")
        copies.append(dict(copy))
        places = {name: tensor.data_ptr() for name, tensor in copy.items()}
        attached = [name for name, tensor in copy.items() if tensor.requires_grad]
        ends(step, {name: tensor.detach() for name, tensor in copy.items()}, places, attached)

    return _Saver(saver_class(write), state, parameters)


@wall.student_side
def _save(saver: _Saver, step: int) -> None:
    given = {
        name: tensor.detach().requires_grad_() if name in saver.parameters else tensor
        for name, tensor in saver.state.items()
    }
    saver.saver.save(step, given)
    for name in given:  # a saver that keeps this dictionary will find other tensors in it
        given[name] = torch.zeros(1)


@wall.student_side
def _wait(saver: _Saver) -> None:
    saver.saver.wait()
