"""A control group for each submission, in which the kernel itself limits memory, processes and the share of the cores.

The kernel counts all memory that the processes of a group use together: pages, files in a tmpfs, socket buffers, page
tables. Version 2 has one tree for all three controllers, version 1 one tree per controller. `why_not` says why groups
cannot be made here, if they cannot. In that case `confine` limits each process, and the monitor checks the sums at
intervals.
"""

import fcntl
import functools
import os
import secrets
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from threeloops_grader.authoring.labs import LabLimits

__all__ = ["Group", "NoGroups", "make", "why_not"]

_CONTROLLERS = ("memory", "pids", "cpu")
_PROC = Path("/proc/self")
_PREFIX = "threeloops-"
_PERIOD_MICROSECONDS = 100_000
_END_SECONDS = 2.0
_deciding = threading.Lock()
_OPTIONAL = ("memory.swap.max", "memory.memsw.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes")
"""These files exist only in kernels that account for swap and, in version 1, for TCP."""


_HUGE_PAGE_MB = 2


class NoGroups(Exception):
    """Control groups cannot be made here; the message says why."""


@dataclass(frozen=True)
class _Place:
    """The place where groups can be made: one folder for all controllers (version 2), or one for each (version 1)."""

    version: int
    folders: tuple[Path, ...]


@dataclass(frozen=True)
class Group:
    """The control group of one submission. `locks` hold its folders for this run, so that no other one removes them."""

    version: int
    folders: tuple[Path, ...]
    memory_mb: int
    locks: list[int] = field(default_factory=list)

    def entries(self) -> list[int]:
        """Open descriptors; a process that writes "0" to each joins the group. The caller closes them."""
        return [os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in self.folders]

    def exceeded(self) -> str:
        """Return why the kernel ended processes of the group, if their own limit is the reason, or an empty string."""
        if self._was_killed() and self._met_its_limit():
            return f"it used more than {self.memory_mb} MiB of memory"
        return ""

    def is_victim(self) -> bool:
        """Return whether the kernel ended processes of the group because the whole machine had no memory left."""
        return self._was_killed() and not self._met_its_limit()

    def _was_killed(self) -> bool:
        """Return whether the kernel took memory back by ending a process, for any shortage."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return self._count(name, "oom_kill") > 0

    def _met_its_limit(self) -> bool:
        if self.version == 2:
            return self._count("memory.events", "oom") > 0
        # Version 1 does not always count a failure before it ends a process; a huge page more may have been asked for.
        return self._count("memory.max_usage_in_bytes") >= (self.memory_mb - _HUGE_PAGE_MB) << 20

    def _count(self, name: str, key: str = "") -> int:
        """Return a number that the kernel keeps for this group, or 0 if it keeps none."""
        with suppress(OSError, KeyError, ValueError):
            return int(_pairs(self.folders[0] / name)[key] if key else (self.folders[0] / name).read_text())
        return 0

    def end(self) -> None:
        """End every process of the group and remove it. A later run removes a group that cannot be removed in time."""
        deadline = time.monotonic() + _END_SECONDS
        for folder in self.folders:
            while folder.exists() and time.monotonic() < deadline:
                for pid in _words(folder / "cgroup.procs"):
                    with suppress(OSError):
                        os.kill(int(pid), signal.SIGKILL)
                with suppress(OSError):  # killed processes leave the group a moment later
                    folder.rmdir()
                    break
                time.sleep(0.002)
        while self.locks:
            os.close(self.locks.pop())


def make(limits: LabLimits, jobs: int) -> Group | None:
    """Make a new group that holds one of `jobs` simultaneous submissions to `limits` and to its share of the cores.

    Returns None if this process cannot make groups at all. Raises OSError if this one group is refused.
    """
    return _create(_find(), limits, jobs) if why_not() is None else None


def _create(place: _Place, limits: LabLimits, jobs: int) -> Group:
    name = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    group = Group(place.version, tuple(folder / name for folder in place.folders), limits.memory_mb)
    try:
        for folder in group.folders:
            group.locks.append(_make_locked(folder))
        for file, value in _settings(group.version, limits, jobs).items():
            files = [folder / file for folder in group.folders if (folder / file).exists()]
            if files:
                files[0].write_text(value)
            elif file not in _OPTIONAL:
                raise FileNotFoundError(2, f"this kernel's control groups have no {file}", str(group.folders[0]))
    except OSError:
        group.end()
        raise
    return group


def _make_locked(folder: Path) -> int:
    """Make a folder and lock it until the descriptor is closed. Another run may sweep it before it is locked."""
    while True:
        folder.mkdir()
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return lock
            os.close(lock)


def _settings(version: int, limits: LabLimits, jobs: int) -> dict[str, str]:
    """Return the files of a group and their contents, in the order of writing."""
    memory = str(limits.memory_mb << 20)
    processes = str(limits.processes)
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


def why_not() -> str | None:
    """Return why no group can be made here, in one sentence, or None if one can. Makes a group and moves a process into
    it."""
    with _deciding:  # two simultaneous trials would get in each other's way
        return _why_not()


@functools.cache
def _why_not() -> str | None:
    try:
        place = _find()
        _sweep(place)
        trial = _create(place, LabLimits(), 1)
        try:
            join = ["/bin/sh", "-c", 'for entry; do echo $$ > "$entry" || exit 1; done', "sh"]
            procs = [folder / "cgroup.procs" for folder in trial.folders]
            subprocess.run([*join, *procs], capture_output=True, timeout=10, check=True)
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
def _find() -> _Place:
    """Find the place where this process may make groups. Raises NoGroups."""
    own = _own_groups()
    if set(_CONTROLLERS) <= own.keys():
        return _Place(1, tuple(own[name][1] for name in _CONTROLLERS))
    if "" not in own:
        raise NoGroups("no control groups are mounted here")
    top, folder = own[""]
    for candidate in (folder, *folder.parents):
        delegates = set(_CONTROLLERS) <= _words(candidate / "cgroup.subtree_control")
        if delegates and os.access(candidate, os.W_OK) and os.access(candidate / "cgroup.procs", os.W_OK):
            return _Place(2, (candidate,))
        if candidate == top:
            break
    return _Place(2, (_take_over(folder),))


def _take_over(folder: Path) -> Path:
    """Delegate the controllers of our own group to groups below it. The kernel allows that only in a group without
    processes of its own, so they first move into a group below."""
    if not set(_CONTROLLERS) <= _words(folder / "cgroup.controllers") or not os.access(folder, os.W_OK):
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
        (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _CONTROLLERS))
    except OSError as error:
        raise NoGroups(f"the controllers of {folder} cannot be delegated ({error.strerror})") from None
    return folder


def _sweep(place: _Place) -> None:
    """Remove the groups of runs that were killed. The kernel unlocks a folder when the run that holds it ends; a number
    of a process would not tell, because a run in another container is not seen here, or has the same number."""
    for folder in place.folders:
        for group in folder.glob(f"{_PREFIX}*-*"):
            with suppress(OSError):  # the run lives, or processes that it has left in the group
                lock = os.open(group, os.O_RDONLY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    group.rmdir()
                finally:
                    os.close(lock)


def _own_groups() -> dict[str, tuple[Path, Path]]:
    """Return the mount of a tree and the group of this process in it, by controller. Those of version 2 are under
    ""."""
    groups: dict[str, tuple[Path, Path]] = {}
    with suppress(OSError):
        lines = [line.split(":", 2) for line in (_PROC / "cgroup").read_text().splitlines()]
        own = {name: path for _, names, path in lines for name in names.split(",")}
        for line in (_PROC / "mountinfo").read_text().splitlines():
            mount, _, right = line.partition(" - ")
            root, top = mount.split()[3:5]
            kind, _, options = right.split()[:3]
            names = {"cgroup": options.split(","), "cgroup2": [""]}.get(kind, [])
            for name in own.keys() & set(names):
                groups[name] = Path(top), Path(top) / own[name].removeprefix(root).lstrip("/")
    return groups


def _words(file: Path) -> set[str]:
    with suppress(OSError):
        return set(file.read_text().split())
    return set()


def _pairs(file: Path) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in file.read_text().splitlines())
