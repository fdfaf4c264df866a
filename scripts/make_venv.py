"""Make or repair a virtual environment with exact pins: `python3 scripts/make_venv.py .venv requirements.txt …`.

Safe to run at any time. A stamp inside the environment, written last of all, holds a hash of the pins: while it is
current nothing is done; when it is missing or old (first run, changed pins, Ctrl-C, a full disk) the installation is
run again, and pip keeps what is right already. An environment whose interpreter no longer runs is made anew.

This file runs on any Python 3, so that an old one gets a sentence and not a syntax error.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time

OLDEST, NEWEST = (3, 11), (3, 13)
OURS = {"bin", "include", "lib", "lib64", "share", "etc", "pyvenv.cfg", "pip.log", ".gitignore", ".lock"}
"""What an environment holds: a folder with anything else in it is someone's, and is not removed."""
ROOM = 3 * 1024**3
"""Bytes that a fresh environment needs with the CPU wheel of torch, and some."""


def main(arguments):
    folder, requirements = arguments[0], [name for name in arguments[1:] if not name.startswith("--")]
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        raise Trouble(
            f"Python {_version()} is too {'old' if sys.version_info < OLDEST else 'new'}: the course runs on 3.11, "
            "3.12 and 3.13. Name another one: make PYTHON=python3.12 …"
        )
    with open(requirements[0]) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two terminals, one environment: the second one waits
        stamp = os.path.join(folder, ".stamp-" + "-".join(_stem(name) for name in requirements))
        wanted = _hash([*requirements, "pyproject.toml"])
        healthy = _runs(_python(folder))
        if healthy and os.path.exists(stamp) and _read(stamp) == wanted:
            return
        if os.path.exists(stamp):
            os.unlink(stamp)
        if not healthy:
            _create(folder)
        for command in _commands(requirements, editable="--editable" in arguments):
            _install(folder, *command)
        _write(stamp, wanted)


def _commands(requirements, editable):
    """(what is said, pip's arguments), in order. torch goes alone: see the head of requirements.txt."""
    for pin in (line for line in _read(requirements[0]).splitlines() if line.startswith("torch==")):
        yield pin + ", the largest part", [pin]
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
        if "ensurepip" in "\n".join(said):
            raise Trouble(
                f"this Python makes no environments yet: apt install python{_version()}-venv, then run this again"
            )
        raise Trouble(f"no environment could be made in {folder}: {said[-1]}")


def _install(folder, what, arguments):
    """One pip command. Where someone watches, pip shows its own progress; elsewhere a line a minute says it lives."""
    watched = sys.stdout.isatty()
    command = [_python(folder), "-m", "pip", "install", "--disable-pip-version-check", *([] if watched else ["-q"])]
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


def _python(folder):
    return os.path.join(folder, "bin", "python")


def _runs(python):
    """Does the environment's interpreter start, at a version the course knows, with pip in it?"""
    check = f"import sys, pip; sys.exit(not {OLDEST} <= sys.version_info[:2] <= {NEWEST})"
    try:
        return subprocess.run([python, "-c", check], stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


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


def _version():
    return ".".join(map(str, sys.version_info[:2]))


def _stem(name):
    return os.path.splitext(os.path.basename(name))[0]


class Trouble(Exception):
    """Said in one sentence, without a traceback."""


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Trouble as trouble:
        sys.exit(f"error: {trouble}")
    except OSError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("\nstopped; running this again continues where it left off")
