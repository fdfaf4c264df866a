"""Confine one forked child: private mounts, only its own loopback network, resource limits, no privileges.

It runs inside bubblewrap, as the first process of a new pid namespace, with the capabilities that its parent still has.
When `confine` returns they are gone for good. It uses only the standard library, because this file is staged into the
sandbox.
"""

import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from threeloops_grader.sandbox import seccomp

__all__ = [
    "ENDED_BY_ITSELF", "HOME", "NEW_PID", "PR_SET_CHILD_SUBREAPER", "PR_SET_NO_NEW_PRIVS", "PR_SET_PDEATHSIG",
    "UIDS", "confine", "enter", "go_on_alone", "has_little_room", "limit", "limit_memory", "prctl", "unshare",
]  # fmt: skip

_libc = ctypes.CDLL(None, use_errno=True)

HOME = "/home/student"

ENDED_BY_ITSELF = "."
"""The monitor's message if it had to end nothing. If it is gone without a message, the machine has ended it."""

UIDS = range(1 << 30, 1 << 31)
"""User numbers that no machine uses. Each submission gets one, because the kernel counts processes per user."""

_NEW_USER = 0x10000000
NEW_PID = 0x20000000
_NEW_MOUNTS = 0x20000
_NEW_HOST_NAME = 0x4000000
_NEW_IPC = 0x8000000
_NEW_NETWORK = 0x40000000

PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
_MS_RDONLY = 1
_MS_NOSUID = 2
_MS_NODEV = 4
_MS_NOEXEC = 8
_MS_REMOUNT = 32
_MS_BIND = 4096
_MS_REC = 0x4000
_MS_PRIVATE = 1 << 18
_MNT_DETACH = 2
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_IFF_RUNNING = 0x40
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63

_MAX_FILE_BYTES = 64 << 20
_ROOM = 128 << 20
"""Bytes that ordinary cells need at most. Imports alone can take tens of MiB."""
_MAX_OPEN_FILES = 256
_MAX_SIGNALS = 64
_MAX_BUFFER_BYTES = 128 << 10


def prctl(option: int, value: int = 0) -> int:
    return _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def unshare(flags: int) -> None:
    """Enter new namespaces. Raises OSError if the kernel refuses."""
    if _libc.unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")


def enter(namespace: int, kind: int) -> None:
    """Enter the namespace of this kind that a descriptor names. Raises OSError if the kernel refuses."""
    if _libc.setns(namespace, kind):
        raise OSError(ctypes.get_errno(), "setns")


def _mount(source: str, target: str, kind: str, flags: int, data: str | None = None) -> None:
    texts = source.encode(), target.encode(), kind.encode()
    if _libc.mount(*texts, ctypes.c_ulong(flags), data.encode() if data else None):
        raise OSError(ctypes.get_errno(), f"mount {target}")


def confine(config: dict[str, Any], *, grouped: bool, is_rank: bool = False) -> None:
    """Confine this process, the first one of a new pid namespace; `grouped` as in `limit`.

    A rank must not communicate with the other ranks of its submission. Their namespaces are apart, but they share the
    machine and the files of the system. So a rank gets no locks, no terminals and no statistics of the machine. In
    /proc it sees only its own `maps` and `fd`: `smaps`, for example, tells which pages of a file others have mapped.

    It enters the other namespaces here, after the fork: the monitor must keep its own /proc, or it would count and kill
    by process numbers that mean other processes there.
    """
    unshare(_NEW_MOUNTS | _NEW_HOST_NAME | _NEW_IPC | _NEW_NETWORK)
    _mount("none", "/", "none", _MS_REC | _MS_PRIVATE)
    options = f"size={config['disk_mb']}m,mode=1777,nr_inodes=20000"
    for target in (HOME, "/tmp", "/dev/shm"):
        _mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, options)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    if is_rank:
        _mount("tmpfs", "/dev/pts", "tmpfs", _MS_RDONLY)
    _start_loopback()
    _bound_socket_buffers()
    writable = _writable_proc()
    read_only = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _mount("none", "/proc", "none", _MS_REMOUNT | _MS_BIND | read_only)
    if is_rank:
        _hide_proc(read_only)
    os.symlink(config["data"], f"{HOME}/data")
    os.chdir(HOME)
    _drop_privileges(config.get("uid"), writable, is_rank)
    os.close(writable)
    # Last: the kernel counts processes per user namespace, and only the innermost one belongs to this submission alone.
    limit(config, grouped=grouped)
    if is_rank:  # limits of its own: from a common one, a rank could tell how much the others use
        _set_limit(resource.RLIMIT_NPROC, config["processes"])
        _set_limit(resource.RLIMIT_SIGPENDING, _MAX_SIGNALS)
        _set_limit(resource.RLIMIT_MSGQUEUE, 0)


def go_on_alone(read_only: list[str]) -> None:
    """Go on in a fork that reaches no other process and no network, and that cannot write in the folders `read_only`.

    The calling process waits for the fork and ends with it, without returning. It needs no bubblewrap. Raises OSError
    if the kernel refuses the namespaces.
    """
    uid = os.geteuid()
    gid = os.getegid()
    wanted = NEW_PID | _NEW_MOUNTS | _NEW_IPC | _NEW_NETWORK
    try:
        unshare(wanted)
    except PermissionError:
        unshare(wanted | _NEW_USER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path("/proc/self", name).write_text(text)
    _mount("none", "/", "none", _MS_REC | _MS_PRIVATE)
    for folder in read_only:
        _mount(folder, folder, "none", _MS_BIND | _MS_REC)
        _mount("none", folder, "none", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    os.chdir(os.getcwd())  # or the process stays in the folder below the mount, where it may write
    _start_loopback()
    if child := os.fork():
        os.waitpid(child, 0)
        os._exit(0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _start_loopback() -> None:
    """Bring up the loopback interface of a new network."""
    with socket.socket() as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP | _IFF_RUNNING))


def limit(config: dict[str, Any], *, grouped: bool) -> None:
    """Limit every process of the submission; if `grouped`, its control group already limits memory and processes."""
    _set_limit(resource.RLIMIT_FSIZE, _MAX_FILE_BYTES)
    _set_limit(resource.RLIMIT_NOFILE, _MAX_OPEN_FILES)
    _set_limit(resource.RLIMIT_CORE, 0)
    if not grouped:
        limit_memory(config["memory_mb"])
        _set_limit(resource.RLIMIT_NPROC, config["processes"])


def limit_memory(megabytes: int) -> None:
    """Let this process map at most `megabytes` more than it has mapped now."""
    _set_limit(resource.RLIMIT_AS, _mapped() + (megabytes << 20))


def has_little_room() -> bool:
    """Return whether `limit_memory` leaves this process so little memory that ordinary code could fail. A control group
    has no such state: it ends the process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    try:
        return limit != resource.RLIM_INFINITY and limit - _mapped() < _ROOM
    except MemoryError:
        return True


def _mapped() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _set_limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _bound_socket_buffers() -> None:
    """Limit every TCP socket of this network namespace to `_MAX_BUFFER_BYTES` each way.

    Other sockets stay at the kernel's default, which the system call filter lets nobody raise.
    """
    for name in ("tcp_wmem", "tcp_rmem"):
        with suppress(OSError):  # old kernels have one value for all namespaces
            Path(f"/proc/sys/net/ipv4/{name}").write_text(f"4096 16384 {_MAX_BUFFER_BYTES}")


def _hide_proc(flags: int) -> None:
    """Cover /proc. A rank still sees the addresses of its memory, which `settle` needs, and its descriptors."""
    place = Path("/tmp/hidden")
    place.mkdir()
    _mount("tmpfs", str(place), "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    (place / "self" / "fd").mkdir(parents=True)
    (place / "self" / "maps").touch()
    for name in ("fd", "maps"):
        _mount(f"/proc/self/{name}", str(place / "self" / name), "none", _MS_BIND)
    _mount(str(place), "/proc", "none", _MS_BIND | _MS_REC)
    _mount("none", "/proc", "none", _MS_REMOUNT | _MS_BIND | flags)
    if _libc.umount2(str(place).encode(), _MNT_DETACH):
        raise OSError(ctypes.get_errno(), f"umount {place}")
    place.rmdir()


def _writable_proc() -> int:
    """Return a descriptor of a /proc that no path leads to. The one that the submission sees is read-only: writing
    there a process could make the kernel forget its largest memory (`clear_refs`)."""
    place = "/tmp/proc"
    os.mkdir(place)
    _mount("proc", place, "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    writable = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if _libc.umount2(place.encode(), _MNT_DETACH):
        raise OSError(ctypes.get_errno(), f"umount {place}")
    os.rmdir(place)
    return writable


def _drop_privileges(uid: int | None, writable_proc: int, is_rank: bool) -> None:
    """Give up every capability, and root if the harness runs as root, for this process and all processes that it
    starts."""
    _empty_bounding_set()
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        prctl(_PR_SET_DUMPABLE, 1)
    _forbid_user_namespaces(writable_proc)
    _empty_bounding_set()  # a new user namespace fills it again
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    if _libc.capset(ctypes.byref(header), ctypes.byref(none)):
        raise OSError(ctypes.get_errno(), "capset")
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    seccomp.install(is_rank=is_rank)


def _empty_bounding_set() -> None:
    for capability in range(_LAST_CAPABILITY + 1):
        prctl(_PR_CAPBSET_DROP, capability)


def _forbid_user_namespaces(writable_proc: int) -> None:
    """Enter a last user namespace and forbid any further one inside it.

    Where the kernel refuses this one, it refuses the submission's too, so nothing is left to forbid.
    """
    uid = os.geteuid()
    gid = os.getegid()
    try:
        unshare(_NEW_USER)
    except OSError:
        return
    for name, text in (
        ("self/setgroups", "deny"),
        ("self/uid_map", f"{uid} {uid} 1"),
        ("self/gid_map", f"{gid} {gid} 1"),
        ("sys/user/max_user_namespaces", "0"),
    ):
        file = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=writable_proc)
        os.write(file, text.encode())
        os.close(file)
