"""Checks that tell a reader which quantity is wrong, by how much, and what usually causes it.

`check` is used as `with check("grade_id", "what is checked"): check.close(…)`. The same lines run beside the student's
functions in JupyterLab and behind the grading wall, where an answer may be a proxy. So every comparison uses only plain
data, and nothing here catches a BaseException, which the wall uses to refuse.
"""

import copy
import re
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from threeloops.lab.answers import debrief
from threeloops.lab.checking import wall
from threeloops.lab.checking.compare import Mismatch, Tolerance, compare
from threeloops.lab.checking.failure import CheckFailed, exception_line, is_unwritten, own_frames, said
from threeloops.lab.text.plain import is_array, is_tensor
from threeloops.lab.text.wording import describe
from threeloops.lab.widgets import cards
from threeloops.lab.widgets.display import live

__all__ = ["check"]

_COARSE = 0.01


class _Block:
    """One `with check(…)` block: it counts the checks that held, and reports at its end."""

    def __init__(self, owner: "_Check", grade_id: str, title: str, part: str, hidden: str) -> None:
        self.owner = owner
        self.grade_id = grade_id
        self.title = title
        self.part = part
        self.hidden = hidden
        self.held = self.refused = 0
        self.file = ""

    def __enter__(self) -> None:
        self.held = self.refused = 0
        self.file = sys._getframe(1).f_code.co_filename
        self.owner.open.append(self)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        self.owner.open.remove(self)
        if error is not None:
            debrief.failed(self.grade_id, self.part)
        if error is not None and is_unwritten(error) and wall.connection is None and live():
            cards.unwritten(self.title, self._unwritten)  # so that an untouched lab runs to its end
            return True
        if isinstance(error, Exception) and wall.connection is None and live():
            cards.failed(*said(self._failure(error)))  # nothing is raised, so that Run All goes on past a wrong answer
            return True
        if error is not None:
            self._explain(error)
        elif not self.held:
            raise CheckFailed(
                f"{self.title}\n  this check checked nothing: no check.close, equal, true, … ran inside it"
            )
        elif self.held == self.refused:
            raise CheckFailed(
                f"{self.title}\n  only check.raises ran here, so an answer that always raises would pass: "
                "add check.accepts with arguments that are allowed"
            )
        else:
            debrief.passed(self.grade_id, self.part)
            held = "1 check" if self.held == 1 else f"{self.held:,} checks"
            cards.passed(self.title, held + (f"; grading also tries {self.hidden}" if self.hidden else ""))
        return False

    @property
    def _unwritten(self) -> str:
        return f"{self.grade_id} is not written yet: replace `raise NotImplementedError()` in its cell"

    def _failure(self, error: Exception) -> CheckFailed:
        """The failure as a card: an exception of the test's own lines is one, too."""
        try:
            self._explain(error)
        except CheckFailed as failure:
            return failure
        if isinstance(error, CheckFailed):
            return error
        return CheckFailed(f"{self.title}\n  {exception_line(error)}").with_traceback(error.__traceback__)

    def _explain(self, error: BaseException) -> None:
        """Say which check an answer's own exception interrupted, and with which input. Behind the wall the exception
        continues, and the grader's side writes the same card if the student may read it."""
        if is_unwritten(error):
            raise CheckFailed(f"{self.title}\n  {self._unwritten}") from error
        if issubclass(type(error), CheckFailed):
            return
        if wall.connection is not None:
            wall.connection.note_case(error, self.title, own_frames(error, self.file))
        elif issubclass(type(error), Exception) and (lines := own_frames(error, self.file)):
            raise CheckFailed(_card(self.title, exception_line(error), *lines)) from error
        if issubclass(type(error), Exception):
            error.add_note(f"raised while checking {self.title}")


class _Check:
    """The one object `check`: called, it opens a block; its methods also work outside of one."""

    def __init__(self) -> None:
        self.open: list[_Block] = []

    def __call__(self, grade_id: str, title: str = "", *, part: str = "", hidden: str = "") -> _Block:
        """Begin a block of checks for the exercise `grade_id`.

        `part` is the part that its test cell names (`edges` in `softmax_test_edges`). `hidden` describes the additional
        cases of its hidden tests, such as "other sizes and seeds".
        """
        if type(grade_id) is not str or not grade_id:
            raise TypeError(f"grade_id = {describe(grade_id)}: expected the id of the exercise's solution cell")
        return _Block(self, grade_id, title or grade_id, part, hidden)

    def close(
        self,
        actual: object,
        expected: object,
        *,
        rtol: float | None = None,
        atol: float = 0.0,
        unit: str = "",
        what: str = "",
        hint: str | dict[str, str] = "",
    ) -> None:
        """Check that every element is within `atol + rtol·|expected|`, judged in float64.

        Both are numbers, arrays, tensors, nested lists of numbers, or dicts, lists and records of these; shapes must
        agree exactly. `rtol` defaults to 1e-6, between two integers to 0. NaN always fails, an infinity equals only
        itself, a bool is not a number, a complex number is not a real one.

        `hint` is the usual cause. If the answer is a record, a dict may give one for each field (and one under "" for
        the others). A value of the wrong kind (a float for an integer, a tuple for a record) gets no hint.
        """
        self._hold(compare(actual, expected, Tolerance(rtol, atol), unit), what, hint)

    def equal(self, actual: object, expected: object, *, what: str = "", hint: str | dict[str, str] = "") -> None:
        """Check for the same plain data: the same kinds of container, integers where they are expected, no tolerance.

        Numbers may come from Python, numpy or torch, and an array may stand for a list of numbers; NaN equals nothing.
        """
        self._hold(compare(actual, expected, Tolerance(exact=True)), what, hint)

    def returns(
        self,
        expected: object,
        fn: Callable,
        *args: object,
        rtol: float | None = None,
        atol: float = 0.0,
        unit: str = "",
        hint: str | dict[str, str] = "",
        **kwargs: object,
    ) -> None:
        """Check that `fn(*args, **kwargs)` returns `expected`, with the tolerances of `close`. Failures show the call.

        Lists, dicts and arrays are copied, as they are behind the wall.
        """
        call = _call(fn, args, kwargs)
        try:
            actual = fn(*_copies(args), **kwargs)
        except Exception as error:
            if is_unwritten(error):
                raise
            self._fail([f"value      {call} raised {type(error).__name__}: {error}"], error)
        self.close(actual, expected, rtol=rtol, atol=atol, unit=unit, what=call, hint=hint)

    def note(self, what: str, own: float, model: float, unit: str = "") -> None:
        """Keep a number of this answer beside the model answer's, for the exercise's `debrief`."""
        if self.open:
            debrief.note(self.open[-1].grade_id, what, own, model, unit)

    def true(self, condition: object, message: str) -> None:
        """Check a condition, a bool of Python, numpy or torch. `message` says what is wrong if it is False."""
        if not _is_truth(condition):
            self._fail([message, f"the condition is {describe(condition)}: expected a bool"])
        if not condition:
            self._fail([message])
        self._count()

    def computed(self, tensors: Any, expected: Sequence[Any] | dict[str, Any], what: str) -> None:
        """Check that tensors have the expected values, or that all have the same multiple of them.

        A test of traffic, time, order or memory calls this first, on the results of the same run. So only an answer
        that does the work earns these points. A common factor, such as a sum in place of a mean, is a matter for the
        test of the values. Here it is let through, so that one slip does not cost all points of the exercise.

        Args:
            tensors: what the answer returned: a sequence, or a dict, which may hold more names than `expected`.
            expected: tensors of the same shapes, computed by the test, not all of them 0.
            what: who returned the tensors, such as "rank 0 of 2".
        """
        if isinstance(expected, dict):
            tensors = [tensors.get(name) for name in expected] if type(tensors) is dict else []
            expected = list(expected.values())
        same = len(tensors) == len(expected) and all(
            is_tensor(got) and got.shape == right.shape for got, right in zip(tensors, expected, strict=True)
        )
        if not (same and _is_multiple(tensors, expected)):
            wrong = f"{what} has computed something else, so what it sends, its time and its memory do not count"
            self._fail([wrong, "hint       see what the test of the values says"])
        self._count()

    def shape(self, tensor: Any, shape: tuple[int, ...], what: str = "") -> None:
        """Check for an array or tensor of exactly this shape."""
        actual = tuple(tensor.shape) if _is_shaped(tensor) else None
        got = describe(tensor) if actual is None else f"shape {actual}"
        wrong = Mismatch("", got, f"an array or tensor of shape {tuple(shape)}")
        self._hold(None if actual == tuple(shape) else wrong, what, "")

    def dtype(self, tensor: Any, dtype: object, what: str = "") -> None:
        """Check for an array or tensor of exactly this dtype."""
        actual = tensor.dtype if _is_shaped(tensor) else None
        got = describe(tensor) if actual is None else str(actual)
        wrong = Mismatch("", got, f"an array or tensor of {dtype}")
        self._hold(None if actual is not None and actual == dtype else wrong, what, "")

    def raises(
        self,
        exc_type: type[Exception],
        fn: Callable,
        *args: object,
        names: str | tuple[str, ...] = "",
        **kwargs: object,
    ) -> None:
        """Check that `fn(*args, **kwargs)` raises `exc_type`, with a message that contains every text in `names`.

        The bare `NotImplementedError()` of an unwritten cell never counts as the RuntimeError that it is.
        """
        if not (issubclass(type(exc_type), type) and issubclass(exc_type, Exception)):
            raise TypeError(f"exc_type = {exc_type!r}: expected a subclass of Exception")
        named = (names,) if type(names) is str else names
        about = " and ".join(repr(name) for name in named if name)
        wanted = f"expected   {exc_type.__name__}" + (f" with {about} in its message" if about else "")
        try:
            result = fn(*args, **kwargs)
        except Exception as error:
            if is_unwritten(error) and exc_type is not NotImplementedError:
                raise
            raised = error
        else:
            self._fail([f"value      {_call(fn, args, kwargs)} returned {describe(result)}", wanted])
        message = str(raised)
        got = f"value      {_call(fn, args, kwargs)} raised {type(raised).__name__}: {message}"
        if not issubclass(type(raised), exc_type):
            self._fail([got, wanted], raised)
        missing = [name for name in named if name not in message]
        if missing:
            self._fail([got, f"expected   a message that contains {' and '.join(map(repr, missing))}"], raised)
        self._count()
        if self.open:
            self.open[-1].refused += 1

    def accepts(self, fn: Callable, *args: object, **kwargs: object) -> Any:
        """Check that `fn(*args, **kwargs)` raises nothing, and return its result. A failure shows the call."""
        try:
            result = fn(*_copies(args), **kwargs)
        except Exception as error:
            if is_unwritten(error):
                raise
            frames = own_frames(error)[1:] if wall.connection is None else []
            got = f"value      {_call(fn, args, kwargs)} raised {type(error).__name__}: {error}"
            self._fail([got, *frames, "expected   a result: these arguments are allowed"], error)
        self._count()
        return result

    def rng(self, seed: int):
        """A numpy Generator: the same numbers on both sides of the wall."""
        import numpy as np

        return np.random.default_rng(seed)

    def _hold(self, wrong: Mismatch | None, what: str, hint: str | dict[str, str]) -> None:
        if wrong is None:
            self._count()
            return
        cause = "" if wrong.kind else _cause(hint, wrong.where)
        quantity = (what or "the result") + (f" at {wrong.where}" if wrong.where else "")
        lines = [
            f"quantity   {quantity}" + (f" ({wrong.spread})" if wrong.spread else ""),
            f"value      {wrong.got}",
            f"expected   {wrong.expected}",
            *([f"difference {wrong.difference}"] if wrong.difference else []),
            *([f"hint       {cause}"] if cause else []),
        ]
        self._fail(lines)

    def _count(self) -> None:
        if self.open:
            self.open[-1].held += 1

    def _fail(self, lines: list[str], cause: Exception | None = None) -> None:
        title = self.open[-1].title if self.open else "check"
        frames = own_frames(cause, self.open[-1].file if self.open else "") if cause is not None else []
        frames = [frame for frame in frames if not frame.startswith("in ")]  # the first of the lines shows the call
        if wall.connection is None:
            raise CheckFailed(_card(title, *lines, *frames)) from cause
        failure = CheckFailed(_card(title, *lines))
        wall.connection.note_case(failure, "", frames)
        raise failure from cause


def _card(title: str, *lines: str) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _is_shaped(value: object) -> bool:
    return is_tensor(value) or is_array(value)


def _is_multiple(tensors: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether all tensors are the expected ones times one factor, with an error of at most 1% of the largest value."""
    pairs = [(got.detach().double(), right.double()) for got, right in zip(tensors, expected, strict=True)]
    size = sum(float((right * right).sum()) for _, right in pairs)
    if not size > 0:
        raise ValueError(f"expected holds no value but 0 in {len(pairs)} tensors: nothing shows that it was computed")
    factor = sum(float((got * right).sum()) for got, right in pairs) / size
    allowed = _COARSE * abs(factor)
    return factor != 0 and all(
        bool(((got - factor * right).abs() <= allowed * right.abs().max()).all()) for got, right in pairs if got.numel()
    )


def _is_truth(value: Any) -> bool:
    if type(value) is bool:
        return True
    if is_array(value):
        return value.dtype.kind == "b" and value.ndim == 0
    return is_tensor(value) and str(value.dtype) == "torch.bool" and value.ndim == 0


def _cause(hint: str | dict[str, str], where: str) -> str:
    """The hint for the part that is wrong: of a dict, the one under the last field in `where`."""
    if isinstance(hint, str):
        return hint
    fields = re.findall(r"\.(\w+)", where)
    return hint.get(fields[-1] if fields else "", "") or hint.get("", "")


def _call(fn: Callable, args: tuple, kwargs: dict[str, object]) -> str:
    """The call as text; a proxy is not asked for its name."""
    arguments = [describe(a, 45) for a in args] + [f"{name}={describe(a, 45)}" for name, a in kwargs.items()]
    return f"{wall.name_of(fn)}({', '.join(arguments)})"


def _copies(args: tuple[object, ...]) -> list[object]:
    """Copy a call's arguments as the wall does, so that an answer that changes its argument changes no later check."""
    return [copy.deepcopy(a) if isinstance(a, list | dict | bytearray) or is_array(a) else a for a in args]


check = _Check()
