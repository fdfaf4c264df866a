"""The warm process on the student's side: it imports heavy modules once, and forks one confined child per submission.

It is started inside bubblewrap (or as a plain process, if the user chose `--sandbox none`) as
`python -m threeloops_grader.processes.student_process FD MODE`. For each request it forks a *monitor*. The monitor
forks the submission's own process into new namespaces, watches its memory and its number of processes, and ends all of
it when the grader hangs up.
"""

import gc
import json
import os
import secrets
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil
import threeloops.lab  # noqa: F401  (warm: every lab's setup cell imports it)
from threeloops.forking import prepare_to_fork

from threeloops_grader.processes.rank_processes import RankProcesses
from threeloops_grader.sandbox import confine
from threeloops_grader.sandbox.confine import UIDS
from threeloops_grader.sandbox.warmup import (
    RANKS,
    REPLAY,
    IdleSteps,
    compare_once,
    import_all,
    import_for_ranks,
    import_pyplot,
    record_once,
)
from threeloops_grader.transport.link import FrameLink, LinkDead
from threeloops_grader.transport.tensors import torch_if_imported
from threeloops_grader.wall.student import Output, Server, make_shell
from threeloops_grader.witness.calls import Calls
from threeloops_grader.witness.folders import pass_folder

__all__ = []

_POLL_SECONDS = 0.05
_REAP_SECONDS = 0.002
_WAIT_SECONDS = 5
_FIRST_FD = 200
_MAX_FD = 4096
_MAX_FDS = 8
_MAX_SOCKETS = 1024
_OTHER_PROCESSES = 4
"""Processes of a submission that are not ranks: its monitor and the student's process, with their threads."""
_LEAST_PROCESSES = 3
"""Processes or threads that a rank can have, even if there are too many ranks for the submission's limit."""


def _main(fd: int, mode: str, modules: list[str]) -> None:
    """Fork one monitor for each request that arrives on the control socket, until its other end is closed.

    `modules` are the imports of this lab's setup cells.
    """
    control = socket.socket(fileno=fd)
    import_all(modules)  # never a module that the lab withholds, and never CUDA
    if torch := torch_if_imported():
        torch.set_num_threads(1)
    if REPLAY in modules:
        record_once()
    shell = make_shell()
    if RANKS in modules:
        import_for_ranks(modules)
        gc.freeze()  # a garbage collection would write to the pages of each rank, and they count as its memory
    later = IdleSteps(import_pyplot, compare_once, prepare_to_fork)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control.send(b"R")
    while True:
        message, fds, *_ = socket.recv_fds(control, 65536, _MAX_FDS)
        if not message:
            return
        if os.fork():
            for number in fds:
                os.close(number)
            later.after_fork(control)
            continue
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        (channel, calls, life, meter), entries = (socket.socket(fileno=fd) for fd in fds[:4]), fds[4:]
        _monitor((channel, calls), life, meter, entries, json.loads(message), mode, shell)


def _monitor(
    channels: tuple[socket.socket, socket.socket],
    life: socket.socket,
    meter: socket.socket,
    entries: list[int],
    config: dict[str, Any],
    mode: str,
    shell: Any,
) -> NoReturn:
    """Start the submission's process, then watch it until it ends or the grader closes `life`.

    `channels` lead to the grader's side: one for its requests, one for calls by the submission's threads. `entries`
    lead into the submission's control group. Without a control group, the monitor polls, and enforces the limits
    itself. Through `meter`, the grader starts and measures the ranks of programs, and reads the submission's memory.
    """
    os.setsid()
    confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)
    confine.prctl(confine.PR_SET_CHILD_SUBREAPER, 1)
    home = tempfile.mkdtemp(prefix="threeloops-") if mode == "none" else None
    np.random.seed(0)
    if torch := torch_if_imported():
        torch.manual_seed(0)
    if mode != "none":
        confine.unshare(confine.NEW_PID)
    pid = os.fork()
    if pid == 0:
        _submission(channels, entries, config, home, shell)
    for channel in channels:
        channel.close()
    life.send(b"U")
    ended = os.pidfd_open(pid)
    link = FrameLink(meter)
    ranks = RankProcesses(link, partial(_rank, entries, config, home), namespaces=mode != "none")
    waiting = [life.fileno(), ended, meter.fileno()]
    while True:
        ready, _, _ = select.select(waiting, [], [], None if entries else _POLL_SECONDS)
        if meter.fileno() in ready and not _answer(link, pid, ranks):
            waiting.remove(meter.fileno())
        if ended in ready or (life.fileno() in ready and not life.recv(1)):
            with suppress(OSError):
                life.send(confine.ENDED_BY_ITSELF.encode())
            break
        if not entries and (reason := _over_limit(config, [pid, *ranks.processes] if mode != "none" else [])):
            with suppress(OSError):
                life.send(reason.encode())
            break
    _end_all(pid)
    if home:
        shutil.rmtree(home, ignore_errors=True)
    os._exit(0)


def _answer(link: FrameLink, submission: int, ranks: RankProcesses) -> bool:
    """Answer one question of the grader's side. Return False if there will be no more."""
    try:
        question, buffers = link.receive()
        if question["op"] == "read":
            link.send(*_read(submission, question["address"], question["size"]))
        else:
            link.send(ranks.answer(question, buffers))
    except LinkDead:
        return False
    return True


def _read(process: int, address: int, size: int) -> tuple[dict[str, Any], list[bytes]]:
    """Read the bytes at an address. Return no buffer if nothing is there."""
    try:
        memory = open(f"/proc/{process}/mem", "rb", 0)  # noqa: SIM115 (errors of each step mean different things)
    except PermissionError as error:
        # A process that hides its memory (PR_SET_DUMPABLE) belongs to root in /proc: then this is not the machine's
        # fault, and it has no bytes to show.
        is_hidden = os.stat(f"/proc/{process}/mem").st_uid != os.geteuid()
        return {} if is_hidden else {"refused": str(error)}, []
    except OSError:
        return {}, []
    with memory, suppress(OSError, ValueError):
        memory.seek(address)
        return {}, [memory.read(size)]
    return {}, []


def _wait_for_monitors() -> None:
    """Let monitors, which die with this process, end their submissions first; not for long: one may still be in use."""
    signal.alarm(_WAIT_SECONDS)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _submission(
    channels: tuple[socket.socket, socket.socket],
    entries: list[int],
    config: dict[str, Any],
    home: str | None,
    shell: Any,
) -> NoReturn:
    printed = os.memfd_create("output", os.MFD_CLOEXEC)  # in the sandbox the kernel refuses to make one
    given = [channel.fileno() for channel in channels]
    channel, calls, printed = _enter([*given, printed], entries, config, home)
    output = Output(printed, config["output_kb"] << 10)
    socket_of_calls = socket.socket(fileno=calls)
    pass_folder(socket_of_calls, home or "/tmp")
    Server(FrameLink(socket.socket(fileno=channel)), Calls(socket_of_calls), shell, output).serve()
    os._exit(0)


def _rank(entries: list[int], config: dict[str, Any], home: str | None, given: Sequence[int], ranks: int) -> list[int]:
    """Let this fork of the monitor be a rank of the submission, whose only way to other processes is `given`."""
    if "uid" in config:  # a user of its own, because the kernel counts some things per user
        config = {**config, "uid": secrets.choice(UIDS)}
    if home is None:
        share = max(_LEAST_PROCESSES, (config["processes"] - _OTHER_PROCESSES) // ranks)
        config = {**config, "processes": share}
    return _enter(given, entries, config, home, is_rank=True)


def _enter(
    given: Sequence[int], entries: list[int], config: dict[str, Any], home: str | None, *, is_rank: bool = False
) -> list[int]:
    """Confine this fork of the monitor, and close all descriptors except `given`. Return their new numbers."""
    confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)
    for entry in entries:
        os.write(entry, b"0")  # the process that writes joins the group
    os.setsid()  # a signal to its own process group must not reach the monitor
    numbers = list(range(_FIRST_FD, _FIRST_FD + len(given)))
    for descriptor, number in zip(given, numbers, strict=True):
        os.dup2(descriptor, number, inheritable=False)
    os.closerange(3, _FIRST_FD)
    os.closerange(numbers[-1] + 1, _MAX_FD)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if home is None:
        confine.confine(config, grouped=bool(entries), is_rank=is_rank)
        confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)  # becoming another user has cleared it
    else:
        confine.limit(config, grouped=bool(entries))
        os.environ["HOME"] = os.environ["TMPDIR"] = home
        if not is_rank:
            os.symlink(config["data"], f"{home}/data")
        os.chdir(home)
    return numbers


def _over_limit(config: dict[str, Any], namespaces: Sequence[int]) -> str | None:
    """Return why the submission must end now, or None. It checks the limits of a control group from outside, at
    intervals.

    `namespaces` names a process in each of its network namespaces.
    """
    processes = psutil.Process().children(recursive=True)  # orphans count, because this process is their reaper
    if len(processes) > config["processes"]:
        return f"it started more than {config['processes']} processes"
    limit = config["memory_mb"] << 20
    if sum(map(_resident, processes)) > limit and sum(map(_proportional, processes)) > limit:
        return f"it used more than {config['memory_mb']} MiB of memory"
    if sum(map(_sockets, namespaces)) > _MAX_SOCKETS:
        return f"it held more than {_MAX_SOCKETS:,} sockets"
    return None


def _resident(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return process.memory_info().rss
    return 0


def _proportional(process: psutil.Process) -> int:
    """Count resident bytes with shared pages split among their users, because forks share the libraries they started
    with."""
    with suppress(psutil.Error):
        return process.memory_full_info().pss
    return _resident(process)


def _sockets(pid: int) -> int:
    """Count the sockets of a network namespace, also those that no process holds any longer. Each can hold unread
    data."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/net/sockstat").read_text().split()[2])
    return 0


def _end_all(pid: int) -> None:
    """Kill the submission and all processes that it left. With namespaces the first kill ends them all."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with suppress(psutil.Error):
                child.kill()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_REAP_SECONDS)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
    _wait_for_monitors()
    os._exit(0)  # skips the seconds that the interpreter takes to tear down torch
