"""The program that tries whether texts parse. It reads a list of texts as JSON, and executes none of them.

It runs in a process of its own (see `python_text`), without the course and without installed packages.
"""

import ast
import json
import sys
import warnings
from contextlib import suppress

__all__ = []

_CPU_SECONDS = 20
_MEMORY = 1 << 30


def _main() -> None:
    with suppress(ImportError, ValueError, OSError):  # not every system has each of these limits
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, 2 * _CPU_SECONDS))  # ends with SIGXCPU, not SIGKILL
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
    try:
        compile(text, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return False
    return True


if __name__ == "__main__":
    _main()
