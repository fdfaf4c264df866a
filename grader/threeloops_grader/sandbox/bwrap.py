"""bubblewrap: the command line that confines the student's side, and whether it works on this machine."""

import functools
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

from threeloops_grader.machine.child_process import CODE, HARNESS
from threeloops_grader.machine.faults import MachineFault
from threeloops_grader.sandbox.confine import HOME

__all__ = ["GRADED", "LAB", "SandboxError", "command", "environment", "needs_user_switch", "why_not"]

LAB = "/lab"
_VENV = "/venv"

_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/sbin")
_ETC = ("ld.so.cache", "passwd", "group", "hosts", "nsswitch.conf", "localtime", "alternatives", "fonts", "ssl/certs")

GRADED = {
    "MPLBACKEND": "agg",
    "OMP_NUM_THREADS": "1",
    "TRITON_INTERPRET": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "THREELOOPS_GRADED": "1",
}
"""Environment variables of both sides of a graded run."""


class SandboxError(MachineFault):
    """This machine cannot provide the sandbox that was asked for."""


def environment(home: str, scratch: str, library: str, packages: list[str]) -> dict[str, str]:
    """Return the whole environment of the student's side. No variable of the grader's is passed on.

    `scratch` must be writable and this run's own: in a folder of another user's IPython cannot write, and leaves a new
    one in /tmp each time.
    """
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join([library, *packages]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "MPLCONFIGDIR": f"{scratch}/matplotlib",
        "IPYTHONDIR": f"{scratch}/ipython",
        "GLOO_SOCKET_IFNAME": "lo",
        **GRADED,
    }


def command(stage: Path, arguments: list[str]) -> list[str]:
    """Return the bubblewrap command that runs `python ARGUMENTS` with `stage` as the only visible part of the course.

    A user needs a user namespace to hold the capabilities that `confine` uses. Root gets none: each submission becomes
    a user of its own instead (see `confine`), so that the kernel counts its processes. Raises SandboxError.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxError("bubblewrap is not installed (Debian and Ubuntu: apt install bubblewrap)")
    python, binds = _interpreter()
    args = [bwrap, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--hostname", "sandbox"]
    args += [] if needs_user_switch() else ["--unshare-user"]
    args += ["--cap-add", "ALL", "--new-session", "--clearenv"]
    for path in _SYSTEM:
        args += ["--ro-bind-try", path, path]
    args += ["--dir", "/etc"]  # the folder that bubblewrap would make by itself is readable for root only
    for name in _ETC:
        args += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    # /dev/full reads like /dev/zero but cannot be mapped: a shared mapping is memory that counts for no process.
    args += ["--proc", "/proc", "--dev", "/dev", "--dev-bind", "/dev/full", "/dev/zero"]
    args += ["--tmpfs", "/tmp", "--dir", HOME]
    for source, target in binds:
        for parent in reversed(Path(target).parents[:-1]):
            args += ["--dir", str(parent)]
        args += ["--ro-bind", source, target]
    for path in _hidden([(path, path) for path in _SYSTEM] + binds):
        args += ["--tmpfs", path, "--remount-ro", path]
    args += ["--ro-bind", str(stage), LAB, "--chdir", "/"]
    # All submissions share these mounts, so they are read-only; each gets writable mounts of its own.
    args += ["--remount-ro", "/dev", "--remount-ro", "/"]
    packages = [target for _, target in binds if target.startswith("/site/")]
    for key, value in environment(HOME, "/tmp", LAB, packages).items():
        args += ["--setenv", key, value]
    return [*args, python, *arguments]


def _hidden(binds: list[tuple[str, str]]) -> list[str]:
    """Find folders with answers that `binds` would show: the course, and copies of it that pip installed."""
    packages = ("threeloops", HARNESS.name)
    installed = [Path(p) / name for p in [*sys.path, *site.getsitepackages()] for name in packages]
    inside_course = Path(sys.base_prefix).resolve().is_relative_to(CODE)
    folders = [p.resolve() for p in [*([] if inside_course else [CODE]), *installed] if p.is_dir()]
    sources = [(Path(source).resolve(), Path(target)) for source, target in binds]
    seen = {t / f.relative_to(s) for s, t in sources for f in folders if f.is_relative_to(s)}
    return sorted(str(path) for path in seen if seen.isdisjoint(path.parents))


def needs_user_switch() -> bool:
    """Return whether the harness runs as root, so that each submission must become another user."""
    return os.geteuid() == 0


def _interpreter() -> tuple[str, list[tuple[str, str]]]:
    """Return the Python that runs inside, and the (source, target) pairs that must be bound for it."""
    base = Path(sys.base_prefix).resolve()
    if base.is_relative_to("/tmp"):
        raise SandboxError(f"the Python installation lies in {base}, and the sandbox has a /tmp of its own")
    binds = [] if base.is_relative_to("/usr") else [(str(base), str(base))]
    python = sys.executable
    if sys.prefix != sys.base_prefix:
        binds.append((sys.prefix, _VENV))
        python = f"{_VENV}/bin/{Path(python).name}"
    return python, binds + [(str(p), f"/site/{i}") for i, p in enumerate(_extra_site_folders())]


def _extra_site_folders() -> list[Path]:
    """Return the folders of packages outside of the Python installation ($PYTHONPATH, the user's site), without the
    course."""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if site.ENABLE_USER_SITE:
        named.append(site.getusersitepackages())
    folders = [Path(p).resolve() for p in named if p and Path(p).is_dir()]
    return [p for p in dict.fromkeys(folders) if not p.is_relative_to(CODE) and not CODE.is_relative_to(p)]


@functools.cache
def why_not() -> str | None:
    """Return why bubblewrap does not work here, in one sentence, or None if it works. Starts it once to find out."""
    try:
        argv = command(Path(__file__).parent, ["-c", "print('up')"])
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    except SandboxError as error:
        return str(error)
    except (OSError, subprocess.SubprocessError) as error:
        return f"bubblewrap could not be started ({error})"
    if done.returncode or done.stdout.strip() != "up":
        return f"bubblewrap does not work here: {(done.stderr.strip() or 'no output').splitlines()[-1]}"
    return None
