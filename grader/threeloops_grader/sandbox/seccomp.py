"""A filter that refuses system calls that no answer needs: they allocate memory that is charged to no process, or
attack the kernel.

Without control groups, a process's memory is counted by its mappings. Three kinds of memory outlive their mapping and
are refused: anonymous files (memfd), System V segments and shared anonymous mappings. Files in the sandbox's tmpfs have
a size limit instead, and socket buffers keep their default size.
"""

import ctypes
import errno
import os
import socket
import struct

__all__ = ["install"]

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The kernel's number of each architecture; the tables below have their system call numbers in the same order."""
_REFUSED = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "unshare": (272, 97),
    "setns": (308, 268),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
}
_REFUSED_TO_KERNELS = {
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    "clone": (56, 220),
    "clone3": (435, 435),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "open": (2, None),
    "creat": (85, None),
    "openat2": (437, 437),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rmdir": (84, None),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "truncate": (76, 45),
    "ftruncate": (77, 46),
}
"""System calls that a process which only interprets an admitted kernel never needs, but a hijacked one would use."""

_REFUSED_TO_RANKS = {
    "flock": (73, 32),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "preadv2": (327, 286),
    "mincore": (27, 232),
    "cachestat": (451, 451),
    "futex_wake": (454, 454),
    "futex_requeue": (456, 456),
    "sysinfo": (99, 179),
    "syslog": (103, 116),
    "fadvise64": (221, 223),
    "move_pages": (279, 239),
    "mbind": (237, 235),
    "migrate_pages": (256, 238),
    "pipe": (22, None),
    "pipe2": (293, 59),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "pidfd_open": (434, 434),
    "io_setup": (206, 0),
}
"""System calls that would tell one rank what another does with a file that both can only read, such as a file of the
library, or with the memory and the log of the machine. Pipes, sockets and descriptors of processes are numbered for the
whole machine, so their numbers tell how many of them another rank has made. Asynchronous reads have one limit for
all processes, so a refusal would tell how many others have asked for."""

_MMAP = (9, 222)
_OPENAT = (257, 56)
_SOCKET = (41, 198)
_SOCKETPAIR = (53, 199)
_SETSOCKOPT = (54, 208)
_FCNTL = (72, 25)
_FUTEX = (202, 98)
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_CLONE_PIDFD = 0x1000
_SIGNS = (*range(5, 8), *range(36, 39), 1024, 1025, 1026, *range(1035, 1039))
"""Commands of fcntl that set or read locks (of processes and of open files), leases, watches of folders, and how long a
file's data will live."""
_FUTEX_PRIVATE = 128
_WAIT = (0, 9)
"""Operations of futex that only wait. All others also tell whether somebody waits. An operation without the flag for
private ones reaches the processes that have mapped the same file. Threads use private ones, except to wait for the end
of another thread. So waiting stays allowed."""
_MAP_SHARED_ANONYMOUS = 0x21
_MAP_HUGETLB = 0x40000
"""Takes pages from a store that all processes of the machine share, if it has one."""
_OPEN_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""Families that a network namespace confines. AF_VSOCK, for example, would reach the machine that hosts this one."""
_X32_CALLS = 0x40000000

_LOAD = 0x20
_AND = 0x54
_EQUAL = 0x15
_AT_LEAST = 0x35
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_REFUSE = 0x00050000 | errno.EPERM
_UNKNOWN = 0x00050000 | errno.ENOSYS
_PRETEND = 0x00050000
_CALL = 0
_ARCHITECTURE = 4
_ARGUMENTS = (16, 24, 32, 40)  # offsets in struct seccomp_data

_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2

_Instruction = tuple[int, int, int, int]
"""Operation, jump if true, jump if false, operand."""
_Step = tuple[int, str, str, int]
"""An instruction with named jumps: "next", "skip" (to the next block), or the name of a result, such as "refuse"."""


def _program(machine: str, *, kernels_only: bool = False, is_rank: bool = False) -> list[_Instruction]:
    """Return the filter for one architecture. Raises KeyError for one whose system call numbers are not known here.

    `kernels_only` is for a process that interprets admitted kernels: no programs, sockets, signals or written files.
    `is_rank` is for a process that must not communicate with its like: none of `_REFUSED_TO_RANKS`, no locks or watches
    of files, no wake-ups across processes, no descriptors of new processes, and no huge pages.
    """
    audit = _AUDIT[machine]
    column = list(_AUDIT).index(machine)
    refused = [*_REFUSED.values(), *(_REFUSED_TO_KERNELS.values() if kernels_only else ())]
    refused += _REFUSED_TO_RANKS.values() if is_rank else ()
    numbers = sorted(number for row in refused if (number := row[column]) is not None)
    first: list[_Step] = [(_EQUAL, "next", "kill", audit), (_LOAD, "", "", _CALL)]
    if machine == "x86_64":
        first.append((_AT_LEAST, "refuse", "next", _X32_CALLS))
    blocks = [[*first, *((_EQUAL, "refuse", "next", number) for number in numbers)]]
    if kernels_only:
        blocks.append(_block(_OPENAT[column], _load(2), (_AND, "", "", _OPEN_TO_WRITE), (_EQUAL, "allow", "refuse", 0)))
    if is_rank:
        signs: list[_Step] = [(_EQUAL, "refuse", "next", command) for command in _SIGNS[:-1]]
        blocks.append(_block(_FCNTL[column], _load(1), *signs, (_EQUAL, "refuse", "allow", _SIGNS[-1])))
        private: list[_Step] = [(_AND, "", "", _FUTEX_PRIVATE), (_EQUAL, "allow", "next", _FUTEX_PRIVATE)]
        waits: list[_Step] = [(_EQUAL, "allow", "next", _WAIT[0]), (_EQUAL, "allow", "refuse", _WAIT[1])]
        blocks.append(_block(_FUTEX[column], _load(1), *private, _load(1), (_AND, "", "", 0x7F), *waits))
        # The flags of clone3 are in memory, where a filter cannot read them. If clone3 is unknown, the C library makes
        # threads by clone, which takes its flags as a number.
        blocks.append([(_EQUAL, "unknown", "skip", _CLONE3[column])])
        flag: list[_Step] = [(_AND, "", "", _CLONE_PIDFD), (_EQUAL, "refuse", "allow", _CLONE_PIDFD)]
        blocks.append(_block(_CLONE[column], _load(0), *flag))
    huge: list[_Step] = [_load(3), (_AND, "", "", _MAP_HUGETLB), (_EQUAL, "refuse", "next", _MAP_HUGETLB)]
    shared: list[_Step] = [_load(3), (_AND, "", "", _MAP_SHARED_ANONYMOUS)]
    shared.append((_EQUAL, "refuse", "allow", _MAP_SHARED_ANONYMOUS))
    blocks.append(_block(_MMAP[column], *(huge if is_rank else ()), *shared))
    families: list[_Step] = [(_EQUAL, "allow", "next", family) for family in _FAMILIES[:-1]]
    blocks.append(_block(_SOCKET[column], _load(0), *families, (_EQUAL, "allow", "refuse", _FAMILIES[-1])))
    blocks.append(_block(_SOCKETPAIR[column], _load(0), (_EQUAL, "allow", "refuse", socket.AF_UNIX)))
    # Pretend to enlarge a buffer: honest code works without it, and nobody gets megabytes per socket.
    sizes: list[_Step] = [(_EQUAL, "pretend", "next", socket.SO_SNDBUF), (_EQUAL, "pretend", "allow", socket.SO_RCVBUF)]
    level = (_EQUAL, "next", "allow", socket.SOL_SOCKET)
    blocks.append(_block(_SETSOCKOPT[column], _load(1), level, _load(2), *sizes))
    return _assembled(blocks)


def _load(argument: int) -> _Step:
    return (_LOAD, "", "", _ARGUMENTS[argument])


def _block(call: int, *steps: _Step) -> list[_Step]:
    """Build the steps for one system call. Any other call skips them, and its number stays loaded."""
    return [(_EQUAL, "next", "skip", call), *steps]


def _assembled(blocks: list[list[_Step]]) -> list[_Instruction]:
    """Return the blocks with their jumps as numbers, which count forward from the instruction after the jump."""
    total = sum(map(len, blocks))
    ends = {"allow": total, "refuse": total + 1, "pretend": total + 2, "kill": total + 3, "unknown": total + 4}
    code: list[_Instruction] = [(_LOAD, 0, 0, _ARCHITECTURE)]
    start = 0
    for steps in blocks:
        targets = {**ends, "skip": start + len(steps)}
        for at, (operation, yes, no, operand) in enumerate(steps, start):
            jumps = (targets.get(where, at + 1) - at - 1 for where in (yes, no))
            code.append((operation, *jumps, int(operand)))  # type: ignore[arg-type]
        start += len(steps)
    return [*code, *((_RETURN, 0, 0, result) for result in (_ALLOW, _REFUSE, _PRETEND, _KILL, _UNKNOWN))]


def install(*, kernels_only: bool = False, is_rank: bool = False) -> None:
    """Apply the filter to this process and all processes that it starts. It needs no_new_privs, and has no effect on
    other architectures.

    Raises OSError if the kernel refuses the filter.
    """
    machine = os.uname().machine
    if machine not in _AUDIT:
        return
    program = _program(machine, kernels_only=kernels_only, is_rank=is_rank)
    code = b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), header, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")
