"""Versions of a model in a folder, one of which is active.

    versions/<name>/files/…           a copy of what was published
    versions/<name>/manifest.json     sizes and hashes
    history.json                      every activation and rollback; the active version follows from it
    lock                              held while any of this is changed

Nothing is ever half there: a version is copied under another name, flushed to the disk and then renamed. Processes may
share the folder.
"""

import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from threeloops.files import replace_text, sync
from threeloops.product.service.models.version import RegistryError, Version, read_version, write_manifest

__all__ = ["Registry"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_UNFINISHED = ".tmp"


@dataclass(frozen=True)
class _Event:
    """`what` is "activate" or "rollback", after which `version` was the active one."""

    what: str
    version: str
    at: float  # seconds since 1970


class Registry:
    """Whatever it returns is whole: each byte of a version was compared with its manifest."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        self._versions, self._history = self.folder / "versions", self.folder / "history.json"
        self._versions.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """Of all versions, whether whole or not, in alphabetical order."""
        return sorted(path.name for path in self._versions.iterdir() if _NAME.fullmatch(path.name))

    def version(self, name: str) -> Version:
        """Raises RegistryError if there is no such version, or only half of it."""
        _check(name)
        return read_version(self._versions / name)

    def publish(self, name: str, folder: Path) -> Version:
        """Copy a folder of files as a new version, which is not active yet. Links are followed.

        The same files again are the same version. Raises RegistryError for a name that is taken by other files.
        """
        _check(name)
        source = Path(folder)
        if not source.is_dir():
            raise RegistryError(f"{source}: expected the folder of a model")
        with self._unfinished(name) as place:
            try:
                shutil.copytree(source, place / "files")
                digest = write_manifest(place, time.time())
            except (OSError, RegistryError) as error:
                raise RegistryError(f"{source}: cannot be published: {error}") from None
            _flush(place)
            with self._locked():
                self._put(place, name, digest)
        return self.version(name)

    def activate(self, name: str) -> Version:
        """Make it the current version. Raises RegistryError, and the current one stays, if it is not whole."""
        version = self.version(name)
        with self._locked():
            events = self._events()
            if _active(events)[-1:] != [name]:
                self._write([*events, _Event("activate", name, time.time())])
        return version

    def rollback(self) -> Version:
        """Make the version that was active before the current one the current one.

        A second rollback goes one further back, not forth again. Raises RegistryError if there is none before.
        """
        with self._locked():
            events = self._events()
            active = _active(events)
            if len(active) < 2:
                raise RegistryError("no version was active before: there is nothing to roll back to")
            version = self.version(active[-2])
            self._write([*events, _Event("rollback", version.name, time.time())])
        return version

    def current(self) -> Version:
        """Raises RegistryError if none is active, or if it is damaged."""
        active = _active(self._events())
        if not active:
            names = ", ".join(self.names()) or "none has been published"
            raise RegistryError(f"no version is active: activate one ({names})")
        return self.version(active[-1])

    def history(self) -> list[dict[str, str | float]]:
        """What was made active, the oldest first: {"what": "activate" or "rollback", "version", "at"}."""
        return [asdict(event) for event in self._events()]

    def _put(self, place: Path, name: str, digest: str) -> None:
        """Rename to the version's name. What is damaged there makes way; what is whole stays, and must be the same."""
        target = self._versions / name
        if target.exists():
            try:
                there = read_version(target)
            except RegistryError:
                target.rename(self._versions / f".{name}.{secrets.token_hex(4)}{_UNFINISHED}")
            else:
                if there.digest != digest:
                    raise RegistryError(f"version {name!r} is there already, with other files: use another name")
                return
        place.rename(target)
        sync(self._versions)

    def _events(self) -> list[_Event]:
        try:
            return [_Event(**event) for event in json.loads(self._history.read_text())]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError) as error:
            raise RegistryError(
                f"{self._history} cannot be read ({error}): restore it, or remove it and activate a version"
            ) from None

    def _write(self, events: list[_Event]) -> None:
        try:
            replace_text(self._history, json.dumps([asdict(event) for event in events], indent=1) + "\n")
        except OSError as error:
            raise RegistryError(f"{self._history} cannot be written: {error}") from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _unfinished(self, name: str) -> Iterator[Path]:
        """A folder to fill and to rename; what publishers left that were killed is removed first.

        Each holds a lock on its own folder, which ends with its process, whereas a process id may be reused.
        """
        with self._locked():
            for path in self._versions.glob(f".*{_UNFINISHED}"):
                with suppress(OSError), _folder_locked(path):
                    shutil.rmtree(path)
            place = self._versions / f".{name}.{secrets.token_hex(4)}{_UNFINISHED}"
            place.mkdir()
            lock = _folder_locked(place)
            lock.__enter__()
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)
            lock.__exit__(None, None, None)


def _active(events: list[_Event]) -> list[str]:
    """The versions that a rollback walks back along, the current one last."""
    active: list[str] = []
    for event in events:
        if event.what != "rollback":
            active.append(event.version)
        elif active:
            active.pop()
    return active


def _check(name: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RegistryError(f"version {name!r}: expected up to 64 letters, digits, dots, hyphens or underscores")


@contextmanager
def _folder_locked(path: Path) -> Iterator[None]:
    """Raises BlockingIOError if somebody else has locked it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _flush(place: Path) -> None:
    """Everything below to the disk: a rename that survives a power cut must not outlive the contents."""
    for path in place.rglob("*"):
        sync(path)
    sync(place)
