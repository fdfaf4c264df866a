"""Versions of a model in a folder, one of which is active.

    versions/<name>/files/…           a copy of what was published
    versions/<name>/manifest.json     sizes and hashes
    history.json                      every activation and rollback; the active version follows from it
    lock                              held while any of this is changed, by the process whose id it contains

No version is ever half there: it is copied under another name, flushed to the disk and then renamed. Several processes
may share the folder.
"""

import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import msgspec

from threeloops.files import replace_text, sync
from threeloops.places import below
from threeloops.product.service.models.version import RegistryError, Version, read_version, write_manifest

__all__ = ["Registry"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_COMMANDS = ("activate", "rollback")  # words of the service's addresses, where a version's name stands too
_UNFINISHED = ".tmp"
_LOCK_SECONDS = 10.0
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class _Event:
    """An event. `what` is "activate" or "rollback", and `version` was active after it."""

    what: Literal["activate", "rollback"]
    version: str
    at: float  # seconds since 1970


@contextmanager
def _reported() -> Iterator[None]:
    """A context that turns errors of the disk or of a damaged file into a RegistryError."""
    try:
        yield
    except RecursionError as error:
        raise RegistryError(f"the registry holds something that is nested too deeply ({error})") from None
    except OSError as error:
        first = error.args[0]
        if isinstance(error, shutil.Error) and isinstance(first, list) and first:  # of copytree: all that went wrong
            where, _, why = first[0]
        else:
            where = error.filename or "the registry"
            why = error.strerror or error
        raise RegistryError(f"{str(where)[:200]}: {str(why)[:200]}") from None


class Registry:
    """A registry of complete versions: it compares every byte of a version with its manifest before returning it.

    All methods raise RegistryError if the disk fails. A method that changes something waits for other writers for at
    most `lock_seconds`.
    """

    @_reported()
    def __init__(self, folder: Path, lock_seconds: float = _LOCK_SECONDS):
        self.folder = Path(folder)
        self._lock_seconds = lock_seconds
        self._versions = self.folder / "versions"
        self._history = self.folder / "history.json"
        self._versions.mkdir(parents=True, exist_ok=True)

    @_reported()
    def names(self) -> list[str]:
        """Return the names of all versions, complete or not, in alphabetical order."""
        return sorted(path.name for path in self._versions.iterdir() if _NAME.fullmatch(path.name))

    @_reported()
    def version(self, name: str) -> Version:
        """Return a version. Raises RegistryError if it does not exist or is incomplete."""
        _check(name)
        return read_version(self._versions / name)

    @_reported()
    def publish(self, name: str, folder: Path) -> Version:
        """Copy a folder of files as a new version, which is not active yet. Links are followed.

        The same files again are the same version. Raises RegistryError for a name that is taken by other files.
        """
        _check(name)
        if name in _COMMANDS:
            raise RegistryError(f"version {name!r} is a command of the service: use another name")
        source = Path(folder)
        if not source.is_dir():
            raise RegistryError(f"{str(source)[:200]!r}: expected the folder of a model")
        if self._versions.resolve().is_relative_to(source.resolve()):
            raise RegistryError(f"{source}: the registry lies in this folder: publish the folder of one model")
        with self._unfinished(name) as place:
            shutil.copytree(source, place / "files")
            try:
                digest = write_manifest(place, time.time())
            except RegistryError as error:
                raise RegistryError(f"{source}: cannot be published: {error}") from None
            _flush(place)
            with self._locked():
                self._put(place, name, digest)
        return self.version(name)

    @_reported()
    def activate(self, name: str) -> Version:
        """Make a version the current one. If it is incomplete, this raises RegistryError, and the current version
        stays."""
        version = self.version(name)
        with self._locked():
            events = self._events()
            if _active(events)[-1:] != [name]:
                self._write([*events, _Event("activate", name, time.time())])
        return version

    @_reported()
    def rollback(self) -> Version:
        """Make the version that was active before the current one the current one.

        A second rollback goes back one version further. It does not undo the first. Raises RegistryError if there is no
        earlier version.
        """
        with self._locked():
            events = self._events()
            active = _active(events)
            if len(active) < 2:
                raise RegistryError("no version was active before: there is nothing to roll back to")
            version = self.version(active[-2])
            self._write([*events, _Event("rollback", version.name, time.time())])
        return version

    @_reported()
    def current(self) -> Version:
        """Raises RegistryError if none is active, or if it is damaged."""
        active = _active(self._events())
        if not active:
            names = ", ".join(self.names()) or "none has been published"
            raise RegistryError(f"no version is active: activate one ({names})")
        return self.version(active[-1])

    @_reported()
    def history(self) -> list[dict[str, str | float]]:
        """Return the activations, oldest first: {"what": "activate" or "rollback", "version", "at"}."""
        return [asdict(event) for event in self._events()]

    def _put(self, place: Path, name: str, digest: str) -> None:
        """Rename to the version's name. A damaged version of this name is replaced. An intact one stays, and must be
        equal."""
        target = self._versions / name
        damaged = None
        if target.exists():
            try:
                there = read_version(target)
            except RegistryError:
                damaged = target.rename(self._versions / f".{name}.{secrets.token_hex(4)}{_UNFINISHED}")
            else:
                if there.digest != digest:
                    raise RegistryError(f"version {name!r} is there already, with other files: use another name")
                return
        try:
            place.rename(target)
        except OSError:
            if damaged is not None:
                damaged.rename(target)
            raise
        sync(self._versions)

    def _events(self) -> list[_Event]:
        try:
            return msgspec.json.decode(self._history.read_bytes(), type=list[_Event])
        except FileNotFoundError:
            return []
        except (ValueError, RecursionError) as error:  # also msgspec's
            raise RegistryError(
                f"{self._history} cannot be read ({error}): restore it, or remove it and activate a version"
            ) from None

    def _write(self, events: list[_Event]) -> None:
        replace_text(self._history, json.dumps([asdict(event) for event in events], indent=1) + "\n")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        path = self.folder / "lock"
        end = time.monotonic() + self._lock_seconds
        with path.open("a") as file:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if time.monotonic() > end:
                    holder = path.read_text(errors="replace")[:20].strip()
                    process = f"process {holder}" if holder.isdigit() else "another process"
                    raise RegistryError(
                        f"{path} is held by {process} for {self._lock_seconds:g} s or longer: try again when it has "
                        "ended what it does"
                    )
                time.sleep(_LOOK_SECONDS)
            with suppress(OSError):  # a courtesy: a full disk is no reason to stop here
                os.truncate(file.fileno(), 0)
                os.write(file.fileno(), str(os.getpid()).encode())
            yield

    @contextmanager
    def _unfinished(self, name: str) -> Iterator[Path]:
        """Yield a folder to fill and to rename. Remains of publishers that were killed are removed first.

        Each publisher holds a lock on its own folder, which ends with its process, whereas a process id may be reused.
        """
        place = self._versions / f".{name}.{secrets.token_hex(4)}{_UNFINISHED}"
        with ExitStack() as stack:
            with self._locked():
                for path in self._versions.glob(f".*{_UNFINISHED}"):
                    with suppress(OSError), _folder_locked(path):
                        shutil.rmtree(path)
                place.mkdir()
                stack.callback(shutil.rmtree, place, ignore_errors=True)
                stack.enter_context(_folder_locked(place))
            yield place


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
        raise RegistryError(
            f"version {str(name)[:100]!r}: expected up to 64 letters, digits, dots, hyphens or underscores"
        )


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
    for path in below(place):
        sync(path)
    sync(place)
