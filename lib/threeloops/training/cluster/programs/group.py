"""A `torch.distributed` process group whose messages travel through the router.

Point-to-point calls happen on the rank's compute timeline, and each collective is a job on its communication timeline.
The group is registered as the backend "virtual", so programs only use `torch.distributed`.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from threeloops.training.cluster.machine.calls import Collective
from threeloops.training.cluster.programs.arguments import (
    check_dense,
    check_each_dense,
    check_fit,
    check_one_dtype,
    check_parts,
    check_reducible,
    check_whole,
    split_sizes,
)
from threeloops.training.cluster.programs.handles import Rank, Work
from threeloops.training.cluster.programs.tensors import REDUCTIONS, as_bytes, checksum, fill, joined

__all__ = ["hide_from_compiler", "register"]

_Tensors = list[torch.Tensor]


class _Group(dist.ProcessGroup):
    """torch's collectives. Every method returns a handle."""

    def __init__(self, me: Rank, rank: int, ranks: Sequence[int], channel: str) -> None:
        super().__init__(rank, len(ranks))
        self._me = me
        self._ranks = tuple(ranks)
        self._here = rank
        self._channel = channel
        self._name = ""

    def getBackendName(self) -> str:
        return "virtual"

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    supports_coalescing = supports_splitting = False

    def _get_backend(self, device: torch.device) -> "_Group":
        """torch 2.14 asks for it, and whether it coalesces, before each batch of messages."""
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"device {device}: the virtual cluster sends tensors of the CPU")
        return self

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
        put: Callable[[memoryview], None] | None = None,
    ) -> Work:
        """Begin a collective with `tensor`; its result fills the tensors in `out`, one after the other, or is given to
        `put`. With `dense` they must be contiguous; without, the caller has checked them, or takes any strides."""
        reduction = _reduction(opts)
        for name, given in (("its tensor", tensor), *(("its output", output) for output in out if dense)):
            check_dense(operation, name, given)
        check_reducible(operation, tensor, reduction)
        if not 0 <= root < len(self._ranks):
            raise ValueError(
                f"{operation}: root {root} in a group of {len(self._ranks)} ranks: expected 0 to {len(self._ranks) - 1}"
            )
        dtype = str(tensor.dtype).removeprefix("torch.")
        count = tensor.numel() if count is None else count
        collective = Collective(self._channel, self._ranks, operation, count, dtype, reduction, root)
        size = sum(output.nbytes for output in out)
        handle = self._me.begin(self._me.main.submit(collective, as_bytes(tensor), sends, gets, size))
        put = put or (lambda data: fill(out, data))
        return Work(self._me, handle, out if result is None else result, put, True)

    def _peer(self, call: str, number: int) -> int:
        """Return the global rank of the group's rank `number`. Raises ValueError if the group has none."""
        if not 0 <= number < len(self._ranks):
            raise ValueError(
                f"{call}: rank {number} in a group of {len(self._ranks)} ranks: expected 0 to {len(self._ranks) - 1}"
            )
        return self._ranks[number]

    def send(self, tensors: _Tensors, to: int, tag: int = 0) -> Work:
        tensor = check_dense("send", "its tensor", tensors[0])
        to = self._peer("send", to)
        handle = self._me.message(
            lambda: self._me.main.send(as_bytes(tensor), to, self._channel, tag), tensor, f"isend to rank {to}"
        )
        require_unchanged = _unchanged(tensor, f"isend to rank {to}", f"rank {to} might get the new values")
        return Work(self._me, handle, tensors, lambda _: require_unchanged(), False)

    def recv(self, tensors: _Tensors, source: int, tag: int = 0) -> Work:
        tensor = check_dense("recv", "its tensor", tensors[0])
        source = self._peer("recv", source)
        handle = self._me.message(
            lambda: self._me.main.receive(tensor.nbytes, source, self._channel, tag),
            tensor,
            f"irecv from rank {source}",
        )
        return Work(self._me, handle, tensors, lambda data: fill(tensors, data), False)

    def allreduce(self, tensors: _Tensors, opts: Any = None) -> Work:
        if opts is not None and not opts.asyncOp:  # torch waits at once
            return self._submit("all_reduce", tensors[0], tensors, opts=opts)
        danger = "ranks might sum the new values, or the change might be lost"

        def put(data: memoryview) -> None:
            require_unchanged()
            fill(tensors, data)

        work = self._submit("all_reduce", tensors[0], tensors, opts=opts, put=put)
        require_unchanged = _unchanged(tensors[0], "all_reduce", danger)
        return work

    def allreduce_coalesced(self, tensors: _Tensors, opts: Any = None) -> Work:
        self._check_many("all_reduce_coalesced", "tensors", tensors)
        return self._submit("all_reduce", joined(tensors), tensors, opts=opts, dense=False)

    def reduce(self, tensors: _Tensors, opts: Any) -> Work:
        return self._submit("reduce", tensors[0], tensors, opts=opts, root=opts.rootRank)

    def broadcast(self, tensors: _Tensors, opts: Any) -> Work:
        (tensor,) = tensors
        root = opts.rootRank
        given = tensor if self._here == root else tensor.new_empty(0)
        gets = (tensor.numel(),)
        return self._submit("broadcast", given, tensors, count=tensor.numel(), root=root, gets=gets)

    def reduce_scatter_single(self, out: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        check_whole("reduce_scatter_tensor(output, input)", "input", tensor, "output", out, self.size())
        return self._submit("reduce_scatter", tensor, [out], opts=opts, sends=[out.numel()] * len(self._ranks))

    def reduce_scatter(self, outs: _Tensors, tensors: list[_Tensors], opts: Any = None) -> Work:
        call = "reduce_scatter(output, input_list)"
        self._check_parts(call, "input_list", tensors[0])
        check_fit(call, f"input_list[{self._here}]", tensors[0][self._here], "output", outs[0])
        sends = [part.numel() for part in tensors[0]]
        return self._submit("reduce_scatter", joined(tensors[0]), outs, opts=opts, sends=sends)

    def all_gather_single(self, out: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        check_whole("all_gather_into_tensor(output, input)", "output", out, "input", tensor, self.size())
        return self._submit("all_gather", tensor, [out], gets=[tensor.numel()] * len(self._ranks))

    def reduce_scatter_tensor_coalesced(self, outs: _Tensors, tensors: _Tensors, opts: Any = None) -> Work:
        """Several in one collective: each rank's part of it has a part of every tensor."""
        call = "reduce_scatter_tensor_coalesced(outputs, inputs)"
        size = self.size()
        self._check_pairs(call, "inputs", tensors, "outputs", outs)
        parts = torch.cat([tensor.detach().reshape(size, -1) for tensor in tensors], dim=1).flatten()
        sends = [parts.numel() // size] * size
        return self._submit("reduce_scatter", parts, outs, opts=opts, sends=sends, dense=False)

    def allgather_into_tensor_coalesced(self, outs: _Tensors, tensors: _Tensors, opts: Any = None) -> Work:
        """Gather several tensors in one collective. A rank sends all of its tensors together."""
        call = "all_gather_into_tensor_coalesced(outputs, inputs)"
        size = self.size()
        self._check_pairs(call, "outputs", outs, "inputs", tensors)
        mine = joined(tensors)

        def put(data: memoryview) -> None:
            for rank in range(size):
                part = data[rank * mine.nbytes : (rank + 1) * mine.nbytes]
                fill([out.view(size, *tensor.shape)[rank] for out, tensor in zip(outs, tensors, strict=True)], part)

        return self._submit("all_gather", mine, outs, gets=[mine.numel()] * size, dense=False, put=put)

    def _check_pairs(self, call: str, whole_name: str, wholes: _Tensors, part_name: str, parts: _Tensors) -> None:
        self._check_many(call, whole_name, wholes)
        self._check_many(call, part_name, parts)
        for n, (whole, part) in enumerate(zip(wholes, parts, strict=True)):
            check_whole(call, f"{whole_name}[{n}]", whole, f"{part_name}[{n}]", part, self.size())

    def _check_many(self, call: str, name: str, tensors: _Tensors) -> None:
        if not tensors:
            raise ValueError(f"{call}: {name} is an empty list: expected one tensor or more")
        check_one_dtype(call, name, tensors)
        check_each_dense(call, name, tensors)

    _reduce_scatter_base = reduce_scatter_single
    _allgather_base = all_gather_single

    def allgather(self, outs: list[_Tensors], tensors: _Tensors, opts: Any = None) -> Work:
        call = "all_gather(tensor_list, tensor)"
        check_parts(call, "tensor_list", outs[0], self.size())
        check_fit(call, f"tensor_list[{self._here}]", outs[0][self._here], "tensor", tensors[0])
        gets = [part.numel() for part in outs[0]]
        return self._submit("all_gather", tensors[0], outs[0], count=sum(gets), gets=gets, result=outs, dense=False)

    def _check_parts(self, call: str, name: str, parts: _Tensors) -> None:
        check_parts(call, name, parts, self.size())
        check_each_dense(call, name, parts)

    def alltoall_base(
        self, out: torch.Tensor, tensor: torch.Tensor, out_sizes: list[int], sizes: list[int], opts: Any = None
    ) -> Work:
        call = "all_to_all_single(output, input)"
        ranks = self.size()
        here = self._here
        sends = split_sizes(call, "input", tensor, sizes, ranks)
        gets = split_sizes(call, "output", out, out_sizes, ranks)
        if sends[here] != gets[here]:
            raise ValueError(
                f"{call}: rank {self._ranks[here]} keeps {sends[here]} elements of its own input, and its output has "
                f"room for {gets[here]} of them: expected as many"
            )
        return self._submit("all_to_all", tensor, [out], count=0, sends=sends, gets=gets)

    def alltoall(self, outs: _Tensors, tensors: _Tensors, opts: Any = None) -> Work:
        call = "all_to_all(output_list, input_list)"
        here = self._here
        self._check_parts(call, "input_list", tensors)
        self._check_parts(call, "output_list", outs)
        check_fit(call, f"input_list[{here}]", tensors[here], f"output_list[{here}]", outs[here])
        sends = [part.numel() for part in tensors]
        gets = [part.numel() for part in outs]
        return self._submit("all_to_all", joined(tensors), outs, count=0, sends=sends, gets=gets, dense=False)

    def gather(self, outs: list[_Tensors], tensors: _Tensors, opts: Any) -> Work:
        parts = outs[0] if outs else []
        call = "gather(tensor, gather_list)"
        if outs:
            self._check_parts(call, "gather_list", parts)
        for number, part in enumerate(parts):
            check_fit(call, f"gather_list[{number}]", part, "tensor", tensors[0])
        gets = [part.numel() for part in parts]
        return self._submit("gather", tensors[0], parts, root=opts.rootRank, gets=gets, result=outs, dense=False)

    def scatter(self, outs: _Tensors, tensors: list[_Tensors], opts: Any) -> Work:
        parts = tensors[0] if tensors else []
        call = "scatter(tensor, scatter_list)"
        if tensors:
            self._check_parts(call, "scatter_list", parts)
        for number, part in enumerate(parts):
            check_fit(call, f"scatter_list[{number}]", part, "tensor", outs[0])
        given = joined(parts) if parts else outs[0].new_empty(0)
        sends = [part.numel() for part in parts]
        gets = [outs[0].numel()]
        count = outs[0].numel()
        return self._submit("scatter", given, outs, count=count, root=opts.rootRank, sends=sends, gets=gets)

    def barrier(self, opts: Any = None) -> Work:
        return self._submit("barrier", torch.empty(0), [])


def _refuse(name: str, instead: str) -> None:
    def method(self: _Group, *arguments: Any, **options: Any) -> Work:
        raise NotImplementedError(f"the virtual cluster has no {name}: {instead}")

    setattr(_Group, name, method)


_refuse("recv_anysource", "name the rank to receive from")


def _reduction(opts: Any) -> str:
    """The name of the reduction; torch's objects for it can be compared, but not hashed."""
    if opts is None or not hasattr(opts, "reduceOp"):
        return "SUM"
    names = (*REDUCTIONS, "PREMUL_SUM")
    reduction = next((name for name in names if opts.reduceOp == getattr(dist.ReduceOp, name)), "unknown")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction {reduction}: the virtual cluster has {', '.join(REDUCTIONS)}")
    return reduction


def hide_from_compiler() -> None:
    """Keep torch.compile from tracing into our collectives. It does not trace into torch's own, because they are
    written in C++. The compiler must have been imported. This takes a millisecond, so it is done once, before ranks are
    forked."""
    sys.modules["torch._dynamo.trace_rules"].add(__package__)


def register(me: Rank) -> None:
    """Make "virtual" torch's backend for CPU tensors in this process."""
    worlds = itertools.count()
    suffix = ""

    def create(options: Any, _: Any) -> _Group:
        nonlocal suffix
        ranks = list(options.global_ranks_in_group)
        if not ranks and (number := next(worlds)):  # a program that ends its groups and begins anew names them alike
            suffix = f" of world {number}"
        return _Group(me, options.group_rank, ranks or range(me.size), f"{options.group_id}{suffix}")

    dist.Backend.register_backend("virtual", create, extended_api=True, devices=["cpu"])


def _unchanged(tensor: torch.Tensor, call: str, danger: str) -> Callable[[], None]:
    """Return a check that raises RuntimeError if the tensor is not what it is now."""
    given = checksum(tensor)

    def require() -> None:
        if checksum(tensor) != given:
            raise RuntimeError(
                f"the tensor of this {call} changed before its wait(): on a real network {danger}, so call wait() first"
            )

    return require
