"""Ask whether texts are Python that parses, in a process of its own, because a text can crash or stall the parser."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from threeloops_grader.machine.faults import NO_MEMORY, MachineFault

__all__ = ["MAX_TEXT", "parse_alone"]

_PROGRAM = Path(__file__).with_name("python_parser.py")
MAX_TEXT = 50_000
"""Characters of the longest text that is tried; grading reads no longer cell."""
_PATIENCE = 300.0
"""Seconds after which the machine, and not a text, is at fault. A text can use only a few seconds of CPU time."""
_BY_A_TEXT = (signal.SIGXCPU, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
"""How the process can end because of a text."""


def parse_alone(texts: Sequence[str]) -> list[bool]:
    """Return for each text whether it parses as a cell of a notebook: Python with IPython's magics and top-level await.

    If one of them crashes or stalls the parser, none does. Raises MachineFault if the machine could not try them.
    """
    tried = [text for text in texts if len(text) <= MAX_TEXT]
    command = [sys.executable, "-I", "-S", str(_PROGRAM)]
    try:
        done = subprocess.run(command, input=json.dumps(tried).encode(), capture_output=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        raise MachineFault(f"parsing {len(tried)} cells did not end within {_PATIENCE:.0f} s; {NO_MEMORY}") from None
    if -done.returncode in _BY_A_TEXT:
        return [False] * len(texts)
    if done.returncode:
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [NO_MEMORY]
        raise MachineFault(f"the process that parses cells ended with {done.returncode}: {reason[0]}")
    answers = iter(json.loads(done.stdout))
    return [len(text) <= MAX_TEXT and next(answers) for text in texts]
