"""A description of the machine that made a measurement, which does not reveal whose machine it is."""

import getpass
import hashlib
import json
import platform
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from threeloops.hardware.capability import Machine
from threeloops.hardware.inventory import read_cpu

from threeloops_grader.authoring.labs import course_root
from threeloops_grader.machine.child_process import CODE
from threeloops_grader.machine.installed import requirements

__all__ = ["Device", "Provenance", "anonymous", "provenance", "sha256_of"]

Device = Literal["cpu", "cuda"]

_SOURCES = ("lib", "grader", "solutions", "benchmarks")
"""The folders whose text determines the measurements."""

_RESULTS = ("benchmarks/evidence", "benchmarks/README.md", "benchmarks/GPU.md")
"""Files that measuring writes into those folders. They must not count as a change of the sources."""
_BUILD_PRODUCTS = {".pyc", ".ipynb", ".tmp"}


@dataclass(frozen=True)
class Provenance:
    """The device on which a number was measured, and the software that measured it.

    `commit` is None outside of a git checkout; `modified` says whether the sources differ from that commit.
    """

    device: Device
    name: str
    memory_bytes: int
    cores: int
    compute_capability: str | None
    driver: str | None
    versions: dict[str, str | None]
    commit: str | None
    modified: bool | None
    sources_sha256: str
    recorded: str

    @property
    def verified_on(self) -> str:
        return "cpu" if self.device == "cpu" else f"cuda:{self.name}"

    @property
    def key(self) -> str:
        """All that a measurement depends on, as one line: results of two calls belong together if it is the same."""
        return json.dumps({**asdict(self), "recorded": None}, sort_keys=True)

    @property
    def slug(self) -> str:
        """The device as a folder's name: `nvidia-h100-80gb-hbm3`, `cpu-amd-epyc-7763-2-cores`."""
        name = self.name if self.device == "cuda" else f"cpu {self.name} {self.cores} cores"
        return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((R|TM)\)", "", name, flags=re.I).lower()).strip("-")


def provenance(machine: Machine, device: Device, gpu: int | None = None) -> Provenance:
    """Describe `device` of `machine`; for "cuda", `gpu` is the index in `machine.gpus`."""
    used = machine.gpus[gpu] if device == "cuda" and gpu is not None else None
    versions = {"python": platform.python_version(), **{r.name: r.installed for r in requirements()}}
    commit, modified = _commit(course_root())
    return Provenance(
        device=device,
        name=used.name if used else read_cpu()[0]["name"],
        memory_bytes=used.memory_bytes if used else machine.memory_bytes,
        cores=machine.cores,
        compute_capability=f"{used.capability[0]}.{used.capability[1]}" if used else None,
        driver=machine.driver,
        versions=versions,
        commit=commit,
        modified=modified,
        sources_sha256=_sources_sha256(),
        recorded=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _sources_sha256() -> str:
    """Return one hash over the names and contents of every source file. It is the same on every machine that has the
    same text."""
    named = {}
    for folder in _SOURCES:
        base = course_root() if folder == "solutions" else CODE
        for path in (base / folder).rglob("*"):
            name = path.relative_to(base)
            is_source = not any(map(name.is_relative_to, _RESULTS)) and path.suffix not in _BUILD_PRODUCTS
            if is_source and path.is_file() and not any(part.startswith((".", "__pycache__")) for part in name.parts):
                named[name.as_posix()] = path
    return sha256_of(sorted(named.items()))


def sha256_of(named: Iterable[tuple[str, Path]], *texts: str) -> str:
    """Return one hash over the names, sizes and contents of files, and over `texts`."""
    digest = hashlib.sha256()
    for name, path in named:
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    for text in texts:
        digest.update(text.encode())
    return digest.hexdigest()


def _commit(root: Path) -> tuple[str | None, bool | None]:
    """Return the commit that is checked out and whether the sources differ from it; (None, None) without git or a
    checkout."""

    def git(*arguments: str) -> str:
        argv = ["git", "-C", str(root), *arguments]
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True).stdout.strip()

    with suppress(OSError, subprocess.SubprocessError):
        if (root / ".git").exists():  # or else git would find a repository above the course
            changed = git("status", "--porcelain", "--", *_SOURCES, *(f":!{name}" for name in _RESULTS))
            return git("rev-parse", "HEAD"), bool(changed)
    return None, None


def anonymous(value: Any) -> Any:
    """Return a JSON value whose strings name neither this machine's host, user and paths nor the serial numbers of
    GPUs."""
    if isinstance(value, dict):
        return {anonymous(key): anonymous(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [anonymous(item) for item in value]
    if isinstance(value, str):
        for text, word in _private():
            value = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", word, value)
        return re.sub(r"GPU-[0-9a-f]{8}(-[0-9a-f]+)*", "<gpu>", value)
    return value


def _private() -> list[tuple[str, str]]:
    """Return the strings that tell where this runs, the longest first, and the replacement of each."""
    folders = {
        str(course_root()): "<course>",
        str(CODE): "<course>",
        sys.prefix: "<python>",
        sys.base_prefix: "<python>",
        tempfile.gettempdir(): "<tmp>",
        str(Path.home()): "<home>",
    }
    private = [(text, word) for text, word in folders.items() if len(text) > 1]
    host = socket.gethostname()
    private += [(name, "<host>") for name in (host, host.partition(".")[0]) if name]
    with suppress(Exception):  # without a password entry and $USER there is no name to hide
        user = getpass.getuser()
        private += [(f"/home/{user}", "<home>"), (f"{user}@", "<user>@")]
    return sorted(private, key=lambda pair: -len(pair[0]))
