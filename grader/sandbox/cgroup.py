"""A control group for each submission: the kernel itself counts its memory, processes and share of the cores.

It counts everything that all of its processes take together: pages, files in a tmpfs, socket buffers, page tables.
Version 2 holds the three controllers in one tree; a machine that still runs version 1 has a tree for each. `why_not`
says whether groups can be made here. Where they cannot, `confine` limits each process and `host` looks at intervals.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from grader.authoring.labs import Limits

CONTROLLERS = ("memory", "pids", "cpu")
_PROC = Path("/proc/self")
_deciding = threading.Lock()
_PREFIX = "threeloops-"
_PERIOD_MICROSECONDS = 100_000
_END_SECONDS = 2.0
_numbers = itertools.count()


class NoGroups(Exception):
    """Control groups cannot be made here; the message says why."""


@dataclass(frozen=True)
class Place:
    """Where groups can be made: one folder for all controllers (version 2), or one for each (version 1)."""

    version: int
    folders: tuple[Path, ...]


@dataclass(frozen=True)
class Group:
    """The control group of one submission."""

    version: int
    folders: tuple[Path, ...]
    memory_mb: int

    def entries(self) -> list[int]:
        """Open descriptors: a process that writes "0" to each becomes a member. The caller closes them."""
        return [os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in self.folders]

    def exceeded(self) -> str:
        """Why the kernel ended processes of the group, or an empty string."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        killed = 0
        with suppress(OSError, KeyError, ValueError):
            killed = int(_pairs(self.folders[0] / name)["oom_kill"])
        return f"it used more than {self.memory_mb} MiB of memory" if killed else ""

    def end(self) -> None:
        """End every process of the group and remove it; what does not go in time is removed by a later run."""
        deadline = time.monotonic() + _END_SECONDS
        for folder in self.folders:
            while not _removed(folder) and time.monotonic() < deadline:
                _kill(folder)
                time.sleep(0.002)


def make(limits: Limits, jobs: int) -> Group | None:
    """A new group with `limits.memory_mb`, `limits.processes` and the cores of one of `jobs` submissions at a time.

    None where the machine lets nobody make groups. Raises OSError where it does and refuses this one.
    """
    if why_not() is not None:
        return None
    place = find()
    name = _name(next(_numbers))
    group = Group(place.version, tuple(folder / name for folder in place.folders), limits.memory_mb)
    try:
        for folder in group.folders:
            folder.mkdir()
        for file, value in settings(group.version, limits, jobs).items():
            _write(group.folders, file, value)
    except OSError:
        group.end()
        raise
    return group


def settings(version: int, limits: Limits, jobs: int) -> dict[str, str]:
    """The files of a group and what is written to them, in this order."""
    memory, processes = str(limits.memory_mb << 20), str(limits.processes)
    cores = max((os.cpu_count() or 1) / jobs, 1)
    quota = str(int(cores * _PERIOD_MICROSECONDS))
    if version == 2:
        return {
            "memory.max": memory,
            "memory.swap.max": "0",
            "memory.oom.group": "1",
            "pids.max": processes,
            "cpu.max": f"{quota} {_PERIOD_MICROSECONDS}",
        }
    return {
        "memory.limit_in_bytes": memory,
        "memory.memsw.limit_in_bytes": memory,
        "memory.kmem.tcp.limit_in_bytes": memory,
        "pids.max": processes,
        "cpu.cfs_period_us": str(_PERIOD_MICROSECONDS),
        "cpu.cfs_quota_us": quota,
    }


_OPTIONAL = ("memory.swap.max", "memory.memsw.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes")
"""Files of kernels built with accounting of swap and, in version 1, of TCP."""


def _write(folders: tuple[Path, ...], file: str, value: str) -> None:
    found = next((folder / file for folder in folders if (folder / file).exists()), None)
    if found is not None:
        found.write_text(value)
    elif file not in _OPTIONAL:
        raise FileNotFoundError(2, f"this kernel's control groups have no {file}", str(folders[0]))


def why_not() -> str | None:
    """Why no group can be made here, in one sentence; None where one can. Really makes one and moves a process in."""
    with _deciding:  # two trials at a time would stand in each other's way
        return _why_not()


@functools.cache
def _why_not() -> str | None:
    try:
        place = find()
        _sweep(place)
        trial = Group(place.version, tuple(folder / _name("trial") for folder in place.folders), 0)
        try:
            for folder in trial.folders:
                folder.mkdir()
            for file, value in settings(trial.version, Limits(), 1).items():
                _write(trial.folders, file, value)
            procs = [str(folder / "cgroup.procs") for folder in trial.folders]
            subprocess.run(
                ["/bin/sh", "-c", 'for entry; do echo $$ > "$entry" || exit 1; done', "sh", *procs],
                capture_output=True,
                timeout=10,
                check=True,
            )
        finally:
            trial.end()
    except NoGroups as error:
        return str(error)
    except subprocess.SubprocessError:
        return "control groups can be made here, but no process may move into one"
    except OSError as error:
        return f"no control group can be made here ({error.strerror}: {error.filename})"
    return None


@functools.cache
def find() -> Place:
    """Where this process may make groups. Raises NoGroups."""
    own, mounts = _own_groups(), _mounts()
    if all(name in mounts and name in own for name in CONTROLLERS):
        return Place(1, tuple(_below(mounts[name], own[name]) for name in CONTROLLERS))
    if "" not in mounts or "" not in own:
        raise NoGroups("no control groups are mounted here")
    (_, top), folder = mounts[""], _below(mounts[""], own[""])
    for candidate in (folder, *folder.parents):
        if _hands_down(candidate) and os.access(candidate, os.W_OK) and os.access(candidate / "cgroup.procs", os.W_OK):
            return Place(2, (candidate,))
        if candidate == top:
            break
    return Place(2, (_take_over(folder),))


def _take_over(folder: Path) -> Path:
    """Hand the controllers down to groups below our own, as its owner may: its processes move into a group below it."""
    if not set(CONTROLLERS) <= _words(folder / "cgroup.controllers") or not os.access(folder, os.W_OK):
        raise NoGroups("this process may not make control groups")
    try:
        inside = folder / f"{_PREFIX}grader"
        inside.mkdir(exist_ok=True)
        for _ in range(100):
            if not (members := (folder / "cgroup.procs").read_text().split()):
                break
            for pid in members:
                with suppress(ProcessLookupError):
                    (inside / "cgroup.procs").write_text(pid)
        (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS))
    except OSError as error:
        raise NoGroups(f"the controllers of {folder} cannot be handed down ({error.strerror})") from None
    return folder


def _sweep(place: Place) -> None:
    """Remove the groups of runs that were killed."""
    for folder in place.folders:
        for left in folder.glob(f"{_PREFIX}*-*"):
            pid, _, rest = left.name.removeprefix(_PREFIX).partition("-")
            if pid.isdecimal() and not _is_running(int(pid), rest.partition("-")[0]):
                _removed(left)  # refused where processes live in it: their run is one that we cannot see


def _name(what: object) -> str:
    """A group's name: which process made it, when that was started, and what for."""
    return f"{_PREFIX}{os.getpid()}-{_started(os.getpid())}-{what}"


def _is_running(pid: int, started: str) -> bool:
    """Whether a process lives, and is not a later one of the same number: in a container every run may be number 1."""
    return psutil.pid_exists(pid) and _started(pid) in (None, started)


def _started(pid: int) -> str | None:
    """When a process was started, in clock ticks since the machine was; None where its entry cannot be read."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return None


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _kill(folder: Path) -> None:
    with suppress(OSError):
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def _own_groups() -> dict[str, str]:
    """The group of this process by controller; under "" that of version 2."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in (_PROC / "cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            found |= dict.fromkeys(names.split(","), path)
    return found


def _mounts() -> dict[str, tuple[str, Path]]:
    """For each controller of version 1, and under "" for version 2: the group at the mount's root, and the mount."""
    found: dict[str, tuple[str, Path]] = {}
    with suppress(OSError):
        for line in (_PROC / "mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            root, target = left.split()[3:5]
            kind, _, options = right.split()[:3]
            if kind == "cgroup2":
                found[""] = (root, Path(target))
            elif kind == "cgroup":
                found |= dict.fromkeys(options.split(","), (root, Path(target)))
    return found


def _below(mount: tuple[str, Path], path: str) -> Path:
    root, target = mount
    return target / path.removeprefix(root).lstrip("/")


def _hands_down(folder: Path) -> bool:
    return set(CONTROLLERS) <= _words(folder / "cgroup.subtree_control")


def _words(file: Path) -> set[str]:
    with suppress(OSError):
        return set(file.read_text().split())
    return set()


def _pairs(file: Path) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in file.read_text().splitlines())
