"""What crosses the wall: the same test cell, beside the student's code and with a process between them."""

import subprocess
import sys

import pytest
from grading import SANDBOXES, needs
from sides import Walled, course_fixture, sides_fixture
from threeloops_grader.machine.child_process import environment
from threeloops_grader.processes.grader_process import _shown
from toy_course import make_tensor_course

SETUP = """
import enum
from collections import namedtuple
from dataclasses import dataclass, field

import numpy as np
import torch
from threeloops.lab import by_value, check, inout


@dataclass(frozen=True)
class Point:
    x: float
    y: list = field(default_factory=list)

    def norm(self):
        return (self.x**2 + sum(v**2 for v in self.y)) ** 0.5


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


Pair = namedtuple("Pair", "left right")


class TooSmall(ValueError):
    def __init__(self, name, least):
        super().__init__(f"{name} is smaller than {least}")


def double(x):
    return 2 * x
"""


lab = course_fixture(make_tensor_course)
run = sides_fixture(SETUP)


SAME = {
    "numbers": (
        "def f(x): return x + 1",
        "assert f(1) == 2 and type(f(1)) is int and f(0.5) == 1.5 and f(1j) == 1 + 1j",
    ),
    "large integers": ("def f(x): return x**2", "assert f(2**500) == 2**1000 and f(-(2**61)) == 2**122"),
    "text, bytes and None": ("def f(*x): return x", "assert f('é\\n', b'\\0', None) == ('é\\n', b'\\0', None)"),
    "containers": (
        "def f(x): return {'in': x, 2: (x, [x]), None: {1, 2}}",
        "assert f([1]) == {'in': [1], 2: ([1], [[1]]), None: {1, 2}}",
    ),
    "slices and ranges": (
        "def f(x): return x",
        "assert f(slice(1, None, 2)) == slice(1, None, 2) and f(range(3)) == range(3)",
    ),
    "keyword arguments": (
        "def f(a, *b, c=3, **d): return a, b, c, d",
        "assert f(1, 2, c=4, e=5) == (1, (2,), 4, {'e': 5})",
    ),
    "constants": ("CONSTANT = {'a': [1.5]}", "assert CONSTANT == {'a': [1.5]}"),
    "numpy arrays": (
        "def f(x): return x * 2, x.sum(), x[0, 0] > 1",
        """
        doubled, total, larger = f(np.arange(6, dtype=np.float32).reshape(2, 3))
        check.close(doubled, [[0, 2, 4], [6, 8, 10]])
        assert doubled.dtype == np.float32 and type(total) is np.float32 and not larger
        """,
    ),
    "tensors of every dtype": (
        "def f(x): return x",
        """
        names = "float64 float32 float16 bfloat16 float8_e4m3fn complex64 int64 int32 int16 int8 uint8 bool"
        for name in names.split():
            x = torch.tensor([[0, 1], [1, 0], [1, 1]]).to(getattr(torch, name))
            y = f(x.T)
            assert y.dtype == x.dtype and y.stride() == (1, 2) and y.tolist() == x.T.tolist(), name
            assert f(x[:0]).shape == (0, 2) and f(x[0, 0]).shape == ()
        assert f(torch.float16) is torch.float16 and f(x.shape) == (3, 2) and f(torch.device("cpu")).type == "cpu"
        """,
    ),
    "records out and back": (
        "def f(p, c, q): return Point(p.x + 1, p.y), Color.BLUE, Pair(q.right, q.left), [c]",
        """
        point, color, pair, colors = f(Point(1.0, [2.0]), Color.RED, Pair(1, "a"))
        assert point == Point(2.0, [2.0]) and type(point) is Point and point.norm() == 8**0.5
        assert color is Color.BLUE and colors == [Color.RED] and pair == Pair("a", 1) and pair.left == "a"
        """,
    ),
    "a named tuple of the student's is a tuple": (
        "import collections\nMine = collections.namedtuple('Mine', 'a b')\ndef f(): return Mine(1, [2, Mine(3, 4)])",
        "assert f() == (1, [2, (3, 4)])",
    ),
    "members of an IntEnum or a StrEnum are plain numbers and texts": (
        "import enum\nfrom http import HTTPStatus\nMine = enum.StrEnum('Mine', 'left')\n"
        "def f(): return [HTTPStatus.OK, (HTTPStatus.NOT_FOUND, Mine.left)]",
        "assert f() == [200, (404, 'left')] and isinstance(f()[0], int) and isinstance(f()[1][1], str)",
    ),
    "library records": (
        "def f():\n    from threeloops.lab.checking.compare import Tolerance\n    return Tolerance(0.5)",
        "from threeloops.lab.checking.compare import Tolerance\nassert f() == Tolerance(0.5)",
    ),
    "builtin exceptions": (
        "def f(x): raise [ValueError, KeyError, ZeroDivisionError, OSError, StopIteration][x]('size = 0')",
        """
        for i, kind in enumerate([ValueError, KeyError, ZeroDivisionError, OSError, StopIteration]):
            check.raises(kind, f, i, names="size = 0")
        """,
    ),
    "the text of a missing key": (
        "def f(): return {}['it\\'s']",
        'try:\n    f()\n    assert False\nexcept KeyError as error:\n    assert error.args == ("it\'s",), error.args',
    ),
    "setup's exceptions, whatever they are made of": (
        "def f(): raise TooSmall('width', 3)",
        "check.raises(TooSmall, f, names='width is smaller than 3')\ncheck.raises(ValueError, f)",
    ),
    "torch's and numpy's exceptions": (
        "def f(): return torch.linalg.inv(torch.zeros(2, 2))\ndef g(): return np.zeros(2).sum(axis=3)",
        "check.raises(torch.linalg.LinAlgError, f)\ncheck.raises(np.exceptions.AxisError, g, names='axis')",
    ),
    "the nearest class of the student's own exception": (
        "class Mine(IndexError): pass\ndef f(): raise Mine('seven')",
        "check.raises(IndexError, f, names='seven')",
    ),
    "objects with state": (
        """
        class Model:
            def __init__(self, n): self.n = n
            def add(self, k):
                self.n += k
                return self
            def __len__(self): return self.n
            def __getitem__(self, i): return self.n * i
            def __contains__(self, x): return x == self.n
            def __enter__(self): return self
            def __exit__(self, *error): self.n = -1
        """,
        """
        model = Model(2)
        model.add(3).add(4)
        assert model.n == 9 and len(model) == 9 and model[2] == 18 and 9 in model and 8 not in model
        model.n = 5
        with model as inside:
            assert inside.n == 5
        assert model.n == -1
        check.raises(AttributeError, lambda: model.absent)
        """,
    ),
    "objects passed back": (
        "class Model:\n    n = 7\ndef f(): return Model()\ndef g(models): return [m.n for m in models]",
        "assert g([f(), f()]) == [7, 7]",
    ),
    "functions that return functions": ("def f(n): return lambda x: x + n", "assert f(3)(4) == 7"),
    "iterators and generators": (
        "def f(n): return iter(range(n))\ndef g(n):\n    for i in range(n):\n        yield torch.tensor(i)",
        "assert list(f(3)) == [0, 1, 2] and [int(x) for x in g(3)] == [0, 1, 2] and next(f(1)) == 0",
    ),
    "callbacks": (
        "def f(step, x):\n    for _ in range(3):\n        x = step(x)\n    return x",
        """
        seen = []
        def step(x):
            seen.append(x)
            return x + 1
        assert f(step, 0) == 3 and seen == [0, 1, 2] and f(lambda x: x * 2, 1) == 8
        """,
    ),
    "callbacks that call back": (
        "def f(ask, n): return ask(n - 1) if n else 0",
        "def ask(n):\n    return 1 + f(ask, n)\nassert f(ask, 5) == 5",
    ),
    "callbacks that raise": (
        "def f(bad):\n    try:\n        bad()\n    except LookupError as error:\n        return str(error)",
        "def bad():\n    raise IndexError('mine')\nassert f(bad) == 'mine'",
    ),
    "setup's functions by name, library functions by reference": (
        "def f(h, x): return h(x)",
        "assert f(double, 4) == 8 and f(torch.relu, torch.tensor(-1.0)) == 0",
    ),
    "helpers by value": (
        "def f(h, x): return h(x) + 1",
        "offset = 10\ndef helper(x):\n    return x + offset\nassert f(by_value(helper), 1) == 12",
    ),
    "arguments changed in place": (
        "def f(x):\n    x[0] = 9\n    return len(x)",
        """
        for x in (torch.zeros(3), np.zeros(3), [0, 0, 0], {0: 0, 1: 0, 2: 0}):
            assert f(inout(x)) == 3 and x[0] == 9 and x[1] == 0
        """,
    ),
    "modules changed in place": (
        """
        def f(model, x):
            model(x).sum().backward()
            with torch.no_grad():
                model.weight += 1
            return model
        """,
        """
        model = torch.nn.Linear(2, 1, bias=False)
        before = model.weight.detach().clone()
        f(inout(model), torch.tensor([[3.0, 4.0]]))
        check.close(model.weight.detach(), before + 1)
        check.close(model.weight.grad, [[3.0, 4.0]])
        """,
    ),
    "gradients through the student's function": (
        "def f(x, w): return (x.sin() * w).sum(-1), x.detach()",
        """
        x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
        w = torch.randn(4, dtype=torch.float64, requires_grad=True)
        y, still = f(x, w)
        assert y.requires_grad and not still.requires_grad
        (y * torch.arange(3)).sum().backward()
        scale = torch.arange(3, dtype=torch.float64)[:, None]
        check.close(x.grad, (x.cos() * w * scale).detach())
        check.close(w.grad, (x.sin() * scale).sum(0).detach())
        assert torch.autograd.gradcheck(lambda a, b: f(a, b)[0], (x, w))
        """,
    ),
    "gradients of unused and of several results": (
        "def f(x, y): return x * 2, [x * 3]",
        """
        x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        a, (b,) = f(x, y)
        (a + b).sum().backward()
        check.equal(x.grad, torch.full((2,), 5.0))
        assert y.grad is None
        """,
    ),
    "gradients of wrong mathematics show": (
        "def f(x): return x + (x**2 - x).detach()",
        """
        x = torch.tensor([3.0], requires_grad=True)
        f(x).sum().backward()
        check.close(f(x.detach()), [9.0])
        check.equal(x.grad, torch.ones(1))
        """,
    ),
    "a module of the student's learns": (
        """
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(2, 1)
            def forward(self, x): return self.linear(x)
        """,
        """
        model = Model()
        model.load_state_dict({"linear.weight": torch.ones(1, 2), "linear.bias": torch.zeros(1)})
        loss = model(torch.tensor([[1.0, 2.0]])).sum()
        assert loss.item() == 3.0
        loss.backward()
        check.equal({n: p.grad for n, p in model.state_dict().items()}, {"linear.weight": None, "linear.bias": None})
        check.equal([p.grad for p in model.parameters()], [torch.tensor([[1.0, 2.0]]), torch.ones(1)])
        model.zero_grad()
        assert [p.grad for p in model.parameters()] == [None, None]
        """,
    ),
    "seeds": (
        "def f(): return torch.rand(3)",
        """
        torch.manual_seed(7)
        first = f()
        for draw in (f, lambda: torch.rand(3)):
            torch.manual_seed(7)
            check.equal(draw(), first)
        """,
    ),
    "student functions in plain containers": ("f = {'add': lambda a, b: a + b}", "assert f['add'](1, 2) == 3"),
}


@pytest.mark.parametrize("name", SAME)
def test_a_test_cell_means_the_same_on_both_sides_of_the_wall(run, name):
    student, test = SAME[name]
    outcome = run(student, test)
    assert outcome.ok, f"{outcome.error}: {outcome.message}"


FAILS = {
    "a check": ("def f(): return 2.0", "check.close(f(), 3.0, what='f()')", "f()"),
    "nan": ("def f(): return float('nan')", "check.close(f(), 3.0)", "nan"),
    "an unexpected exception": ("def f(): raise ValueError('no')", "f()", "no"),
    "an expected exception that does not come": (
        "def f(): return 1",
        "check.raises(ValueError, f)",
        "expected   ValueError",
    ),
    "another exception than expected": ("def f(): raise TypeError('t')", "check.raises(ValueError, f)", "TypeError: t"),
    "a missing name": ("f = 1", "h()", "h"),
}


@pytest.mark.parametrize("name", FAILS)
def test_what_fails_fails_on_both_sides(run, name):
    student, test, says = FAILS[name]
    outcome = run(student, test)
    assert not outcome.ok
    assert says in outcome.message


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_an_answer_that_exits_fails_its_test(lab, sandbox):
    """Behind the wall only: in JupyterLab that ends the kernel."""
    needs(sandbox)
    side = Walled(lab, sandbox, SETUP, "def f(): raise SystemExit(3)")
    try:
        outcome = side.test("f()")
        assert not outcome.ok
        assert "3" in outcome.message
    finally:
        side.close()


REFUSAL = "cannot be compared or used as a value"
REFUSED = {
    "comparing": ("f() == 1", REFUSAL),
    "comparing from the other side": ("1.0 <= f()", REFUSAL),
    "comparing with an array": ("np.zeros(1) == f()", REFUSAL),
    "comparing with a tensor": ("torch.zeros(1) == f()", REFUSAL),
    "truth": ("bool(f())", REFUSAL),
    "not": ("assert not f()", REFUSAL),
    "a number of it": ("float(f())", REFUSAL),
    "an index of it": ("[1][f()]", REFUSAL),
    "arithmetic": ("1 + f()", REFUSAL),
    "a remainder": ("7 % f()", REFUSAL),
    "a power": ("f() ** 2", REFUSAL),
    "rounding": ("round(f())", REFUSAL),
    "an absolute value": ("abs(f())", REFUSAL),
    "an array of it": ("np.asarray(f())", REFUSAL),
    "a check": ("check.close(f(), 1.0)", "got a Model\n  expected   plain data"),
    "a list of it": ("check.equal([f()], [1.0])", "got a list that holds a Model\n  expected   plain data"),
    "a shape of it": ("check.shape(f(), (1,))", "value      a Model"),
    "membership": ("assert f() in [1.0]", REFUSAL),
    "a dictionary key": ("{f(): 1}", "unhashable"),
    "subclassing": ("class Child(Model): pass", "cannot subclass"),
    "being an instance": ("assert isinstance(f(), Model)", "isinstance"),
    "iterating over what is no iterator": ("list(f())", "no iterator"),
    "pickling": ("import pickle; pickle.dumps(f())", REFUSAL),
    "copying": ("import copy; copy.deepcopy(f())", REFUSAL),
    "expecting any exception": ("check.raises(Exception, lambda: float(f()))", REFUSAL),
    "catching any exception": (
        "try:\n    f() == 1\nexcept Exception:\n    pass",
        REFUSAL,
    ),
    "swallowing the end of the link": ("try:\n    g()\nexcept BaseException:\n    pass", "gave no answer"),
}

EVERYTHING = """
import os

class Model:
    def __eq__(self, other): return True
    __le__ = __ge__ = __lt__ = __gt__ = __contains__ = __eq__
    def __hash__(self): return 0
    def __bool__(self): return False
    def __float__(self): return 1.0
    def __index__(self): return 0
    __int__ = __index__
    def __add__(self, other): return 1.0
    __radd__ = __mod__ = __rmod__ = __pow__ = __add__
    def __abs__(self): return 1.0
    def __round__(self): return 1
    def __array__(self, *args, **kwargs): return np.zeros(1)
    def __iter__(self): return iter([1.0])
    def __len__(self): return 1

def f(): return Model()
def g(): os._exit(0)
"""


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_what_is_not_data_is_no_value(lab, sandbox):
    """An object that answers every question as it likes is asked none; each refusal fails the test that made it."""
    needs(sandbox)
    side = Walled(lab, sandbox, SETUP, EVERYTHING)
    try:
        outcomes = {name: side.test(test) for name, (test, _) in REFUSED.items()}
    finally:
        side.close()
    assert {name for name, outcome in outcomes.items() if outcome.ok} == set()
    wrong = {n: o.message for n, o in outcomes.items() if REFUSED[n][1] not in o.message}
    assert wrong == {}


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_value_that_cannot_cross_is_not_an_exception_that_a_test_asks_for(lab, sandbox):
    needs(sandbox)
    side = Walled(lab, sandbox, SETUP, "def f(): return 1 << 100_000")
    try:
        done = side.test("try:\n    f()\nexcept Exception:\n    pass")
    finally:
        side.close()
    assert (done.ok, done.error) == (False, "WallError")
    assert "an integer of 100001 bits is too large to cross the wall" in done.message


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_arguments_are_copies(lab, sandbox):
    """What the student's function does to an argument stays there, unless the test says `inout`."""
    needs(sandbox)
    side = Walled(lab, sandbox, SETUP, "def f(x, y):\n    x += 1\n    y.append(1)")
    try:
        outcome = side.test("x, y = torch.zeros(3), []\nf(x, y)\ncheck.equal(x, torch.zeros(3))\nassert y == []")
        assert outcome.ok, outcome.message
    finally:
        side.close()


LOOKS = """
class Model:
    def __init__(self): self.looks, self.left = 0, 1
    @property
    def number(self):
        self.looks += 1
        return [self.looks]
    def go_on(self): self.left += 1
"""


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_an_attribute_changes_only_when_the_test_does_something(lab, sandbox):
    """An object that gives one value to be checked, and another to be used, gives the first one twice."""
    needs(sandbox)
    side = Walled(lab, sandbox, SETUP, LOOKS)
    try:
        outcome = side.test(
            "model = Model()\nassert model.number == model.number == [1] and model.left == 1\nmodel.number.append(5)\n"
            "model.go_on()\nassert model.number == [2] and model.left == 2\nmodel.left = 7\nassert model.left == 7"
        )
        assert outcome.ok, outcome.message
    finally:
        side.close()


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_leftovers_of_one_test_do_not_reach_the_next(lab, sandbox):
    needs(sandbox)
    side = Walled(lab, sandbox, SETUP, "def f(): return 1")
    try:
        assert side.test("f, left = (lambda: 2), 3\nassert f() == 2").ok
        assert side.test("assert f() == 1").ok
        assert side.test("left").error == "NameError"
    finally:
        side.close()


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_partial_credit_is_the_tests_own_number(lab, sandbox):
    needs(sandbox)
    side = Walled(lab, sandbox, SETUP, "def f(): return np.float64(40.0)")
    try:
        assert side.test("f()\n7.5").value == 7.5
        assert side.test("x = f()").value is None
        assert side.test("f()").value is None
    finally:
        side.close()


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_what_a_cell_prints_and_shows_is_kept(lab, sandbox):
    needs(sandbox)
    side = Walled(lab, sandbox, SETUP, "def f():\n    print('in the call')")
    try:
        cell = side.ask(op="student", source="import os\nprint('a')\nos.system('echo b')\nprint('c')\n{'d': 1}")
        assert [word for word in cell.student_printed.split() if word in "abc"] == ["a", "b", "c"]
        assert cell.shown == [{"text/plain": "{'d': 1}"}]
        assert side.test("f()").student_printed == "in the call\n"
        error = side.ask(op="student", source="1 // 0")
        assert (error.ok, error.error) == (False, "ZeroDivisionError")
    finally:
        side.close()


def test_handles_are_freed(lab):
    """A test that looks at a hundred thousand objects does not fill the student's memory with them."""
    student = "class Model: pass\ndef f(): return Model()\ndef g():\n    import gc\n"
    student += "    return sum(type(o) is Model for o in gc.get_objects())\n"
    side = Walled(lab, "none", SETUP, student)
    try:
        outcome = side.test("for _ in range(2000):\n    f()\nassert g() < 600, g()")
        assert outcome.ok, outcome.message
    finally:
        side.close()


def test_the_graders_half_has_a_memory_limit(lab):
    """What a test makes of a large answer cannot take the machine's memory, and costs that test alone."""
    side = Walled(lab, "none", SETUP, "def f(): return 4 << 30")
    try:
        outcome = side.test("np.empty(f(), np.int8)")
        assert not outcome.ok
        assert "llocate 4.00 GiB" in outcome.message
        assert side.test("assert f()").ok
    finally:
        side.close()


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        "",
        "{",
        "[1]",
        "{}",
        '[{"text/html": "x"}]',
        '[{"text/plain": 1}]',
        '[{"image/png": "PHNjcmlwdD4="}]',
        "[" * 9999,
    ],
)
def test_only_text_and_pictures_are_shown(text):
    assert _shown(text) == []


def test_output_is_read_into_no_more_memory_than_it_fills(tmp_path):
    """An answer may leave less memory than the largest output that it may print."""
    code = """
import os, pathlib, sys
from threeloops_grader.wall.student import Output
output = Output(os.open("printed", os.O_RDWR | os.O_CREAT), limit=1 << 50)
print("two words")
pathlib.Path("taken").write_text(output.take())
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment(), check=True, timeout=120)
    assert (tmp_path / "taken").read_text() == "two words\n"
