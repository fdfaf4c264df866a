"""A tracker of live storage: every byte that tensors hold, from the operator that makes it to its last reference.

PyTorch's dispatcher shows each operator's results, and a weak reference to each storage tells when it dies. Neither
the workspace that an operator frees itself nor the allocator's rounding is seen; on a GPU both are part of
`torch.cuda.max_memory_allocated`, which is recorded as well.
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

from threeloops.inner.memory.timeline import MemoryBudgetExceeded, Storage, Timeline
from threeloops.places import source_name

__all__ = ["LiveStorage"]

_NOT_THE_CALLER = (str(Path(torch.__file__).parent), str(Path(__file__).parent), str(Path(weakref.__file__).parent))
_MAKES_ACTIVATIONS = ("forward", "recompute")


class LiveStorage(TorchDispatchMode):
    """`with LiveStorage(model, optimizers=[optimizer]) as live: …`, then `live.timeline`.

    This counts the storages of the models' parameters, buffers and gradients and of the optimizers' states, and every
    storage that an operator reads or makes while the tracker is open: each once, in its full size, however many tensors
    share it. With `budget_bytes` the operator that first exceeds it raises MemoryBudgetExceeded. Which storages are
    activations is known when the tracker closes. `allocator_peak_bytes` is CUDA's own count, None without CUDA.
    Entering a tracker again raises RuntimeError.
    """

    def __init__(
        self,
        *models: nn.Module,
        optimizers: Iterable[torch.optim.Optimizer] = (),
        budget_bytes: int | None = None,
    ):
        super().__init__()
        if budget_bytes is not None and budget_bytes <= 0:
            raise ValueError(f"budget_bytes = {budget_bytes}: expected a positive number of bytes")
        self.timeline = Timeline()
        self.allocator_peak_bytes: int | None = None
        self._models = models
        self._optimizers = tuple(optimizers)
        self._budget = budget_bytes
        self._known: dict[int, tuple[weakref.ref, int]] = {}
        self._made_in: list[str] = []  # the phase in which each storage was made
        self._modules: list[str] = []
        self._names = {module: name for model in models for name, module in model.named_modules()}
        self._running: tuple[list[int], list[str]] = ([], [])  # from autograd node i on, module i is running
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
        except BaseException:  # then `with` does not call __exit__
            self._end()
            raise
        return super().__enter__()

    def __exit__(self, *reason: Any) -> None:
        super().__exit__(*reason)
        if torch.cuda.is_available():
            self.allocator_peak_bytes = torch.cuda.max_memory_allocated()
        self._end()

    def _begin(self) -> None:
        """Count the tensors that exist already, and hook into the models and optimizers."""
        for model in self._models:
            for name, parameter in model.named_parameters():
                self._see(parameter, "parameter", "the model", module=name)
                if parameter.requires_grad:
                    self._handles.append(parameter.register_post_accumulate_grad_hook(self._see_gradient))
                self._see(parameter.grad, "gradient", "an earlier backward pass", module=name)
            for name, buffer in model.named_buffers():
                self._see(buffer, "buffer", "the model", module=name)
        for optimizer in self._optimizers:
            self._see_states(optimizer)
        self._handles += [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
            register_optimizer_step_post_hook(self._see_states),
        ]
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def _end(self) -> None:
        """Remove the hooks and settle the kind of every storage."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._settle_all()
        self._known.clear()

    def mark(self, what: str) -> None:
        """Note in the timeline that a part of the step, such as "backward", begins."""
        self.timeline.mark(what)

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        node = torch._C._current_autograd_node()
        if node is not None:
            self._phase = "recompute" if torch.is_grad_enabled() else "backward"
        else:
            self._phase = "forward" if torch.is_grad_enabled() or self._modules else "update"
        self._see((args, kwargs), "input", "code before the tracker")
        result = function(*args, **kwargs)
        operator = function.overloadpacket.__name__
        if self._phase == "backward":
            operator += f" of {node.name().rpartition('::')[2]}"
        self._see(result, "temporary", operator, node)
        return result

    def _see(self, tree: Any, kind: str, operator: str, node: Any = None, module: str = "") -> None:
        """Count the storages of the tensors in `tree` that are new, and notice those that were resized in place."""
        for tensor in _tensors(tree):
            if tensor.device.type == "meta":
                continue
            storage = tensor.untyped_storage()
            key = storage._cdata
            size = storage.nbytes()
            if key in self._known:
                number = self._known[key][1]
                if size != self.timeline.storages[number].bytes:
                    self.timeline.grow(number, size - self.timeline.storages[number].bytes)
                    self.timeline.storages[number].bytes = size
                continue
            where = _caller() if kind == "temporary" and self._phase in _MAKES_ACTIVATIONS else ""
            place = module or self._module(node)
            dtype = str(tensor.dtype).removeprefix("torch.")
            number = self.timeline.add(Storage(size, kind, operator, place, tuple(tensor.shape), dtype, where))
            self._known[key] = (weakref.ref(storage, partial(self._die, key)), number)
            self._made_in.append(self._phase)
            if self._budget is not None and self.timeline.live_bytes > self._budget:
                self._settle_all()
                raise MemoryBudgetExceeded(self._budget, copy.deepcopy(self.timeline))  # unwinding frees tensors

    def _die(self, key: int, _: weakref.ref) -> None:
        _, number = self._known.pop(key)
        self.timeline.end(number)
        self._settle(number, self._phase)

    def _settle(self, number: int, ended_in: str) -> None:
        """Settle the kind of a storage. One that a forward pass makes and a later phase frees is an activation."""
        storage = self.timeline.storages[number]
        made_in = self._made_in[number]
        if storage.kind == "temporary" and made_in in _MAKES_ACTIVATIONS and ended_in != made_in:
            storage.kind = "activation"

    def _settle_all(self) -> None:
        for _, number in self._known.values():
            self._settle(number, "the end")

    def _see_gradient(self, parameter: Tensor) -> None:
        self._become(parameter.grad, "gradient", "backward")

    def _see_states(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._become([list(state.values()) for state in optimizer.state.values()], "state", "the optimizer")

    def _become(self, tree: Any, kind: str, operator: str) -> None:
        self._see(tree, kind, operator)
        for tensor in _tensors(tree):
            entry = self._known.get(tensor.untyped_storage()._cdata)
            if entry is not None and self.timeline.storages[entry[1]].kind != "parameter":
                self.timeline.storages[entry[1]].kind = kind

    def _enter_module(self, module: nn.Module, _: Any) -> None:
        self._modules.append(self._names.get(module) or type(module).__name__)
        self._note_module()

    def _leave_module(self, *_: Any) -> None:
        if self._modules:
            self._modules.pop()
        self._note_module()

    def _note_module(self) -> None:
        numbers, names = self._running
        at = torch.autograd._get_sequence_nr()
        if not numbers or at >= numbers[-1]:  # other threads of the autograd engine count for themselves
            numbers.append(at)
            names.append(self._modules[-1] if self._modules else "")

    def _module(self, node: Any) -> str:
        """Return the running module, or in a backward pass the one whose forward pass made the autograd node."""
        if self._phase != "backward" or node is None:
            return self._modules[-1] if self._modules else ""
        numbers, names = self._running
        at = bisect_right(numbers, node._sequence_nr()) - 1
        return names[at] if 0 <= at < len(names) and not hasattr(node, "variable") else ""


def _tensors(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested arguments or results, and for a sparse one its tensors with storage."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor):
            if leaf.layout is torch.strided:
                yield leaf
            elif leaf.layout is torch.sparse_coo:
                yield from (leaf._indices(), leaf._values())


def _caller() -> str:
    """Return the innermost line outside of PyTorch and this module, "file.py:12 function"."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_CALLER):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{source_name(frame.f_code.co_filename)}:{frame.f_lineno} {frame.f_code.co_name}"
