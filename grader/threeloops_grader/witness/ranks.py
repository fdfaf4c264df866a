"""The grader's end of the ranks of a submission. This module imports torch."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

from threeloops import frames
from threeloops.frames import FrameError
from threeloops.training.cluster.processes.ranks import Sockets

from threeloops_grader.transport.link import LIMITS, FrameLink, WallError
from threeloops_grader.transport.wire import decode
from threeloops_grader.witness.plain import Plain

__all__ = ["ConfinedRanks", "result_of"]


class ConfinedRanks(Sockets):
    """Ranks that the monitor of a submission forks, each in a sandbox of its own. The grader's router speaks to each
    through its own socket."""

    def __init__(
        self, size: int, program: bytes, seconds: float, link: FrameLink, ask: Callable[..., dict[str, Any]]
    ) -> None:
        """Start the ranks. Raises OSError if this machine does not let them be confined."""
        self._ask = ask

        def launch(descriptors: list[list[int]]) -> list[int]:
            link.send({"op": "start", "ranks": size}, [program])
            for given in descriptors:
                socket.send_fds(link.socket, [b"."], given)
            if not link.receive()[0]["confined"]:
                raise OSError(errno.EIO, "the ranks of a submission could not be confined")
            return []

        super().__init__(size, launch, seconds, most=LIMITS.body_bytes)

    def _request_stack(self, rank: int) -> None:
        self._ask("stack", rank=rank)

    def measure_memory(self) -> None:
        """Start to measure memory. Raises RuntimeError if a rank has ended, or has already allocated memory."""
        if not self._ask("measure")["ready"]:
            raise RuntimeError("a rank ended, or allocated memory, before its memory was measured")

    def memory(self) -> list[int]:
        """Return the measured memory. Raises RuntimeError if a rank has ended by itself, or has started another
        process."""
        growth = self._ask("growth")["bytes"]
        if growth is None:
            raise RuntimeError("a rank ended, or started another process, while its memory was measured")
        return list(growth)

    def close(self) -> None:
        """Kill all ranks."""
        self._ask("end")
        super().close()


class _Results(Plain):
    """Plain data, and records of classes that the grader's side has."""

    def __init__(self, record: Callable[[Any, Any, Any], Any]) -> None:
        self._record = record

    def decode_record(self, module: Any, name: Any, fields: Any) -> Any:
        return self._record(module, name, fields)


def result_of(data: memoryview, record: Callable[[Any, Any, Any], Any]) -> Any:
    """Decode the result of a rank. `record` makes a record from its module, name and fields.

    Raises WallError if this is not plain data.
    """
    try:
        tree, buffers = frames.from_bytes(data, LIMITS)
    except FrameError as error:
        raise WallError(f"a rank returned a malformed result ({error})") from None
    return decode(tree.get("value"), buffers, _Results(record))
