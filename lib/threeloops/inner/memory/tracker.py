"""A tracker of live storage: every byte that tensors hold, from the operator that makes it to its last reference.

PyTorch's dispatcher shows each operator's results; a weak reference to each result's storage tells when it dies. What
an operator allocates and frees inside itself (a library's workspace) is not seen, and neither is the allocator's own
rounding. Both are in `torch.cuda.max_memory_allocated`, which on a GPU is noted beside.
"""

import copy
import sys
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from threeloops.inner.memory.post_mortem import MemoryBudgetExceeded
from threeloops.inner.memory.timeline import Storage, Timeline

NOT_THE_CALLER = (str(Path(torch.__file__).parent), str(Path(__file__).parent), str(Path(weakref.__file__).parent))
MAKES_ACTIVATIONS = ("forward", "recompute")


class LiveStorage(TorchDispatchMode):
    """`with LiveStorage(model, optimizers=[optimizer]) as live: …`, then `live.timeline`.

    Counted are the storages of the models' parameters, buffers and gradients and of the optimisers' states, which exist
    already, and every storage that an operator reads or makes while the tracker is open: each once, in its full size,
    however many tensors share it. Which of them are activations is known when the tracker closes. `device` ("cpu",
    "cuda") restricts the count to one device. With `budget_bytes` the operator that first exceeds it raises
    MemoryBudgetExceeded. A tracker counts once: entering it again raises RuntimeError.

    `allocator_peak_bytes` is CUDA's own count of the same time, None without CUDA.
    """

    def __init__(
        self,
        *models: nn.Module,
        optimizers: Iterable[torch.optim.Optimizer] = (),
        budget_bytes: int | None = None,
        device: str | None = None,
    ):
        super().__init__()
        if budget_bytes is not None and budget_bytes <= 0:
            raise ValueError(f"budget_bytes = {budget_bytes}: expected a positive number of bytes")
        self.timeline = Timeline()
        self.allocator_peak_bytes: int | None = None
        self._models, self._optimizers = models, tuple(optimizers)
        self._budget, self._device = budget_bytes, device
        self._known: dict[int, tuple[weakref.ref, int]] = {}
        self._born: list[str] = []  # the phase in which each storage was made
        self._modules: list[str] = []
        self._names = {module: name for model in models for name, module in model.named_modules()}
        self._created: tuple[list[int], list[str]] = ([], [])  # from this autograd node on, this module is running
        self._phase = "forward"
        self._handles: list[Any] = []
        self._entered = False

    def __enter__(self) -> "LiveStorage":
        if self._entered:
            raise RuntimeError(
                "this LiveStorage in a second `with`: expected a new LiveStorage, as a timeline begins empty"
            )
        self._entered = True
        try:
            self._begin()
        except BaseException:  # nobody calls __exit__ then
            self._end()
            raise
        return super().__enter__()

    def __exit__(self, *reason: Any) -> None:
        super().__exit__(*reason)
        if torch.cuda.is_available():
            self.allocator_peak_bytes = torch.cuda.max_memory_allocated()
        self._end()

    def _begin(self) -> None:
        """Count what exists already, and have the models and optimisers tell what they make."""
        for model in self._models:
            for name, parameter in model.named_parameters():
                self._see_all(parameter, "parameter", "the model", module=name)
                if parameter.requires_grad:
                    self._handles.append(parameter.register_post_accumulate_grad_hook(self._gradient))
                self._see_all(parameter.grad, "gradient", "an earlier backward pass", module=name)
            for name, buffer in model.named_buffers():
                self._see_all(buffer, "buffer", "the model", module=name)
        for optimizer in self._optimizers:
            self._states(optimizer)
        self._handles += [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
            register_optimizer_step_post_hook(lambda optimizer, *_: self._states(optimizer)),
        ]
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def _end(self) -> None:
        """Take the hooks back and settle what every storage was."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for _, number in self._known.values():
            self._settle(number, "the end")
        self._known.clear()

    def mark(self, what: str) -> None:
        """Note in the timeline that a part of the step, such as "backward", begins here."""
        self.timeline.mark(what)

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        node = torch._C._current_autograd_node()
        self._phase = self._phase_of(node)
        self._see_all((args, kwargs), "input", "code before the tracker")
        result = function(*args, **kwargs)
        operator = function.overloadpacket.__name__
        if node is not None and self._phase == "backward":
            operator += f" of {node.name().rpartition('::')[2]}"
        self._see_all(result, "temporary", operator, node)
        return result

    def _phase_of(self, node: Any) -> str:
        if node is not None:
            return "recompute" if torch.is_grad_enabled() else "backward"
        return "forward" if torch.is_grad_enabled() or self._modules else "update"

    def _see_all(self, tree: Any, kind: str, operator: str, node: Any = None, module: str = "") -> None:
        for tensor in _tensors(tree):
            self._see(tensor, kind, operator, node, module)

    def _see(self, tensor: Tensor, kind: str, operator: str, node: Any = None, module: str = "") -> None:
        """Count the tensor's storage if it is new, and notice a storage that was resized in place."""
        if tensor.device.type == "meta" or (self._device and tensor.device.type != torch.device(self._device).type):
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if (known := self._known.get(key)) is not None:
            number = known[1]
            if size != self.timeline.storages[number].bytes:
                self.timeline.grow(number, size - self.timeline.storages[number].bytes)
                self.timeline.storages[number].bytes = size
            return
        number = len(self.timeline.storages)
        self._known[key] = (weakref.ref(storage, partial(self._die, key)), number)
        where = _caller() if kind == "temporary" and self._phase in MAKES_ACTIVATIONS else ""
        module, dtype = module or self._module(node), str(tensor.dtype).removeprefix("torch.")
        self.timeline.storages.append(Storage(size, kind, operator, module, tuple(tensor.shape), dtype, where))
        self._born.append(self._phase)
        self.timeline.grow(number, size)
        if self._budget is not None and self.timeline.live_bytes > self._budget:
            for _, open_number in self._known.values():
                self._settle(open_number, "the end")
            raise MemoryBudgetExceeded(self._budget, copy.deepcopy(self.timeline))  # as it was: unwinding frees tensors

    def _die(self, key: int, _: weakref.ref) -> None:
        _, number = self._known.pop(key)
        self.timeline.grow(number, -self.timeline.storages[number].bytes)
        self._settle(number, self._phase)

    def _settle(self, number: int, ended_in: str) -> None:
        """What a forward pass makes and something later than it frees is an activation."""
        storage = self.timeline.storages[number]
        if storage.kind == "temporary" and self._born[number] in MAKES_ACTIVATIONS and ended_in != self._born[number]:
            storage.kind = "activation"

    def _gradient(self, parameter: Tensor) -> None:
        for tensor in _tensors(parameter.grad):
            self._become(tensor, "gradient")

    def _states(self, optimizer: torch.optim.Optimizer) -> None:
        for state in optimizer.state.values():
            for tensor in _tensors(list(state.values())):
                self._become(tensor, "state")

    def _become(self, tensor: Tensor, kind: str) -> None:
        self._see(tensor, kind, "the optimiser" if kind == "state" else "backward")
        known = self._known.get(tensor.untyped_storage()._cdata)
        if known is not None and self.timeline.storages[known[1]].kind != "parameter":
            self.timeline.storages[known[1]].kind = kind

    def _enter_module(self, module: nn.Module, _: Any) -> None:
        self._modules.append(self._names.get(module) or type(module).__name__)
        self._note_module()

    def _leave_module(self, *_: Any) -> None:
        if self._modules:
            self._modules.pop()
        self._note_module()

    def _note_module(self) -> None:
        numbers, names = self._created
        at = torch.autograd._get_sequence_nr()
        if not numbers or at >= numbers[-1]:  # another thread of the autograd engine counts for itself
            numbers.append(at)
            names.append(self._modules[-1] if self._modules else "")

    def _module(self, node: Any) -> str:
        """The running module; in a backward pass, the one whose forward pass made the autograd node."""
        if self._phase != "backward" or node is None:
            return self._modules[-1] if self._modules else ""
        numbers, names = self._created
        at = bisect_right(numbers, node._sequence_nr()) - 1
        return names[at] if 0 <= at < len(names) and not hasattr(node, "variable") else ""


def _tensors(tree: Any) -> Iterator[Tensor]:
    """The tensors in nested arguments or results that have a storage of their own."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor):
            if leaf.layout is torch.strided:
                yield leaf
            elif leaf.layout is torch.sparse_coo:
                yield from (leaf._indices(), leaf._values())


def _caller() -> str:
    """The innermost line outside of PyTorch and this module, "file.py:12 function"."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(NOT_THE_CALLER):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
