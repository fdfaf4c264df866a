"""Make or repair a virtual environment with exact pins: `python3 scripts/make_venv.py .venv requirements.txt …`.

Safe to run at any time. A stamp inside the environment, written last of all, holds a hash of the pins: while it is
current nothing is done; when it is missing or old (first run, changed pins, Ctrl-C, a full disk) the installation is
run again, and pip keeps what is right already. An environment whose interpreter no longer runs is made anew.

`--check` makes nothing: it prints why this Python cannot make an environment, and exits with 1, or prints nothing.

This file runs on any Python 3, so that an old one gets a sentence and not a syntax error.
"""

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time

try:
    import fcntl
except ImportError:  # native Windows, which gets its sentence in main
    fcntl = None

OLDEST, NEWEST = (3, 11), (3, 14)
OURS = set(
    "bin include lib lib64 share etc pyvenv.cfg pip.log .gitignore .lock CACHEDIR.TAG".split()  # the last three: uv's
)
"""What an environment holds: a folder with anything else in it is someone's, and is not removed."""
ROOM = 3 * 1024**3
"""Bytes that a fresh environment needs with the CPU wheel of torch, and some."""
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of wheels without CUDA."""


def main(arguments):
    folder, requirements = arguments[0], [name for name in arguments[1:] if not name.startswith("--")]
    unsuitable = _unsuitable()
    if unsuitable:
        raise Trouble(f"{sys.executable} {unsuitable}")
    unsupported = _unsupported(sys.platform, platform.machine())
    if unsupported:
        raise Trouble(unsupported)
    _require_writable(os.path.dirname(os.path.abspath(folder)))
    with open(requirements[0]) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two terminals, one environment: the second one waits
        # What is installed for the tests is also what the course needs: a stamp for each beginning of the list.
        begun = [requirements[: n + 1] for n in range(len(requirements))]
        stamps = {
            os.path.join(folder, ".stamp-" + "-".join(map(_stem, names))): _hash([*names, "pyproject.toml"])
            for names in begun
        }
        stamp, wanted = list(stamps.items())[-1]
        healthy = _runs(_python(folder))
        if healthy and healthy != _short(sys.version_info):
            here = _short(sys.version_info)
            print(f"{folder} keeps its Python {healthy}: to use Python {here} instead, remove {folder} first")
        if healthy and os.path.exists(stamp) and _read(stamp) == wanted:
            return
        for old in stamps:
            if os.path.exists(old):
                os.unlink(old)
        if not healthy:
            _create(folder)
        _install_torch(folder, requirements[0], gpu=_has_nvidia_gpu())
        for command in _commands(requirements, editable="--editable" in arguments):
            _install(folder, *command)
        _compile(folder)
        for path, text in stamps.items():
            _write(path, text)


def _unsuitable():
    """Why this Python cannot make an environment, to be read after its name; "" if it can."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        return f"is Python {_short(sys.version_info)}, and the course runs on {_short(OLDEST)} to {_short(NEWEST)}"
    if sys.prefix != sys.base_prefix:  # an environment, whose pip is all that is needed to go on with it
        return "" if importlib.util.find_spec("pip") else "is an environment without pip"
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        return f"cannot make environments: apt install python{_short(sys.version_info)}-venv"
    return ""


def _unsupported(system, processor):
    """Why this system cannot have an environment of the course, in one sentence with what to do; "" where it can."""
    if system.startswith("linux"):
        return (
            ""
            if processor in ("x86_64", "aarch64")
            else (
                f"PyTorch and Triton have no wheels for the processor {processor}: use a machine with x86_64 or aarch64"
            )
        )
    name = {"darwin": "macOS", "win32": "native Windows"}.get(system, system)
    instead = "in WSL2, or " if system == "win32" else ""
    return (
        f"Triton has no wheels for {name}: run the course {instead}in a container (open the folder in VS Code and "
        "choose Reopen in Container)"
    )


def _require_writable(folder):
    """Raises Trouble where the checkout, or the home that pip and Jupyter write to, is read-only."""
    if not os.access(folder, os.W_OK):
        raise Trouble(f"{folder} cannot be written: copy the course to a folder of yours, and run make there")
    home = os.path.expanduser("~")
    if not os.access(home, os.W_OK):
        print(f'{home} cannot be written, and JupyterLab needs a home: start it with HOME="$PWD/work" make lab')


def _has_nvidia_gpu():
    return os.path.exists("/proc/driver/nvidia/version") or shutil.which("nvidia-smi") is not None


def _install_torch(folder, requirements, gpu):
    """torch goes alone: see the head of requirements.txt. Without an NVIDIA GPU, the small wheel is tried first."""
    for pin in (line for line in _read(requirements).splitlines() if line.startswith("torch==")):
        size = "with CUDA, about 2.9 GB" if gpu else "without CUDA, about 0.5 GB"
        print(f"{'An' if gpu else 'No'} NVIDIA GPU was found: torch {size} to download, with all other packages")
        if not gpu:
            if _installed(folder, pin):
                continue
            small = ["--no-deps", "--retries", "1", "--timeout", "15", "--index-url", CPU_WHEELS, pin]
            try:
                _install(folder, f"{pin} from {CPU_WHEELS}", small)
                continue
            except Trouble:
                print("  PyTorch's index cannot be reached: taking the wheel of pip's own index (with CUDA, 2.9 GB)")
        _install(folder, pin + ", the largest part", [pin])


def _installed(folder, pin):
    """Whether the environment has this version of torch already, with any local part (2.13.0+cpu)."""
    name, _, version = pin.partition("==")
    asked = f"from importlib.metadata import version; print(version({name!r}).partition('+')[0])"
    done = subprocess.run([_python(folder), "-c", asked], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.stdout.decode().strip() == version.strip()


def _commands(requirements, editable):
    """(what is said, pip's arguments), in order."""
    files = [argument for name in requirements for argument in ("-r", name)]
    yield "the pins of " + " and ".join(requirements), files
    if editable:
        yield "the course itself", ["--no-deps", "--no-build-isolation", "-e", "."]


def _create(folder):
    """An empty environment in place of whatever half of one is there."""
    if os.path.exists(folder):
        foreign = [name for name in os.listdir(folder) if name not in OURS and not name.startswith(".stamp-")]
        if foreign:
            raise Trouble(f"{folder} is in the way and is no virtual environment (it holds {foreign[0]}): move it away")
        print(f"{folder} was left half made, or its Python is gone: making it anew")
        shutil.rmtree(folder)
    free = shutil.disk_usage(".").free
    if free < ROOM:
        raise Trouble(f"the disk has {free / 1e9:.1f} GB left; the environment needs about {ROOM / 1e9:.0f} GB")
    done = subprocess.run([sys.executable, "-m", "venv", folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode or not _runs(_python(folder)):
        said = done.stdout.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise Trouble(f"no environment could be made in {folder}: {said[-1]}")


def _install(folder, what, arguments):
    """One pip command. Where someone watches, pip shows its own progress; elsewhere a line a minute says it lives."""
    watched = sys.stdout.isatty()
    command = [_python(folder), "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
    command += [] if watched else ["-q"]
    log = os.path.join(folder, "pip.log")
    print(f"installing {what} …", flush=True)
    started = time.monotonic()
    with open(log, "w") as output:
        pip = subprocess.Popen(
            command + arguments, stdout=None if watched else output, stderr=None if watched else output
        )
        try:
            while True:
                try:
                    if pip.wait(timeout=60) == 0:
                        break
                except subprocess.TimeoutExpired:
                    if not watched:
                        print(f"  still at it, {time.monotonic() - started:.0f} s", flush=True)
                    continue
                tail = "" if watched else "\n" + "\n".join(_read(log).splitlines()[-8:])
                full = " (the disk is full)" if shutil.disk_usage(folder).free < 1024**3 // 4 else ""
                raise Trouble(f"pip could not install {what}{full}; running this again continues{tail}")
        finally:
            if pip.poll() is None:
                pip.terminate()
                pip.wait()
    print(f"  done in {time.monotonic() - started:.0f} s", flush=True)


def _compile(folder):
    """Compile what was installed on all cores, where pip would take one. A template that is no Python stops nothing."""
    print("compiling what was installed …", flush=True)
    started = time.monotonic()
    code = "import compileall, sysconfig; compileall.compile_dir(sysconfig.get_path('purelib'), quiet=2, workers=0)"
    subprocess.run([_python(folder), "-W", "ignore", "-c", code], check=False)
    print(f"  done in {time.monotonic() - started:.0f} s", flush=True)


def _python(folder):
    return os.path.join(folder, "bin", "python")


def _runs(python):
    """The version of an environment's Python, such as "3.12", if it starts, has pip and suits the course; else ""."""
    check = f"import sys, pip; v = sys.version_info[:2]; {OLDEST} <= v <= {NEWEST} and print('%d.%d' % v)"
    try:
        done = subprocess.run([python, "-c", check], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return ""
    return done.stdout.decode().strip()


def _hash(names):
    digest = hashlib.sha256()
    for name in names:
        digest.update(_read(name).encode())
    return digest.hexdigest()


def _read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _write(path, text):
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".tmp", path)


def _short(version):
    return ".".join(map(str, version[:2]))


def _stem(name):
    return os.path.splitext(os.path.basename(name))[0]


class Trouble(Exception):
    """Said in one sentence, without a traceback."""


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        reason = _unsuitable()
        if reason:
            print(reason)
        sys.exit(1 if reason else 0)
    try:
        main(sys.argv[1:])
    except Trouble as trouble:
        sys.exit(f"error: {trouble}")
    except OSError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("\nstopped; running this again continues where it left off")
