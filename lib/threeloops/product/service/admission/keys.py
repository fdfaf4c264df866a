"""API keys in a TOML file, which holds their hashes and never a key.

    [[keys]]
    name = "alice"
    sha256 = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
    admin = false                       # may she switch models? If left out: no
    limits = { requests_per_second = 5, request_burst = 10, tokens_per_second = 2000, concurrent = 8 }

Passwords are hashed slowly because people choose bad ones. A key is 32 random bytes, which nobody can guess from a fast
hash. A slow hash would let anybody keep the service busy with wrong keys.
"""

import hashlib
import hmac
import logging
import os
import re
import secrets
from dataclasses import fields
from pathlib import Path
from typing import Any

from threeloops.files import read_toml
from threeloops.product.service.admission.client import Client, ClientLimits
from threeloops.product.service.admission.refused import Refused

__all__ = ["Keys", "KeysFileError"]

_ENTRY = ("name", "sha256", "admin", "limits")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LONGEST = 512  # characters of a header that are looked at: ours have 50
_Signature = tuple[int, int, int]
_log = logging.getLogger(__name__)


class KeysFileError(ValueError):
    """A file of keys that cannot be read: the place, the value, and what was expected. No hash is quoted."""


class Keys:
    """The clients of a file, read again when it has changed.

    If the changed file is bad or gone, the clients stay as they were, `problem` says why, and it is logged once: a
    typing error must not lock everybody out.
    """

    def __init__(self, path: Path | None, clients: list[tuple[bytes, Client]]):
        self.problem: str | None = None
        self._path = path
        self._clients = clients
        self._seen = _signature(path) if path else None

    def __repr__(self) -> str:
        return f"Keys({str(self._path)!r}, {len(self._clients)} clients)" if self._path else "Keys.open()"

    @classmethod
    def load(cls, path: Path) -> "Keys":
        """Read a file of keys. Raises KeysFileError if it cannot be read."""
        path = Path(path)
        keys = cls(path, [])
        keys._clients = _read(path)
        return keys

    @classmethod
    def open(cls) -> "Keys":
        """No keys: everybody is the client "anonymous", who has no limits and is not an admin. For local use."""
        return cls(None, [])

    @staticmethod
    def new(name: str) -> tuple[str, str]:
        """A new key, to be shown once, and the entry for the file. Raises ValueError if the name is not plain."""
        _check_name(name)
        key = f"tl-{secrets.token_urlsafe(32)}"
        return key, f'[[keys]]\nname = "{name}"\nsha256 = "{_digest(key).hex()}"\n'

    def client(self, authorization: str | None) -> Client:
        """Return the client whose key is in `authorization`, the header's text "Bearer KEY". Raises Refused (401)."""
        if self._path is None:
            return Client("anonymous")
        self._reload(self._path)
        scheme, _, key = (authorization or "")[:_LONGEST].partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Refused(
                401,
                "invalid_api_key",
                "no API key: expected the header `Authorization: Bearer KEY`; ask whoever runs this service for a key",
            )
        owner = None
        digest = _digest(key.strip())
        # All of them, so that the time says nothing about which one was close.
        for stored_digest, client in self._clients:
            if hmac.compare_digest(stored_digest, digest):
                owner = client
        if owner is None:
            raise Refused(401, "invalid_api_key", "this API key is not known here: check it, or ask for a new one")
        return owner

    def _reload(self, path: Path) -> None:
        if (now := _signature(path)) == self._seen:
            return
        self._seen = now
        try:
            self._clients, self.problem = _read(path), None
            _log.info("keys were read again", extra={"clients": len(self._clients)})
        except KeysFileError as error:
            self.problem = str(error)
            _log.error("keys were not read again: %s; those read before stay", error)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


def _signature(path: Path) -> _Signature | None:
    """Return a signature that changes when the file is written or replaced, or None if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"name = {name!r}: expected up to 64 letters, digits, dots, hyphens or underscores")


def _read(path: Path) -> list[tuple[bytes, Client]]:
    text, document = read_toml(path, "the file of API keys", KeysFileError)
    entries = document.get("keys")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries) or not entries:
        raise KeysFileError(f"{path}, line 1: expected at least one table [[keys]]; `Keys.new(name)` makes an entry")
    clients: dict[str, tuple[bytes, Client]] = {}
    for number, entry in enumerate(entries):
        field = "name"
        try:
            for field in entry:
                if field not in _ENTRY:
                    raise ValueError(f"no field {field!r}: expected {', '.join(_ENTRY)}")
            field = "name"
            _check_name(name := entry.get("name"))
            if name in clients:
                raise ValueError(f"name = {name!r}: another entry has it")
            field = "sha256"
            digest = _hash_of(entry.get("sha256"))
            if digest in (other for other, _ in clients.values()):
                raise ValueError("sha256: another entry has the same key")
            field = "admin"
            if not isinstance(admin := entry.get("admin", False), bool):
                raise ValueError(f"admin = {admin!r}: expected true or false")
            field = "limits"
            clients[name] = digest, Client(name, _limits(entry.get("limits", {})), admin)
        except ValueError as error:
            raise KeysFileError(f"{path}, line {_line_of(text, number, field)}, keys[{number}]: {error}") from None
    return list(clients.values())


def _hash_of(text: Any) -> bytes:
    """The value is not quoted: it may be a key that was put here by mistake."""
    if not isinstance(text, str) or not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        size = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        raise ValueError(f"sha256: expected the 64 hexadecimal digits of the key's hash, got {size}")
    return bytes.fromhex(text)


def _limits(table: Any) -> ClientLimits:
    names = [field.name for field in fields(ClientLimits)]
    if not isinstance(table, dict):
        raise ValueError(f"limits = {table!r}: expected a table with {', '.join(names)}")
    if unknown := table.keys() - set(names):
        raise ValueError(f"limits has no field {min(unknown)!r}: expected {', '.join(names)}")
    return ClientLimits(**table)


def _line_of(text: str, number: int, field: str) -> int:
    """Return the line of an entry's field, or of the entry, or 1 if the entry is not written as [[keys]]."""
    entry = -1
    start = 1
    for line, content in enumerate(text.splitlines(), 1):
        if re.match(r"\s*\[\[\s*keys\s*\]\]", content):
            entry += 1
            start = line if entry == number else start
        elif entry == number and re.match(rf"\s*(\[\s*keys\s*\.\s*)?[\"']?{re.escape(field)}\b", content):
            return line
    return start
