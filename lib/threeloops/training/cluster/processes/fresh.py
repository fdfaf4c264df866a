"""Ranks that differ as on real machines: each has its own interpreter and its own hash seed.

The order of a set of strings then differs from rank to rank, like that of a set of objects always does. Starting takes
seconds, because each rank imports torch itself.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import torch

from threeloops.module_process import command
from threeloops.training.cluster.processes.ranks import Sockets
from threeloops.training.cluster.processes.warm import be_unpacked_rank, kill
from threeloops.training.cluster.programs.child import die_with_parent

__all__ = ["fresh_ranks", "main"]

_FIRST_SEED = 1000
"""The seed of rank 0. Each rank has the same seed in every run."""


@contextlib.contextmanager
def fresh_ranks(size: int, program: bytes, seconds: float) -> Iterator[Sockets]:
    """Start `size` ranks that run a pickled program for at most `seconds`. At the end of the block all of them have
    ended."""
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryFile() as file:
        file.write(program)
        file.flush()

        def launch(descriptors: list[list[int]]) -> list[int]:
            for rank, given in enumerate(descriptors):
                numbers = [*given, file.fileno()]
                environment = {
                    **os.environ,
                    "CUDA_VISIBLE_DEVICES": "",
                    "OMP_NUM_THREADS": "1",
                    "PYTHONHASHSEED": str(_FIRST_SEED + rank),
                }
                processes.append(
                    subprocess.Popen(
                        [*command("threeloops.training.cluster.processes.fresh"), *map(str, (rank, *numbers))],
                        pass_fds=numbers,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        process_group=0,
                    )
                )
            return [process.pid for process in processes]

        sockets = None
        try:
            sockets = Sockets(size, launch, seconds, lambda: [process.poll() for process in processes])
            yield sockets
        finally:
            for process in processes:
                kill(process.pid, process.poll() is None)
                process.wait()
            if sockets:
                sockets.close()


def main() -> None:
    die_with_parent()
    rank, *descriptors, file = map(int, sys.argv[-4:])
    torch.set_num_threads(1)
    be_unpacked_rank(rank, descriptors, os.pread(file, os.fstat(file).st_size, 0))


if __name__ == "__main__":
    main()
