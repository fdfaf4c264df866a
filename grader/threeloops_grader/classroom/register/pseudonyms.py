"""Pseudonyms for anonymous marking: one per student and lab, which only the class's key can turn back.

A pseudonym is a keyed hash (HMAC-SHA-256) of the lab and the student's id. So it stays the same for a lab, differs
between labs, and says nothing about the id or the order of the roster. The key is `class/pseudonyms.key`.
"""

import base64
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from threeloops_grader.authoring.labs import LabError
from threeloops_grader.classroom.register.settings import class_folder
from threeloops_grader.submissions.folder import spelling

__all__ = ["key_path", "pseudonym", "require_key", "whose"]

_KEY_BYTES = 32
_HASH_BYTES = 5
"""Base32 turns them into eight characters. Two students of a lab of 1,000 get the same with probability 5e-7."""


def key_path(root: Path | None = None) -> Path:
    return class_folder(root) / "pseudonyms.key"


def require_key(root: Path | None = None) -> bytes:
    """Return the class's key, which is made if there is none. Only its owner may read it. Raises LabError if the file
    is damaged."""
    path = key_path(root)
    if not path.exists():
        _make(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(0o600)
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise LabError(
            f"{path} has {len(key)} bytes, expected {_KEY_BYTES}: it is damaged. Restore it from a backup; if you "
            "delete it, everybody gets another pseudonym"
        )
    return key


def _make(path: Path) -> None:
    """Write a new key whole, and never in place of another one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was first
            os.link(half, path)
    finally:
        half.unlink(missing_ok=True)


def pseudonym(key: bytes, lab: str, student: str) -> str:
    """Return a student's pseudonym for a lab, such as `K7QF-M2XD`."""
    digest = hmac.digest(key, f"{lab}\0{spelling(student)}".encode(errors="surrogateescape"), hashlib.sha256)
    text = base64.b32encode(digest[:_HASH_BYTES]).decode()
    return f"{text[:4]}-{text[4:]}"


def whose(key: bytes, name: str, labs: Iterable[str], students: Iterable[str]) -> list[tuple[str, str]]:
    """Return the lab and the student of a pseudonym; more than one only if two happen to have the same."""
    wanted = name.strip().upper().replace("-", "").replace("0", "O").replace("1", "I")
    everybody = list(students)
    return [
        (lab, student)
        for lab in labs
        for student in everybody
        if pseudonym(key, lab, student).replace("-", "") == wanted
    ]
