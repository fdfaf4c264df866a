"""System calls that no answer needs: they reach memory that the monitor cannot count, or corners of the kernel.

A process's memory is counted by what it has mapped. Three kinds outlive their mapping and are refused: anonymous files
(memfd), System V segments and shared anonymous mappings; files in the sandbox's own tmpfs have a size limit instead.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_X86_64, _AARCH64 = "x86_64", "aarch64"
_AUDIT = {_X86_64: 0xC000003E, _AARCH64: 0xC00000B7}
_COLUMNS = (_X86_64, _AARCH64)
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
"""What a process that only interprets an admitted kernel has no use for, and one that was taken over would."""

_MMAP, _OPENAT = (9, 222), (257, 56)
_MAP_SHARED_ANONYMOUS = 0x21
_OPEN_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_X32_CALLS = 0x40000000

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
_CALL, _ARCHITECTURE, _THIRD_ARGUMENT, _FOURTH_ARGUMENT = 0, 4, 32, 40  # offsets in struct seccomp_data

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand."""


def program(machine: str, *, kernels_only: bool = False) -> list[Instruction]:
    """The filter for one architecture. Raises KeyError for one whose system call numbers are not known here.

    `kernels_only`: for a process that interprets admitted kernels: no programs, sockets, signals, files to write.
    """
    audit, column = _AUDIT[machine], _COLUMNS.index(machine)
    refused = [*_REFUSED.values(), *(_REFUSED_TO_KERNELS.values() if kernels_only else ())]
    numbers = sorted(number for row in refused if (number := row[column]) is not None)
    # From the end: [allow] [refuse] [kill]; every jump is counted forward to one of them.
    body: list[tuple[int, str, str, int]] = [(_EQUAL, "next", "kill", audit), (_LOAD, "", "", _CALL)]
    if machine == _X86_64:
        body.append((_AT_LEAST, "refuse", "next", _X32_CALLS))
    body += [(_EQUAL, "refuse", "next", number) for number in numbers]
    if kernels_only:
        body += [
            (_EQUAL, "next", "other", _OPENAT[column]),
            (_LOAD, "", "", _THIRD_ARGUMENT),
            (_AND, "", "", _OPEN_TO_WRITE),
            (_EQUAL, "allow", "refuse", 0),
        ]
    other = len(body)
    body += [
        (_EQUAL, "next", "allow", _MMAP[column]),
        (_LOAD, "", "", _FOURTH_ARGUMENT),
        (_AND, "", "", _MAP_SHARED_ANONYMOUS),
        (_EQUAL, "refuse", "allow", _MAP_SHARED_ANONYMOUS),
    ]
    allow = len(body)
    ends = {"": None, "next": None, "other": other, "allow": allow, "refuse": allow + 1, "kill": allow + 2}

    def jump(where: str, at: int) -> int:
        target = ends[where]
        return 0 if target is None else target - at - 1

    code = [(_LOAD, 0, 0, _ARCHITECTURE)]
    code += [(op, jump(yes, i), jump(no, i), k) for i, (op, yes, no, k) in enumerate(body)]
    return [*code, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _KILL)]


def install(*, kernels_only: bool = False) -> None:
    """Apply the filter to this process and all it starts; needs no_new_privs. Without effect on other architectures.

    Raises:
        OSError: the kernel refuses the filter.
    """
    machine = os.uname().machine
    if machine not in _COLUMNS:
        return
    code = b"".join(struct.pack("<HBBI", *instruction) for instruction in program(machine, kernels_only=kernels_only))
    buffer = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), header, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")
