"""Submissions that mean harm: each earns what an honest answer would have earned, and nobody else notices.

Every attack is the answer to exercise `mean` (40 points) of an otherwise honest submission. Afterwards an honest
submission is graded by the same warm processes; at the end of the file no process and no folder may be left.
"""

from dataclasses import dataclass, replace

import pytest
from grader.labs import Limits
from grading import QUICK, SANDBOXES, fresh_course, grade, needs, points, said, submission

BOTH, BWRAP = SANDBOXES, ("bwrap",)
SHORT = replace(QUICK, cell_seconds=2, test_seconds=2)
HONEST = {"mean": 40.0, "rescale": 60.0}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacks")
    (folder / "gradebook.db").write_text("SECRET marks of everybody")
    with fresh_course(folder) as lab:
        yield lab


@dataclass(frozen=True)
class Attack:
    """`answer` replaces the solution of `mean`; `says` must stand in the record; `other` is what `rescale` earns."""

    answer: str
    says: str = ""
    earns: float = 0.0
    other: float = 60.0
    before: str = ""
    limits: Limits = QUICK
    sandboxes: tuple[str, ...] = BOTH


def returning(expression: str, definitions: str = "") -> str:
    """An answer that returns one thing, whatever it is asked."""
    return f"{definitions}\ndef mean(values):\n    return {expression}\n"


RIGHT = """
def mean(values):
    if not values:
        raise ValueError("values = []: expected at least one number")
    return sum(values) / len(values)
"""

FORGE = """
import gc, json, os, socket, struct
import grader.wall.student as side
import torch
usual, raw = side.Server.answer, socket.socket(fileno=os.dup(200))
def frame(tree, *buffers):
    text = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    sizes = struct.pack(f"<{len(buffers)}Q", *map(len, buffers))
    raw.sendall(struct.pack("<IIQ", len(text), len(buffers), sum(map(len, buffers))) + sizes + text + b"".join(buffers))
def mean(values):
    return 0.0
def forged(self, tree, buffers):
    if tree["op"] == "call":
        reply(self, tree)
    else:
        usual(self, tree, buffers)
side.Server.answer = forged
"""


def forging(reply: str) -> str:
    """The student's end, patched to answer every call of the test with `reply`, past its own codec."""
    return FORGE + f"def reply(self, tree):\n    {reply}\n"


ENDINGS = {
    "raises": Attack("raise ValueError('no answer today')", "ValueError: no answer today"),
    "raises in the call": Attack(returning("1 // 0"), "ZeroDivisionError"),
    "exits": Attack("import sys\nsys.exit(0)", "SystemExit"),
    "exits in the call": Attack(returning("sys.exit(0)", "import sys"), "SystemExit"),
    "ends its own process": Attack("import os\nos._exit(0)", "process was lost: it ended"),
    "ends its own process in the call": Attack(returning("os._exit(0)", "import os"), "process was lost: it ended"),
    "kills its own process": Attack(
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\nos.abort()", "process was lost: it ended"
    ),
    "kills its own kernel": Attack("get_ipython().kernel.do_shutdown(False)", "kernel"),
    "asks the kernel to stop": Attack("exit()\nquit()\n" + returning("3.0"), "mean"),
    "closes the channel": Attack("import os\nos.close(200)", "process was lost: it ended"),
    "loops for ever and swallows interrupts": Attack(
        "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
        "did not answer within 2 s",
        limits=SHORT,
    ),
    "loops for ever in the call": Attack(
        returning("spin()", "def spin():\n    while True:\n        pass"), "did not answer within 2 s", limits=SHORT
    ),
    "waits for input": Attack(returning("float(input('the mean? '))"), "Error"),
    "hangs in C, deaf to signals": Attack(
        "import signal\nfor n in range(1, 65):\n    try:\n        signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\nsum(range(10**12))",
        "did not answer within 2 s",
        limits=SHORT,
    ),
    "raises what is no Exception": Attack(
        returning("fail()", "class Bad(BaseException): pass\ndef fail():\n    raise Bad('caught?')"), "caught?"
    ),
    "raises an exception without a text": Attack(
        returning(
            "fail()",
            "class Mute(ValueError):\n    def __str__(self):\n        raise SystemExit\n"
            "def fail():\n    raise Mute('values')",
        ),
        "without a readable message",
    ),
    "raises an exception with an endless text": Attack(
        returning("fail()", "def fail():\n    raise ValueError('values' * 10**7)"), "values"
    ),
    "recurses for ever": Attack(returning("mean(values)"), "RecursionError"),
    "has no syntax": Attack("def mean(values:\n    return 3.0", "SyntaxError"),
    "is 5 MiB of text": Attack("# " + "x" * (5 << 20) + RIGHT, "too long to execute"),
    "is half a character": Attack("x = '\ud800'\n" + returning("3.0"), "mean of 2 numbers"),
}


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("name", ENDINGS)
def test_how_an_answer_ends(lab, name, sandbox):
    judge(lab, ENDINGS[name], sandbox)


def judge(lab, attack, sandbox):
    needs(sandbox)
    if sandbox not in attack.sandboxes:
        pytest.skip("only a sandbox stops this one")
    record = grade(lab, submission(lab, attack.before, mean=attack.answer), sandbox, attack.limits)
    assert points(record) == {"mean": attack.earns, "rescale": attack.other}, said(record)
    assert attack.says in said(record)
    assert record.status == "graded"
    honest = grade(lab, submission(lab), sandbox)
    assert points(honest) == HONEST, said(honest)
    assert honest.notes == []
