"""The warm process on the student's side: everything heavy imported once, one confined fork for each submission.

Started inside bubblewrap (or, where the user chose `--sandbox none`, as a plain process) as
`python -m grader.sandbox.host FD MODE`. For each request it forks a *monitor*, which forks the submission's own process
into new namespaces, watches its memory and process count, and ends all of it when the grader hangs up.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import threeloops.lab  # noqa: F401  (warm: every lab's setup cell imports it)
import torch

from grader.link import Link
from grader.sandbox import confine
from grader.sandbox.warmth import REPLAY, compare_once, import_all, import_pyplot, record_once, warm_while_idle
from grader.wall.student import Output, Server, install_main_twin, make_shell

_POLL_SECONDS = 0.05
_REAP_SECONDS = 0.002
_WAIT_SECONDS = 5
_CHANNEL_FD = 200
_MAX_FD = 4096


def main(fd: int, mode: str, modules: list[str]) -> None:
    """Fork one monitor for each request that arrives on the control socket, until its other end is closed.

    `modules` are what this lab's setup cells import.
    """
    control = socket.socket(fileno=fd)
    torch.set_num_threads(1)
    import_all(modules)  # never a module that the lab withholds, and never CUDA
    if REPLAY in modules:
        record_once()
    later = [import_pyplot, compare_once]
    install_main_twin()
    shell = make_shell()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control.send(b"R")
    while True:
        message, fds, *_ = socket.recv_fds(control, 65536, 2)
        if not message:
            return
        if os.fork():
            for number in fds:
                os.close(number)
            warm_while_idle(control, later)
            continue
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _monitor(socket.socket(fileno=fds[0]), socket.socket(fileno=fds[1]), json.loads(message), mode, shell)


def _monitor(channel: socket.socket, life: socket.socket, config: dict[str, Any], mode: str, shell: Any) -> NoReturn:
    """Start the submission's process, then watch it until it ends or the grader closes `life`."""
    os.setsid()
    confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)
    confine.prctl(confine.PR_SET_CHILD_SUBREAPER, 1)
    home = tempfile.mkdtemp(prefix="threeloops-") if mode == "none" else None
    if mode != "none":
        confine.unshare(confine.NEW_PID)
    pid = os.fork()
    if pid == 0:
        _submission(channel, config, home, shell)
    channel.close()
    life.send(b"U")
    ended = os.pidfd_open(pid)
    while True:
        ready, _, _ = select.select([life.fileno(), ended], [], [], _POLL_SECONDS)
        if ended in ready or (life.fileno() in ready and not life.recv(1)):
            break
        if reason := _over_limit(config):
            with suppress(OSError):
                life.send(reason.encode())
            break
    _end_all(pid)
    if home:
        shutil.rmtree(home, ignore_errors=True)
    os._exit(0)


def _wait_for_monitors() -> None:
    """Let them end their submissions: they die with this process. Not longer than a while: one may still be in use."""
    signal.alarm(_WAIT_SECONDS)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _submission(channel: socket.socket, config: dict[str, Any], home: str | None, shell: Any) -> NoReturn:
    confine.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()  # a signal to its own process group must not reach the monitor
    os.dup2(channel.fileno(), _CHANNEL_FD, inheritable=False)
    os.closerange(3, _CHANNEL_FD)
    os.closerange(_CHANNEL_FD + 1, _MAX_FD)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    printed = os.memfd_create("output", os.MFD_CLOEXEC)
    if home is None:
        confine.confine(config)
    else:
        confine.limit(config)
        os.environ["HOME"] = os.environ["TMPDIR"] = home
        os.symlink(config["data"], f"{home}/data")
        os.chdir(home)
    np.random.seed(0)
    torch.manual_seed(0)
    output = Output(printed, config["output_kb"] << 10)
    Server(Link(socket.socket(fileno=_CHANNEL_FD)), shell, output).serve()
    os._exit(0)


def _over_limit(config: dict[str, Any]) -> str | None:
    """Why the submission must end now, or None. Looks at every process below this monitor."""
    pids = _descendants()
    if len(pids) > config["processes"]:
        return f"it started more than {config['processes']} processes"
    limit = config["memory_mb"] << 20
    if sum(map(_resident, pids)) > limit and sum(map(_proportional, pids)) > limit:
        return f"it used more than {config['memory_mb']} MiB of memory"
    return None


def _descendants() -> list[int]:
    """Processes below this one; orphans count, because the monitor is their reaper."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError, ValueError):
                stat = Path(f"/proc/{name}/stat").read_text()
                children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(name))
    found, queue = [], [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _resident(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _proportional(pid: int) -> int:
    """Resident bytes with shared pages split among their users: forks share the libraries they started with."""
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return _resident(pid)


def _end_all(pid: int) -> None:
    """Kill the submission and whatever it left: with namespaces the first kill ends them all."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    while left := _descendants():
        for child in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_REAP_SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
    _wait_for_monitors()
    os._exit(0)  # nothing is left to do, and the interpreter would take seconds to take torch apart
