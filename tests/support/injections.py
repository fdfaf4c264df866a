"""Faults for workers that grade shares: a full disk, a slow rename, a node without a working bubblewrap.

The workers are real processes. A `sitecustomize` that only they load brings the faults and counts their executions.

A fault is switched on by a file in the folder of switches, which a test makes and removes while workers run.
"""

import contextlib
import os
import shutil
import signal
import stat
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

SITE = """
import os, sys
if "--shard" in sys.orig_argv and "THREELOOPS_SWITCHES" in os.environ:
    import errno, time
    from pathlib import Path
    sys.modules.setdefault("rfc3987_syntax", None)
    from threeloops_grader.worklist import grade_class, store
    switches = Path(os.environ["THREELOOPS_SWITCHES"])

    def note(line):
        descriptor = os.open(switches / "executions", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, f"{line} {os.getpid()} {time.time():.3f}\\n".encode())
        os.close(descriptor)

    link, record, keep, fill = os.link, grade_class._Grader._record, store.RecordStore.keep, store._fill

    def slow(*paths, **more):
        if (switches / "slow").exists():
            time.sleep(1)
        return link(*paths, **more)

    def full(path):
        if (switches / "full").exists():
            path.write_bytes(bytes(1000))
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return fill(path)

    def counted(self, submission, *more):
        note("begun " + submission.student)
        while (switches / "hold").exists():
            time.sleep(0.05)
        result = record(self, submission, *more)
        note("ended " + submission.student)
        return result

    def accepted(self, key, record, **more):
        counts = keep(self, key, record, **more)
        note(("accepted " if counts is record else "thrown ") + key.student)
        return counts

    os.link, grade_class._Grader._record, store.RecordStore.keep, store._fill = slow, counted, accepted, full
"""

BWRAP = """#!/bin/sh
case ",{unfit}," in
*",${{SLURMD_NODENAME:-none}},"*) echo "bwrap: No permissions to create new namespace" >&2; exit 1;;
esac
exec {bwrap} "$@"
"""


@dataclass
class Faults:
    """The switches, and the environment of workers that obey them. On the nodes `unfit` bubblewrap fails."""

    folder: Path
    unfit: str = ""

    def environment(self) -> dict[str, str]:
        for name in ("switches", "site", "bin"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "site" / "sitecustomize.py").write_text(SITE)
        wrapper = self.folder / "bin" / "bwrap"
        wrapper.write_text(BWRAP.format(unfit=self.unfit, bwrap=shutil.which("bwrap")))
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        path = os.pathsep.join([str(self.folder / "site"), os.environ.get("PYTHONPATH", "")])
        return {
            "THREELOOPS_SWITCHES": str(self.folder / "switches"),
            "PYTHONPATH": path,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
        }

    def switch(self, name: str, on: bool) -> None:
        path = self.folder / "switches" / name
        path.touch() if on else path.unlink(missing_ok=True)

    def executions(self) -> Counter[str]:
        """How many executions were begun and ended, and how many results were accepted or thrown away."""
        path = self.folder / "switches" / "executions"
        return Counter(line.split()[0] for line in (path.read_text().splitlines() if path.is_file() else []))

    def cut_off(self) -> Counter[str]:
        """The number of executions of each process that were begun and not ended."""
        begun: Counter[str] = Counter()
        for line in (self.folder / "switches" / "executions").read_text().splitlines():
            what, _, process, _ = line.split()
            begun[process] += {"begun": 1, "ended": -1}.get(what, 0)
        return +begun


def workers_of(records: Path) -> list[int]:
    """Processes that grade a share into this folder, and no others."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if entry.name.isdecimal() and "--shard" in words and str(records) in words:
                found.append(int(entry.name))
    return found


def kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
