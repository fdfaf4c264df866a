"""What an attack is: the text of one hostile answer, and what grading must make of it."""

from dataclasses import dataclass, replace
from textwrap import dedent, indent

from grading import QUICK, SANDBOXES

from grader.labs import Limits

BOTH, BWRAP = SANDBOXES, ("bwrap",)
SHORT = replace(QUICK, cell_seconds=2, test_seconds=2)
"""For attacks that only a deadline ends."""

HONEST = """
def mean(values):
    if not values:
        raise ValueError("values = []: expected at least one number")
    return sum(values) / len(values)
"""

FORGE = """
import gc, json, os, socket, struct
import grader.wall.student as side

usual, raw = side.Server.answer, socket.socket(fileno=os.dup(200))

def frame(tree, *buffers):
    text = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    sizes = struct.pack(f"<{len(buffers)}Q", *map(len, buffers))
    head = struct.pack("<IIQ", len(text), len(buffers), sum(map(len, buffers)))
    raw.sendall(head + sizes + text + b"".join(buffers))

def mean(values):
    return 0.0

def forged(self, tree, buffers):
    if tree["op"] == "call":
        side.Server.answer = usual
        reply(self, tree)
    else:
        usual(self, tree, buffers)

side.Server.answer = forged
"""
"""The student's end, patched to answer the first call of a test with `reply(self, tree)`, past its own codec."""


@dataclass(frozen=True)
class Attack:
    """The answer to `mean` is `code`, then the function.

    The function is the right one (`honest`), one that returns an expression whatever it is asked (`returns`), one that
    answers the test by statements of its own (`forges`), or what `code` defines. `earns` and `other` are the points of
    `mean` and `rescale`; `other` is None where the attack may or may not ruin the student's own second answer. `says`
    must stand in the record.
    """

    says: str = ""
    code: str = ""
    returns: str = ""
    forges: str = ""
    honest: bool = False
    before: str = ""
    earns: float = 0.0
    other: float | None = 60.0
    limits: Limits = QUICK
    sandboxes: tuple[str, ...] = BOTH

    @property
    def answer(self) -> str:
        code = dedent(self.code).strip("\n")
        if self.forges:
            return f"{FORGE}{code}\ndef reply(self, tree):\n{indent(dedent(self.forges), '    ')}\n"
        if self.returns:
            return f"{code}\ndef mean(values):\n    return {self.returns}\n"
        return f"{code}\n{HONEST}" if self.honest else code
