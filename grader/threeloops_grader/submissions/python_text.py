"""Ask whether texts are Python that parses, in a process of its own, which does not execute them.

A text can crash or stall Python's parser, so the process has limits. This file is also that process's program.
"""

import ast
import json
import subprocess
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress

__all__ = ["parse_alone"]

_SECONDS = 10
_MEMORY = 1 << 30


def parse_alone(texts: Sequence[str]) -> list[bool]:
    """Return for each text whether it parses as a cell of a notebook: Python with IPython's magics and top-level await.

    If the process breaks one of its limits, no text does.
    """
    command = [sys.executable, "-I", "-S", __file__]
    with suppress(subprocess.TimeoutExpired, ValueError):
        done = subprocess.run(command, input=json.dumps(texts).encode(), capture_output=True, timeout=_SECONDS)
        answers = json.loads(done.stdout)
        if len(answers) == len(texts):
            return [answer is True for answer in answers]
    return [False] * len(texts)


def _main() -> None:
    with suppress(ImportError, ValueError, OSError):  # macOS has no limit of memory
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    warnings.simplefilter("ignore")
    print(json.dumps([_parses(text) for text in json.load(sys.stdin.buffer)]))


def _parses(text: str) -> bool:
    if text.startswith("%%"):
        text = text.partition("\n")[2]
    return _compiles(text) or _compiles("\n".join(map(_without_magic, text.split("\n"))))


def _without_magic(line: str) -> str:
    stripped = line.lstrip()
    return line[: len(line) - len(stripped)] + "pass" if stripped.startswith(("%", "!")) else line


def _compiles(text: str) -> bool:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        compile(text, "<cell>", "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return False
    return True


if __name__ == "__main__":
    _main()
