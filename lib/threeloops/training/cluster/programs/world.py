"""Let a script that starts and ends `torch.distributed` itself run in the processes that were started for it.

A rank begins with a process group, so that functions can use it at once. A whole script makes its own: with
`init_process_group` and an address, a rank and a number of ranks, with `mp.spawn`, or by starting a process for each
rank. In a process that has called `enter_world`, these calls either lead to the ranks that exist already or are refused
by name. None of them silently leaves this world.
"""

import multiprocessing.context
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import torch.distributed as dist
import torch.multiprocessing
from torch.distributed import distributed_c10d

from threeloops.training.cluster.programs.actor import calling_line

__all__ = ["OwnStore", "enter_world", "environment"]

_BACKENDS = ("gloo", "nccl", "mpi", "undefined", "virtual", "cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo", "cpu:gloo")


def environment(rank: int, nodes: Sequence[int]) -> dict[str, str]:
    """The variables that torchrun sets; `nodes` says in which node each rank is. Nobody listens at the address: see
    `enter_world`."""
    node = [other for other in range(len(nodes)) if nodes[other] == nodes[rank]]
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(node.index(rank)),
        "GROUP_RANK": str(nodes[rank]),
        "WORLD_SIZE": str(len(nodes)),
        "LOCAL_WORLD_SIZE": str(len(node)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }


def enter_world(
    rank: int,
    ranks: int,
    backend: str,
    new_store: Callable[[int], dist.Store],
    take_over: Callable[[], None] | None = None,
) -> None:
    """Make the default process group of this rank. The program's own calls that start one are part of this world.

    Args:
        backend: of the default group. If it is "virtual", every group has it, whichever the program names.
        new_store: gives the store of the n-th default group, from 0 on.
        take_over: lets a fork of this process be the rank until it ends. Without it, none can.
    """
    world = _World(rank, ranks, backend, new_store, take_over)
    dist.init_process_group(backend, init_method="env://")
    world.given = True


class _World:
    """Replaces functions of torch for as long as this process lives."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        backend: str,
        new_store: Callable[[int], dist.Store],
        take_over: Callable[[], None] | None,
    ) -> None:
        self.take_over = take_over
        self.rank = rank
        self.ranks = ranks
        self.is_virtual = backend == "virtual"
        self.new_store = new_store
        self.given = False
        """Whether the default group is the one that the program found, and has not asked for."""
        self._process = os.getpid()
        self._worlds = 0
        self._init = dist.init_process_group
        self._new_group = distributed_c10d._new_process_group_helper
        dist.init_process_group = distributed_c10d.init_process_group = self.init_process_group
        distributed_c10d.rendezvous = self.rendezvous
        distributed_c10d._new_process_group_helper = self.new_process_group
        torch.multiprocessing.spawn = self.spawn
        torch.multiprocessing.start_processes = self.start_processes
        if self.is_virtual:
            self._stand_in_for_gloo()

    def _stand_in_for_gloo(self) -> None:
        """Imitate what torch does only for gloo, or only in a thread."""
        dist.monitored_barrier = distributed_c10d.monitored_barrier = _barrier
        if executor := sys.modules.get("torch.distributed.checkpoint._async_thread_executor"):
            executor._ThreadBasedAsyncCheckpointExecutor.execute_save = _save_at_once  # type: ignore[attr-defined]
        dist.rendezvous = _no_rpc
        for context in (multiprocessing.context.SpawnProcess, multiprocessing.context.ForkServerProcess):
            context._Popen = staticmethod(multiprocessing.context.ForkProcess._Popen)  # type: ignore

    def init_process_group(
        self,
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *arguments: Any,
        **options: Any,
    ) -> None:
        if os.getpid() != self._process and self.take_over is not None:
            self.enter_process(world_size, rank)
        self.check(backend, world_size, rank)
        if self.given and dist.is_initialized():
            self.given = False
            self.name_as_asked(distributed_c10d._get_default_group(), backend)
            return
        self._init(backend, init_method, timeout, world_size, rank, *arguments, **options)

    def enter_process(self, world_size: int, rank: int) -> None:
        """A program that starts a process for each of its ranks does so on each rank of this world. The process that
        asks for this rank becomes the rank, and the others end, because their ranks are elsewhere."""
        assert self.take_over is not None
        wanted = int(os.environ.get("RANK", -1)) if rank == -1 else rank
        if wanted != self.rank and world_size in (-1, self.ranks) and wanted in range(self.ranks):
            sys.stdout.flush()
            os._exit(0)
        self.take_over()
        self._process = os.getpid()

    def check(self, backend: Any, world_size: int, rank: int) -> None:
        """Raise unless the program asks for the world that it is in."""
        name = str(backend or "undefined").lower()
        if name not in _BACKENDS:
            raise ValueError(f"backend = {backend!r}{_here()}: expected one of {', '.join(_BACKENDS)}")
        if world_size not in (-1, self.ranks) or rank not in (-1, self.rank):
            raise ValueError(
                f"init_process_group(rank={rank}, world_size={world_size}){_here()}: this process is rank {self.rank} "
                f"of {self.ranks}. Run the program on {max(world_size, 1)} ranks, or read both from the environment "
                "(RANK, WORLD_SIZE)"
            )
        if os.getpid() != self._process:
            raise RuntimeError(
                f"init_process_group{_here()} in a process that rank {self.rank} started: only the ranks that the "
                "program was started with can communicate. Let each rank call the function itself"
            )

    def rendezvous(self, url: str, rank: int = -1, world_size: int = -1, **options: Any) -> Iterator[Any]:
        """Stands in for meeting at an address."""
        self.check(None, world_size, rank)
        self._store = self.new_store(self._worlds)  # torch does not keep a store that is written in Python
        yield self._store, self.rank, self.ranks

    def new_process_group(
        self, size: int, rank: int, members: Sequence[int], backend: Any, store: Any, name: str, **options: Any
    ) -> Any:
        """Every group has this world's backend."""
        if not members:
            self._worlds += 1
            size = self.ranks
            rank = self.rank
        if not self.is_virtual:
            return self._new_group(size, rank, members, backend, store, name, **options)
        self.check(backend, -1, -1)
        options.pop("backend_options", None)
        made = self._new_group(size, rank, members, "virtual", store, name, **options)
        self.name_as_asked(made[0], backend)
        return made

    def name_as_asked(self, group: Any, backend: Any) -> None:
        """Let `get_backend` say gloo to a program that asked for it. With the name of NCCL torch would use the GPU."""
        groups = distributed_c10d._world.pg_map
        if self.is_virtual and group in groups and str(backend).lower() == "gloo":
            groups[group] = "gloo", groups[group][1]

    def spawn(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        nprocs: int = 1,
        join: bool = True,
        *_: Any,
        **__: Any,
    ) -> "_Joined | None":
        """A script that spawns its ranks: each of them is here already, so it calls the function itself."""
        if nprocs != self.ranks:
            raise ValueError(
                f"torch.multiprocessing.spawn(nprocs={nprocs}){_here()} on {self.ranks} ranks: each of them calls the "
                f"function with its number instead, so nprocs must be {self.ranks}"
            )
        function(self.rank, *args)
        return None if join else _Joined()

    start_processes = spawn


class _Joined:
    """Stands in for the context of processes that are not joined yet."""

    def join(self, *_: Any, **__: Any) -> bool:
        return True


def _barrier(group: dist.ProcessGroup | None = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
    """Stands in for `monitored_barrier`: a rank that does not come is named without a timeout."""
    dist.barrier(group)


def _no_rpc(*_: Any, **__: Any) -> Iterator[Any]:
    """Stands in for the meeting of `torch.distributed.rpc`, whose messages would not go through the router."""
    raise NotImplementedError(
        f"torch.distributed.rpc{_here()}: on the virtual cluster ranks communicate with the calls of "
        "torch.distributed, such as send and recv, or broadcast_object_list for Python objects"
    )


def _save_at_once(_: Any, state_dict: Any, **options: Any) -> Future:  # type: ignore[type-arg]
    """Stands in for the thread of `dcp.async_save`, whose messages would come between the program's own at another
    point in each run: here they are sent before `async_save` returns."""
    from torch.distributed.checkpoint import _async_thread_executor

    future: Future[Any] = Future()
    try:
        future.set_result(_async_thread_executor.save_wrapper(state_dict, **options))
    except Exception as error:
        future.set_exception(error)
    return future


class OwnStore(dist.Store):
    """A key-value store with the keys that this rank sets. Keys of other ranks and counters that all ranks share are
    refused, because the router would not see a rank that waits for another, and the run would hang."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        return self._of_mine("get", key)

    def wait(self, keys: Sequence[str], *_: timedelta) -> None:
        for key in keys:
            self._of_mine("wait", key)

    def check(self, keys: Sequence[str]) -> bool:
        for key in keys:
            self._of_mine("check", key)
        return True

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def add(self, key: str, amount: int) -> int:
        raise self._refused("add", key)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        raise self._refused("compare_set", key)

    def set_timeout(self, timeout: timedelta) -> None:
        pass

    def _of_mine(self, call: str, key: str) -> bytes:
        if key not in self._values:
            raise self._refused(call, key)
        return self._values[key]

    def _refused(self, call: str, key: str) -> NotImplementedError:
        return NotImplementedError(
            f"store.{call}({key.rsplit('/', 1)[-1]!r}){_here()}: on the virtual cluster a store has only the keys that "
            "its own rank set. To pass a value to other ranks call dist.broadcast_object_list"
        )


def _here() -> str:
    where = calling_line()
    return f" ({where})" if where else ""
