"""The processes of a trace, with their working directories, open files and offsets."""

import os
import re
from dataclasses import dataclass, field

from threeloops.training.checkpoint.crash.strace.trace import DESCRIPTOR, STRING, Call, plain_bytes

__all__ = ["FORKS", "Mapped", "Open", "Process", "Processes"]

FORKS = ("clone", "clone3", "fork", "vfork")


@dataclass
class Open:
    """An open file with its flags and offset, which all copies of a descriptor share."""

    flags: str
    offset: int = 0


@dataclass
class Process:
    """A process or thread, with its working directory and its open files by descriptor."""

    folder: str
    files: dict[int, Open] = field(default_factory=dict)


@dataclass
class Mapped:
    """A file that is mapped into shared memory. `synced_at` is the time of its last msync."""

    number: int
    path: str
    synced_at: float = 0.0


class Processes:
    """Tracker of processes and descriptors, which follows the calls that change them."""

    def __init__(self, folder: str, working_directory: str) -> None:
        self.folder = folder
        self._working_directory = working_directory
        self._processes = dict[int, Process]()
        self._forking: list[Call] = []

    def _process(self, call: Call) -> Process:
        if call.process not in self._processes:
            parent = self._forking[-1] if self._forking else None
            if parent:
                self._new_process(call.process, parent)
            else:
                self._processes[call.process] = Process(self._working_directory)
        return self._processes[call.process]

    def _new_process(self, number: int, parent: Call) -> None:
        before = self._processes[parent.process]
        shared = "CLONE_FILES" in parent.arguments
        files = before.files if shared else dict(before.files)
        self._processes[number] = before if shared and "CLONE_FS" in parent.arguments else Process(before.folder, files)

    def _fork(self, call: Call, process: Process) -> None:
        if call.begun in self._forking:
            self._forking.remove(call.begun)  # type: ignore[arg-type]
        if call.result and call.result not in self._processes:
            self._new_process(call.result, call)

    def _open(self, call: Call, process: Process) -> None:
        process.files[call.result or 0] = Open(call.arguments)

    def _close(self, call: Call, process: Process) -> None:
        process.files.pop(call.number(0), None)

    def _dup(self, call: Call, process: Process) -> None:
        if old := process.files.get(call.number(0)):
            process.files[call.result] = old  # type: ignore[index]

    def _fcntl(self, call: Call, process: Process) -> None:
        if "F_DUPFD" in call.arguments:
            self._dup(call, process)
        elif "F_SETFL" in call.arguments and (file := process.files.get(call.number(0))):
            file.flags = call.arguments + ("|O_DSYNC" if "O_DSYNC" in file.flags else "")

    def _lseek(self, call: Call, process: Process) -> None:
        if file := process.files.get(call.number(0)):
            file.offset = call.result or 0

    def _read(self, call: Call, process: Process) -> None:
        if file := process.files.get(call.number(0)):
            file.offset += call.result or 0

    def _chdir(self, call: Call, process: Process) -> None:
        process.folder = os.path.join(process.folder, os.fsdecode(call.data))

    def _fchdir(self, call: Call, process: Process) -> None:
        process.folder = call.descriptors[0][1]

    # Paths

    def _inside(self, path: str) -> str | None:
        if path == self.folder:
            return ""
        return path[len(self.folder) + 1 :] if path.startswith(self.folder + "/") else None

    def _paths(self, call: Call, process: Process) -> list[str | None]:
        """List the paths among the arguments, relative to the folder. A path outside of the folder is None."""
        return [self._inside(path) for path in self._full_paths(call, process)]

    def _full_paths(self, call: Call, process: Process) -> list[str]:
        paths: list[str] = []
        folder: list[str] = []
        for descriptor, path, _, text, _ in re.findall(f"{DESCRIPTOR}|{STRING}", call.arguments):
            if descriptor:
                folder = [os.fsdecode(plain_bytes(path))]
            else:
                paths.append(self._path(process, folder, os.fsdecode(plain_bytes(text))))
                folder = []
        return paths

    def _path(self, process: Process, folder: list[str], path: str) -> str:
        full = os.path.join(process.folder, *folder, path).rstrip("/")
        parent, name = os.path.split(full)
        return os.path.join(os.path.realpath(parent), name)
