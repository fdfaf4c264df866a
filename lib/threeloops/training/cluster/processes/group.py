"""A `torch.distributed` process group whose messages travel through the router.

Point-to-point calls happen on the rank's compute timeline; each collective is a job on its communication timeline.
Registered as the backend "virtual"; programs see `torch.distributed` alone.
"""

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from threeloops.training.cluster.machine.calls import Collective
from threeloops.training.cluster.processes.actor import ActorSocket
from threeloops.training.cluster.processes.communicator import REDUCTIONS, as_bytes
from threeloops.training.cluster.programs.arguments import (
    check_dense,
    check_fit,
    check_parts,
    check_reducible,
    check_whole,
    split_sizes,
)

__all__ = ["Rank", "register"]

_Tensors = list[torch.Tensor]
_ON_THE_WAY = (__name__, "torch.distributed.distributed_c10d", "torch.distributed.c10d_logger")
"""The modules between a call of `irecv` or `batch_isend_irecv` and this one."""


class Rank:
    """This process: its number, its conversation with the router, and collectives whose time is still to be charged."""

    def __init__(self, rank: int, size: int, main: ActorSocket) -> None:
        self.rank, self.size, self.main = rank, size, main
        self.unsettled: list[int] = []
        self._settles_after = -1
        self._under_way: dict[int, tuple[int, int, str]] = {}

    def synchronize(self) -> None:
        """Let the clock of the program catch up with the collectives whose values it has seen."""
        if self.unsettled:
            handles, self.unsettled = self.unsettled, []
            self.main.wait(*handles)

    def leave_unsettled(self, handle: int) -> None:
        """Charge the time of this collective at the end of the backward pass, if one is running, else at the next
        `synchronize`. torch's DDP makes the current stream wait for its collectives in a callback of the autograd
        engine, which runs then."""
        self.unsettled.append(handle)
        task = torch._C._current_graph_task_id()
        if task not in (-1, self._settles_after):
            self._settles_after = task
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)

    def _after_backward(self) -> None:
        self._settles_after = -1  # what other callbacks of this backward pass begin needs a callback of its own
        self.synchronize()

    def settle(self, handle: int) -> None:
        """The same for one of them."""
        if handle in self.unsettled:
            self.unsettled.remove(handle)
            self.main.wait(handle)

    def message(self, begin: Callable[[], int], tensor: torch.Tensor, what: str) -> int:
        """Begin a message out of this tensor or into it. Raises where another one that nobody has waited for is to fill
        the same memory, or this one would fill what is still to be sent. Torch may: see `_by_torch`."""
        start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes * tensor.is_contiguous()
        for other_start, other_end, other in self._under_way.values():
            sent = what.startswith("isend") and other.startswith("isend")
            if start < other_end and other_start < end and not sent and not _by_torch():
                raise RuntimeError(
                    f"the tensor of this {what} shares memory with that of the {other}, which is not over: wait() for "
                    "that one first, or use another tensor"
                )
        handle = begin()
        self._under_way[handle] = start, end, what
        return handle

    def wait(self, handle: int) -> memoryview:
        self._under_way.pop(handle, None)
        return self.main.wait(handle)[0]


def _by_torch() -> bool:
    """Whether torch itself asks for the message, and not the program. Before the first step its pipelining opens all
    connections with numbers that nobody reads, and receives those of both neighbours into one tensor.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") in _ON_THE_WAY:
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("torch.")


class _Work(dist._Work):
    """A handle. `wait` moves the program's clock; `get_future` gives the values at once, and its `wait` moves the clock
    if Python calls it. C++ code, such as torch's DDP, waits for the future where we do not see it: see
    `Rank.leave_unsettled`. A poll waits, because a program that polls lets no virtual time pass."""

    def __init__(
        self, rank: Rank, handle: int, result: Any, put: Callable[[memoryview], None], collective: bool
    ) -> None:
        super().__init__()
        self._rank, self._handle, self._result, self._put = rank, handle, result, put
        self._collective, self._done = collective, False

    def wait(self, timeout: Any = None) -> bool:
        if not self._done:
            self._put(self._rank.wait(self._handle))
            self._done = True
        self._rank.settle(self._handle)
        return True

    def is_completed(self) -> bool:
        return self.wait()

    def is_success(self) -> bool:
        return self._done

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> Any:
        return self._result

    def get_future(self) -> Future:
        if self._collective and not self._done:
            self._put(self._rank.main.wait_for_values(self._handle))
            self._rank.leave_unsettled(self._handle)
            self._done = True
        elif not self._done:
            self.wait()
        return _Values(self, self._result)


class _Values(Future):
    """A future that has its result. A program that waits for it, or for what follows from it, waits for the time of the
    collective as well."""

    def __init__(self, work: _Work, result: Any) -> None:
        super().__init__()
        self._work = work
        self.set_result(result)

    def wait(self) -> Any:
        self._work.wait()
        return super().wait()

    def then(self, callback: Callable[[Future], Any]) -> Future:
        return _Values(self._work, callback(self))


class _Group(dist.ProcessGroup):
    """torch's collectives. Every method returns a handle."""

    def __init__(self, me: Rank, rank: int, ranks: Sequence[int], name: str) -> None:
        super().__init__(rank, len(ranks))
        self._me, self._ranks, self._here, self._channel, self._name = me, tuple(ranks), rank, name, name

    def getBackendName(self) -> str:
        return "virtual"

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _submit(
        self,
        operation: str,
        tensor: torch.Tensor,
        out: _Tensors,
        *,
        count: int | None = None,
        opts: Any = None,
        root: int = 0,
        sends: Sequence[int] = (),
        gets: Sequence[int] = (),
        result: Any = None,
        dense: bool = True,
    ) -> _Work:
        """Begin a collective with `tensor`; its result fills the tensors in `out`, one after the other. With `dense`
        they must be contiguous; without, the caller has checked them, or takes any strides."""
        reduction = _reduction(opts)
        for name, given in (("its tensor", tensor), *(("its output", each) for each in out if dense)):
            check_dense(operation, name, given)
        check_reducible(operation, tensor, reduction)
        dtype = str(tensor.dtype).removeprefix("torch.")
        count = tensor.numel() if count is None else count
        collective = Collective(self._channel, self._ranks, operation, count, dtype, reduction, root)
        size = sum(each.nbytes for each in out)
        handle = self._me.main.submit(collective, as_bytes(tensor), sends, gets, size)
        return _Work(self._me, handle, out if result is None else result, lambda data: _fill(out, data), True)

    def send(self, tensors: _Tensors, to: int, tag: int = 0) -> _Work:
        tensor, to = check_dense("send", "its tensor", tensors[0]), self._ranks[to]
        handle = self._me.message(
            lambda: self._me.main.send(as_bytes(tensor), to, self._channel, tag), tensor, f"isend to rank {to}"
        )
        return _Work(self._me, handle, tensors, lambda data: None, False)

    def recv(self, tensors: _Tensors, source: int, tag: int = 0) -> _Work:
        tensor, source = check_dense("recv", "its tensor", tensors[0]), self._ranks[source]
        handle = self._me.message(
            lambda: self._me.main.receive(tensor.nbytes, source, self._channel, tag),
            tensor,
            f"irecv from rank {source}",
        )
        return _Work(self._me, handle, tensors, lambda data: _fill(tensors, data), False)

    def allreduce(self, tensors: _Tensors, opts: Any = None) -> _Work:
        return self._submit("all_reduce", tensors[0], tensors, opts=opts)

    def reduce(self, tensors: _Tensors, opts: Any) -> _Work:
        return self._submit("reduce", tensors[0], tensors, opts=opts, root=opts.rootRank)

    def broadcast(self, tensors: _Tensors, opts: Any) -> _Work:
        (tensor,), root = tensors, opts.rootRank
        given = tensor if self._here == root else tensor.new_empty(0)
        gets = (tensor.numel(),)
        return self._submit("broadcast", given, tensors, count=tensor.numel(), root=root, gets=gets)

    def reduce_scatter_single(self, out: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> _Work:
        check_whole("reduce_scatter_tensor(output, input)", "input", tensor, "output", out, self.size())
        return self._submit("reduce_scatter", tensor, [out], opts=opts, sends=[out.numel()] * len(self._ranks))

    def reduce_scatter(self, outs: _Tensors, tensors: list[_Tensors], opts: Any = None) -> _Work:
        call = "reduce_scatter(output, input_list)"
        self._check_parts(call, "input_list", tensors[0])
        check_fit(call, f"input_list[{self._here}]", tensors[0][self._here], "output", outs[0])
        sends = [part.numel() for part in tensors[0]]
        return self._submit("reduce_scatter", _joined(tensors[0]), outs, opts=opts, sends=sends)

    def all_gather_single(self, out: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> _Work:
        check_whole("all_gather_into_tensor(output, input)", "output", out, "input", tensor, self.size())
        return self._submit("all_gather", tensor, [out], gets=[tensor.numel()] * len(self._ranks))

    _reduce_scatter_base, _allgather_base = reduce_scatter_single, all_gather_single

    def allgather(self, outs: list[_Tensors], tensors: _Tensors, opts: Any = None) -> _Work:
        call = "all_gather(tensor_list, tensor)"
        check_parts(call, "tensor_list", outs[0], self.size())
        check_fit(call, f"tensor_list[{self._here}]", outs[0][self._here], "tensor", tensors[0])
        gets = [part.numel() for part in outs[0]]
        return self._submit("all_gather", tensors[0], outs[0], count=sum(gets), gets=gets, result=outs, dense=False)

    def _check_parts(self, call: str, name: str, parts: _Tensors) -> None:
        check_parts(call, name, parts, self.size())
        for number, part in enumerate(parts):
            check_dense(call, f"{name}[{number}]", part)

    def alltoall_base(
        self, out: torch.Tensor, tensor: torch.Tensor, out_sizes: list[int], sizes: list[int], opts: Any = None
    ) -> _Work:
        call, ranks, here = "all_to_all_single(output, input)", self.size(), self._here
        sends = split_sizes(call, "input", tensor, sizes, ranks)
        gets = split_sizes(call, "output", out, out_sizes, ranks)
        if sends[here] != gets[here]:
            raise ValueError(
                f"{call}: rank {self._ranks[here]} keeps {sends[here]} elements of its own input, and its output has "
                f"room for {gets[here]} of them: expected as many"
            )
        return self._submit("all_to_all", tensor, [out], count=0, sends=sends, gets=gets)

    def alltoall(self, outs: _Tensors, tensors: _Tensors, opts: Any = None) -> _Work:
        call, here = "all_to_all(output_list, input_list)", self._here
        self._check_parts(call, "input_list", tensors)
        self._check_parts(call, "output_list", outs)
        check_fit(call, f"input_list[{here}]", tensors[here], f"output_list[{here}]", outs[here])
        sends, gets = [part.numel() for part in tensors], [part.numel() for part in outs]
        return self._submit("all_to_all", _joined(tensors), outs, count=0, sends=sends, gets=gets, dense=False)

    def gather(self, outs: list[_Tensors], tensors: _Tensors, opts: Any) -> _Work:
        parts, call = outs[0] if outs else [], "gather(tensor, gather_list)"
        if outs:
            self._check_parts(call, "gather_list", parts)
        for number, part in enumerate(parts):
            check_fit(call, f"gather_list[{number}]", part, "tensor", tensors[0])
        gets = [part.numel() for part in parts]
        return self._submit("gather", tensors[0], parts, root=opts.rootRank, gets=gets, result=outs, dense=False)

    def scatter(self, outs: _Tensors, tensors: list[_Tensors], opts: Any) -> _Work:
        parts, call = tensors[0] if tensors else [], "scatter(tensor, scatter_list)"
        if tensors:
            self._check_parts(call, "scatter_list", parts)
        for number, part in enumerate(parts):
            check_fit(call, f"scatter_list[{number}]", part, "tensor", outs[0])
        given = _joined(parts) if parts else outs[0].new_empty(0)
        sends, gets = [part.numel() for part in parts], [outs[0].numel()]
        count = outs[0].numel()
        return self._submit("scatter", given, outs, count=count, root=opts.rootRank, sends=sends, gets=gets)

    def barrier(self, opts: Any = None) -> _Work:
        return self._submit("barrier", torch.empty(0), [])


def _refuse(name: str, instead: str) -> None:
    def method(self: _Group, *arguments: Any, **options: Any) -> _Work:
        raise NotImplementedError(f"the virtual cluster has no {name}: {instead}")

    setattr(_Group, name, method)


_NOT_FUNCTIONAL = "and no functional collectives (torch.distributed._functional_collectives)"

_refuse("recv_anysource", "name the rank to receive from")
_refuse("allreduce_coalesced", "call dist.all_reduce for each tensor, or for all of them in one")
_refuse("reduce_scatter_tensor_coalesced", f"call dist.reduce_scatter_tensor for each, {_NOT_FUNCTIONAL}")
_refuse("allgather_into_tensor_coalesced", f"call dist.all_gather_into_tensor for each, {_NOT_FUNCTIONAL}")


def _joined(tensors: _Tensors) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _fill(tensors: _Tensors, data: memoryview) -> None:
    """Copy the bytes of a result, or of a message, into tensors of any strides."""
    for tensor in tensors:
        if tensor.nbytes:
            part, data = data[: tensor.nbytes], data[tensor.nbytes :]
            tensor.detach().copy_(torch.frombuffer(part, dtype=tensor.dtype).view(tensor.shape))


def _reduction(opts: Any) -> str:
    """The name of the reduction; torch's objects for it can be compared, but not hashed."""
    if opts is None or not hasattr(opts, "reduceOp"):
        return "SUM"
    known = (*REDUCTIONS, "BAND", "BOR", "BXOR", "PREMUL_SUM")
    found = next((name for name in known if opts.reduceOp == getattr(dist.ReduceOp, name)), "unknown")
    if found not in REDUCTIONS:
        raise ValueError(f"reduction {found}: the virtual cluster has {', '.join(REDUCTIONS)}")
    return found


def register(me: Rank) -> None:
    """Make "virtual" torch's backend for CPU tensors in this process, and its default group."""

    def create(options: Any, _: Any) -> _Group:
        ranks = list(options.global_ranks_in_group) or list(range(me.size))
        return _Group(me, options.group_rank, ranks, options.group_id or "world")

    dist.Backend.register_backend("virtual", create, extended_api=True, devices=["cpu"])
    dist.init_process_group("virtual", rank=me.rank, world_size=me.size, store=dist.HashStore())
