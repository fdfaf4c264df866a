"""Readers of what students send and of what is kept, given valid input with random changes.

Each reader may refuse, in its own words, or take what is still valid; anything else that it raises is a fault. The
quick tier tries a few hundred seeds, `make test-all` as many as fit into five minutes. A failure names its seed.
"""

import copy
import dataclasses
import json
import math
import random
import socket
import threading
import time
import types
from contextlib import contextmanager, suppress
from functools import partial
from itertools import takewhile

import nbformat
import pytest
from threeloops_grader.authoring.manifest import Kind, manifest
from threeloops_grader.grading import records
from threeloops_grader.submissions.reading import BadSubmission, parse
from threeloops_grader.submissions.rebuild import rebuild
from threeloops_grader.submissions.submitted import NotThisLab
from threeloops_grader.transport.link import FrameLink, LinkDead, WallError
from threeloops_grader.wall.proxy import Proxy
from threeloops_grader.wall.wall import Wall
from threeloops_grader.worklist.store import Key, RecordStore
from toy_course import make_course

QUICK_SEEDS, LONG_SECONDS = 150, 100
ODD = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**400, 0.5, -0.0, math.nan, math.inf, 1e308),
    *("", "x", "\ud800", "\0", "T", "h", "t", "d", "float32", "bool", "__main__", "A" * 5000),
    *([], {}, [[]], [None], {"": None}, [[[[]]]] * 50),
)
DEEP = "[" * 300 + "]" * 300


def changed(tree, random):
    """A copy of a JSON tree with one to four random changes: values replaced, doubled, dropped, moved or nested."""
    try:
        tree = _changed(copy.deepcopy(tree), random)
        json.dumps(tree)
    except RecursionError:  # nested more deeply than anyone here could write it down
        return random.choice(ODD)
    return tree


def _changed(tree, random):
    for _ in range(random.randint(1, 4)):
        places = list(_places(tree))
        if not places:
            return random.choice(ODD)
        holder, key = random.choice(places)
        match random.randrange(6):
            case 0 | 1:
                holder[key] = copy.deepcopy(random.choice(ODD))
            case 2 if isinstance(holder, list):
                holder.insert(random.randint(0, len(holder)), copy.deepcopy(holder[key]))
            case 3:
                del holder[key]
            case 4:
                other, at = random.choice(places)
                holder[key] = copy.deepcopy(other[at]) if _holds(other, at) else None
            case _:
                holder[key] = random.choice([[holder[key]], {"x": holder[key]}, json.loads(DEEP)])
    return tree


def _places(tree):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _places(value)


def _holds(holder, key):
    return key in holder if isinstance(holder, dict) else key < len(holder)


def damaged(content, random):
    """Bytes with a few of them flipped, cut or repeated."""
    content = bytearray(content)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(content) + 1)
        match random.randrange(3):
            case 0:
                content[at : at + 1] = bytes([random.randrange(256)])
            case 1:
                del content[at : at + random.randrange(40)]
            case _:
                content[at:at] = content[at : at + random.randrange(40)]
    return bytes(content)


@pytest.fixture(params=["quick", pytest.param("long", marks=pytest.mark.slow)])
def seeds(request):
    """Generators of random changes; the long run takes other seeds every day."""
    if request.param == "quick":
        return [random.Random(seed) for seed in range(QUICK_SEEDS)]
    end, first = time.monotonic() + LONG_SECONDS, int(time.time()) // 86400 * 10**9
    print(f"seeds from {first}")
    numbers = takewhile(lambda _: time.monotonic() < end, range(first, first + 10**9))
    return (random.Random(seed) for seed in numbers)


@dataclasses.dataclass
class Sample:
    """What a setup cell may define: its instances cross field by field."""

    size: int
    values: list


VALUES = [
    {"T": ["float32", [2], 0, None, None]},
    {"a": ["int16", [2, 2], 0]},
    {"g": ["float64", [], 0]},
    {"t": [1, {"d": [["k", {"s": [1, 2]}]]}, {"i": "0x1fffffffffffffffff"}, {"c": [0.0, 1.0]}]},
    [{"sl": [0, None, 2]}, {"rg": [0, 3, 1]}, {"dt": "float16"}, {"dv": "cpu"}, {"b": 0}],
    {"r": ["__main__", "Sample", [["size", 1], ["values", [1, 2]]]]},
    {"h": [1, "object", "Model"]},
]
REPLIES = [
    *({"value": value, "printed": ""} for value in VALUES),
    {"value": {"T": ["float32", [1, 2], 0, 0, [2, 1]]}, "tape": 1, "printed": "a"},
    {"value": None, "in_place": [], "leaf_grads": [], "printed": ""},
    {
        "error": {
            "classes": ["builtins.ValueError", "builtins.Exception"],
            "message": "m",
            "frames": [{"place": "your cell", "line": 1, "text": "x", "call": "f()"}],
        },
        "printed": "",
    },
    {"callback": 0, "value": {"t": [[], {"d": []}]}},
]
"""What the student's side answers, one of each kind; buffer 0 has eight bytes."""


@contextmanager
def answering(sock, answer):
    """Answer and say no more, beside the block: an answer may be longer than the socket holds."""

    def run():
        with suppress(OSError, WallError, LinkDead):  # too large, or the reader has left
            answer()
        with suppress(OSError):
            sock.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_whatever_the_students_side_answers_is_a_value_a_refusal_or_an_error_of_its_own(seeds):
    main = types.ModuleType("__main__")
    main.Sample = Sample
    for number, chance in enumerate(seeds):
        tree = chance.choice(REPLIES)
        tree = changed(tree, chance) if chance.random() < 0.9 else tree
        buffers = [damaged(bytes(8), chance) if chance.random() < 0.3 else bytes(8)]
        ours, theirs = socket.socketpair()
        if chance.random() < 0.8 and isinstance(tree, dict):
            answer = partial(FrameLink(theirs).send, tree, buffers)
        else:
            answer = partial(theirs.sendall, damaged(json.dumps(tree).encode(), chance))
        with ours, theirs, answering(theirs, answer):
            wall = Wall(FrameLink(ours), main, FrameLink(ours))
            wall.setup_names = {"Sample"}
            wall.link.deadline = time.monotonic() + 30
            wall.callbacks = [lambda *args: None]
            told_of_an_error = isinstance(tree, dict) and "error" in tree
            try:
                value = wall.request({"op": "get", "name": "f"})
                assert not type(value).__module__.startswith("grader.") or type(value) is Proxy, (number, value)
            except (WallError, LinkDead):
                pass
            except Exception as error:
                assert told_of_an_error, f"seed {number}: {tree!r} raised {error!r}"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return make_course(tmp_path_factory.mktemp("fuzz"))


def test_whatever_the_notebook_it_is_refused_or_has_the_masters_own_tests(seeds, lab):
    trusted = manifest(lab)
    original = json.loads(nbformat.writes(lab.master()))
    tests = {c.id: c.source for c in trusted.master.cells if trusted.kinds[c.id] in (Kind.TEST, Kind.SETUP)}
    for number, chance in enumerate(seeds):
        tree = changed(original, chance)
        content = json.dumps(tree).encode()
        content = damaged(content, chance) if chance.random() < 0.3 else content
        try:
            rebuilt = rebuild(parse(content), trusted)
        except (BadSubmission, NotThisLab) as refusal:
            assert str(refusal), number
            continue
        found = {c.id: c.source for c in rebuilt.notebook.cells if trusted.kind(c) in (Kind.TEST, Kind.SETUP)}
        assert found == tests, f"seed {number}: {tree!r}"
        nbformat.validate(rebuilt.notebook)
        assert all(note.isprintable() for note in rebuilt.notes), number


def test_whatever_the_kept_record_it_is_graded_again_or_can_be_reported(seeds, tmp_path):
    tests = [records.Test("mean_test", 40.0, 40.0, "fine"), records.Test("rescale_test", 0.0, 60.0, "not fine")]
    original = records.Record("ada", 40.0, 100.0, "graded", 1.0, "cpu", "complete", ["a note"], tests)
    store, key = RecordStore(tmp_path, "lab"), Key.of("ada", b"a notebook", "a fingerprint")
    store.keep(key, original)
    path = store.path_of(key)
    saved = json.loads(path.read_text())
    assert store.load(key) == original
    for number, chance in enumerate(seeds):
        content = json.dumps(changed(saved, chance)).encode()
        path.write_bytes(damaged(content, chance) if chance.random() < 0.3 else content)
        record = store.load(key)
        if record is not None:
            assert 0 <= record.score <= record.max_score, number
            assert json.loads(records.to_json(records.gradescope(record)))["score"] == record.score, number


def test_half_a_character_where_a_list_belongs_is_a_refusal():
    """Not a UnicodeEncodeError, which a test that expects some error of the student's code would take for theirs."""
    ours, theirs = socket.socketpair()
    answer = partial(FrameLink(theirs).send, {"value": None, "leaf_grads": "\ud800"}, [])
    wall = Wall(FrameLink(ours), types.ModuleType("__main__"), FrameLink(ours))
    refusal = pytest.raises(WallError, match="a malformed answer came back")
    with ours, theirs, answering(theirs, answer), refusal:
        wall.request({"op": "get", "name": "f"})
