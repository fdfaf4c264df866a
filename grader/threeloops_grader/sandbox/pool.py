"""The warm processes behind every graded submission, started once per lab and sandbox and shared by all threads."""

import atexit
import json
import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from threeloops_grader.authoring.labs import Lab, LabLimits
from threeloops_grader.authoring.manifest import Kind, manifest
from threeloops_grader.authoring.names import imported_modules, optimizes, replays
from threeloops_grader.machine.child_process import environment
from threeloops_grader.machine.faults import NO_MEMORY, MachineFault
from threeloops_grader.sandbox import bwrap, cgroup
from threeloops_grader.sandbox.bwrap import SandboxError
from threeloops_grader.sandbox.confine import ENDED_BY_ITSELF, UIDS
from threeloops_grader.sandbox.stage import stage
from threeloops_grader.sandbox.warmup import COMPILER, REPLAY
from threeloops_grader.transport.link import FrameLink

__all__ = ["Connection", "Pool", "Sandbox", "choose", "close_pools", "pool"]

Sandbox = Literal["bwrap", "none"]

_START_SECONDS = 300.0
"""A limit against a process that hangs. A busy machine may need minutes, and a crash is noticed at once."""
_END_SECONDS = 2.0


@dataclass(frozen=True)
class Connection:
    """The two live processes of one submission. `grader` answers cells. Closing `life` ends the student's side.

    `group` limits the student's side. It is None if no control group can be made here.
    """

    grader: FrameLink
    life: socket.socket
    group: cgroup.Group | None

    def close(self) -> None:
        """Hang up, wait until the monitor has ended every process of the submission, and remove its group."""
        with suppress(OSError):  # the monitor is gone already, or too slow to wait for
            self.life.shutdown(socket.SHUT_WR)
            self.life.settimeout(_END_SECONDS)
            while self.life.recv(256):
                pass
        self.life.close()
        self.grader.close()
        if self.group is not None:
            self.group.end()

    def reason(self) -> str | None:
        """Return why the kernel or the monitor ended the submission: "" if neither did, None if the monitor is dead.

        Raises MachineFault if the machine had no memory left, because the kernel ends submissions first, even if
        another process used it up.
        """
        if self.group is not None and (exceeded := self.group.exceeded()):
            return exceeded
        if self.group is not None and self.group.is_victim():
            raise MachineFault(f"a submission was ended because this machine is out of memory: {NO_MEMORY}")
        self.life.settimeout(0.5)
        try:
            word = self.life.recv(256).decode()
        except OSError:
            return ""
        return word.removesuffix(ENDED_BY_ITSELF) if word else None


class Pool:
    """The two warm processes of one lab: the student's side, sandboxed, and the grader's half."""

    def __init__(self, lab: Lab, sandbox: Sandbox, *, withhold: bool = True) -> None:
        self.lab = lab
        self.sandbox = sandbox
        self._withholds = lab.withholds if withhold else []
        self._modules = _modules_of(lab)
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="threeloops-"))
        self.folder.chmod(0o755)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._controls: list[socket.socket] = []
        try:
            self._start_student(stage(self.folder / "lab", self._withholds, self.lab.data))
            self._start("grader_process", self._modules, environment({**bwrap.GRADED, "TMPDIR": str(self.folder)}))
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def _start_student(self, stage_folder: Path) -> None:
        self._data = f"{bwrap.LAB}/data" if self.sandbox == "bwrap" else str(stage_folder / "data")
        modules = [self.sandbox, *_without_withheld(self._modules, self._withholds)]
        site = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
        variables = bwrap.environment(str(self.folder), str(self.folder), str(stage_folder), site)
        self._start("student_process", modules, variables, stage_folder if self.sandbox == "bwrap" else None)

    def _start(self, name: str, words: list[str], variables: dict[str, str], confined_to: Path | None = None) -> None:
        """Start `threeloops_grader.processes.NAME FD WORDS`, where FD is its end of a new control socket."""
        ours, theirs = socket.socketpair()
        arguments = ["-m", f"threeloops_grader.processes.{name}", str(theirs.fileno()), *words]
        argv = bwrap.command(confined_to, arguments) if confined_to else [sys.executable, *arguments]
        with theirs, (self.folder / f"log{len(self._processes)}").open("wb") as log:
            process = subprocess.Popen(
                argv,
                pass_fds=[theirs.fileno()],
                env={} if confined_to else variables,  # bubblewrap sets the variables itself
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal must not interrupt a test, which would cost points
            )
        self._controls.append(ours)
        self._processes.append(process)

    def _wait_until_ready(self) -> None:
        """Wait until both processes are ready. Raises SandboxError as soon as one of them ends, or if one hangs."""
        waiting = dict(zip(self._controls, ("student's", "grader's"), strict=True))
        deadline = time.monotonic() + _START_SECONDS
        while waiting:
            ready, _, _ = select.select(waiting, [], [], max(0.0, deadline - time.monotonic()))
            for control in ready or waiting:
                if control not in ready or control.recv(1) != b"R":
                    logs = [p.read_text(errors="replace").strip() for p in sorted(self.folder.glob("log*"))]
                    last = " / ".join(t.splitlines()[-1] for t in logs if t) or "it printed nothing"
                    name = waiting[control]
                    raise SandboxError(f"the {name} side did not start: {last}. `threeloops doctor` looks closer.")
            for control in ready:
                del waiting[control]

    def connect(self, limits: LabLimits, jobs: int = 1) -> Connection:
        """Fork a fresh pair of processes for one of `jobs` simultaneous submissions.

        Without a sandbox a submission can end the warm process from which it was forked. Then both are started again.
        Raises SandboxError if that fails, too.
        """
        try:
            return self._connect(limits, jobs)
        except SandboxError:
            with self._lock:
                if all(process.poll() is None for process in self._processes):
                    raise
                self.close()
                self._begin()
            return self._connect(limits, jobs)

    def _connect(self, limits: LabLimits, jobs: int) -> Connection:
        try:
            group = cgroup.make(limits, jobs)
            entries = group.entries() if group else []
        except OSError as error:
            raise SandboxError(f"no control group could be made for a submission ({error})") from None
        engine, engine_end = socket.socketpair()
        channel, channel_end = socket.socketpair()
        calls, calls_end = socket.socketpair()
        life, life_end = socket.socketpair()
        meter, meter_end = socket.socketpair()
        config = {**asdict(limits), "data": self._data}
        if self.sandbox == "bwrap" and bwrap.needs_user_switch():
            config["uid"] = secrets.choice(UIDS)
        half = {"folder": str(self.lab.folder.absolute()), "memory_mb": limits.memory_mb}
        try:
            with engine_end, channel, channel_end, calls, calls_end, life_end, meter, meter_end, self._lock:
                inside = [*(end.fileno() for end in (channel_end, calls_end, life_end, meter_end)), *entries]
                to_student, to_grader = self._controls
                socket.send_fds(to_student, [json.dumps(config).encode()], inside)
                its = [end.fileno() for end in (engine_end, channel, calls, meter)]
                socket.send_fds(to_grader, [json.dumps(half).encode()], its)
            life.settimeout(_START_SECONDS)
            forked = life.recv(1) == b"U"
        except OSError:
            forked = False
        for entry in entries:
            os.close(entry)
        if not forked:
            Connection(FrameLink(engine), life, group).close()
            raise SandboxError("the sandbox could not fork a submission: the machine may be out of memory or processes")
        return Connection(FrameLink(engine), life, group)

    def close(self) -> None:
        """End both warm processes and everything below them. May be called twice."""
        for control in self._controls:
            control.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


def _modules_of(lab: Lab) -> list[str]:
    """Return the modules that the lab's setup cells import, torch if any cell imports it, REPLAY if tests replay
    kernels, and COMPILER if some cell makes an optimizer."""
    trusted = manifest(lab)
    modules: set[str] = set()
    for cell in trusted.master.cells:
        with suppress(SyntaxError):  # reported by `threeloops release`
            imported = imported_modules(cell.source)
            if trusted.kinds[cell.id] is Kind.SETUP:
                modules |= imported
            elif trusted.kinds[cell.id] is Kind.TEST and replays(cell.source):
                modules.add(REPLAY)
            if optimizes(cell.source):
                modules.add(COMPILER)
            if any(module.partition(".")[0] == "torch" for module in imported):
                modules.add("torch")
    return sorted(modules)


def _without_withheld(modules: Sequence[str], withheld: Sequence[str]) -> list[str]:
    return [m for m in modules if not any(m == w or m.startswith(f"{w}.") for w in withheld)]


_pools: dict[tuple[object, ...], Pool] = {}
_pools_lock = threading.Lock()


def pool(lab: Lab, sandbox: Sandbox, *, withhold: bool = True) -> Pool:
    """Return the pool of this process for one version of a lab. It is started at the first call, and closed at exit."""
    key = (lab, lab.source.stat().st_mtime_ns, sandbox, withhold)
    with _pools_lock:
        if key not in _pools:
            _pools[key] = Pool(lab, sandbox, withhold=withhold)
        return _pools[key]


@atexit.register
def close_pools() -> None:
    """End every warm process that this process started."""
    with _pools_lock:
        for item in _pools.values():
            item.close()
        _pools.clear()


def choose(wanted: str) -> Sandbox:
    """Return the sandbox to use for "auto", "bwrap" or "none". Auto never falls back to none: no sandbox must be a
    choice.

    Raises SandboxError if bubblewrap does not work and "none" was not asked for.
    """
    if wanted == "none":
        return "none"
    if reason := bwrap.why_not():
        raise SandboxError(
            f"{reason}. Submissions are other people's code: install it, or say --sandbox none to run them unconfined."
        )
    return "bwrap"
