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
_MMAP = (9, 222)
_MAP_SHARED_ANONYMOUS = 0x21
_X32_CALLS = 0x40000000

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
_CALL, _ARCHITECTURE, _FOURTH_ARGUMENT = 0, 4, 40  # offsets in struct seccomp_data

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand."""


def program(machine: str) -> list[Instruction]:
    """The filter for one architecture. Raises KeyError for one whose system call numbers are not known here."""
    audit, column = _AUDIT[machine], _COLUMNS.index(machine)
    numbers = sorted(numbers[column] for numbers in _REFUSED.values())
    # From the end: [allow] [refuse] [kill]; every jump is counted forward to one of them.
    body: list[tuple[int, str, str, int]] = [(_EQUAL, "next", "kill", audit), (_LOAD, "", "", _CALL)]
    if machine == _X86_64:
        body.append((_AT_LEAST, "refuse", "next", _X32_CALLS))
    body += [(_EQUAL, "refuse", "next", number) for number in numbers]
    body += [
        (_EQUAL, "next", "allow", _MMAP[column]),
        (_LOAD, "", "", _FOURTH_ARGUMENT),
        (_AND, "", "", _MAP_SHARED_ANONYMOUS),
        (_EQUAL, "refuse", "allow", _MAP_SHARED_ANONYMOUS),
    ]
    ends = {"": None, "next": None, "allow": len(body), "refuse": len(body) + 1, "kill": len(body) + 2}

    def jump(where: str, at: int) -> int:
        target = ends[where]
        return 0 if target is None else target - at - 1

    code = [(_LOAD, 0, 0, _ARCHITECTURE)]
    code += [(op, jump(yes, i), jump(no, i), k) for i, (op, yes, no, k) in enumerate(body)]
    return [*code, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _KILL)]


def install() -> None:
    """Apply the filter to this process and all it starts; needs no_new_privs. Without effect on other architectures.

    Raises:
        OSError: the kernel refuses the filter.
    """
    machine = os.uname().machine
    if machine not in _COLUMNS:
        return
    code = b"".join(struct.pack("<HBBI", *instruction) for instruction in program(machine))
    buffer = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), header, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")
