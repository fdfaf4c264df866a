"""Load every state that a crash may leave. Each load must give the complete old value or the complete new one."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from threeloops.training.checkpoint.crash.model.operations import Record, Saved
from threeloops.training.checkpoint.crash.model.rules import POSIX, Rules
from threeloops.training.checkpoint.crash.model.states import Files, State, crash_states, files_after

__all__ = ["BadState", "Judgement", "Report", "check", "loaded", "write_files"]

Judgement = Literal["old", "new", "lost", "broken"]
"""The result of a load: the value of the last save that returned ("old"); the next value ("new"); an earlier value, so
that a save that returned was lost; or an error or a value that was never saved ("broken")."""


@dataclass(frozen=True)
class BadState:
    """A state in which a load failed, and the result of that load."""

    state: State
    verdict: Judgement
    what: str

    def __str__(self) -> str:
        return f"{self.what}\n    {self.state.story}\n    {self.state.cause}"


@dataclass
class Report:
    """The result for all states of a record. Bad states are listed with the fewest losses first."""

    rules: Rules
    states: int
    all_of_them: bool
    """Whether every state was tried, or only corners and a sample (see `crash_states`)."""
    by_point: dict[int, Counter[Judgement]] = field(repr=False)
    bad: list[BadState]

    @property
    def ok(self) -> bool:
        return not self.bad

    def count(self, verdict: Judgement) -> int:
        return sum(verdicts[verdict] for verdicts in self.by_point.values())

    def __str__(self) -> str:
        which = "all" if self.all_of_them else "corners and a sample"
        head = f"{self.states} states under {self.rules.name} rules ({which}): " + ", ".join(
            f"{number} {verdict}" for verdict in ("old", "new", "lost", "broken") if (number := self.count(verdict))
        )
        return "\n".join([head, *(f"  {finding}" for finding in self.bad[:3])])


def check(
    record: Record,
    load: Callable[[Path], Any],
    rules: Rules = POSIX,
    *,
    values: Sequence[Any] | None = None,
    same: Callable[[Any, Any], bool] | None = None,
    most: int = 4096,
) -> Report:
    """Load each state that a crash during the record may leave, in a folder of its own.

    A load may return anything. If nothing was saved before, it may also return None or raise an error, and errors of
    the same type count as the same value. The legal values are those that `load` gives before the record and after each
    save that returned. Once the next save has begun, its value is legal too, and the value before the last one is not.

    Args:
        values: the saved values, beginning with the one before the record, if loading cannot find them. For example, a
            save that raised never returned, but its value may still be there.
        same: compares two values. By default ==, and tensors and arrays element by element.
        most: states right before each fsync, see `crash_states`.

    Raises:
        BadRecord: an operation of the record is impossible.
        ValueError: the save left something that cannot be loaded even without a crash, or saved the value that was
            there.
    """
    same = same or _same_value
    with tempfile.TemporaryDirectory(dir=_memory()) as scratch:
        loads = _Loads(load, Path(scratch), same)
        saved = loads.values(record) if values is None else [("value", value) for value in values]
        for (i, earlier), (number, value) in combinations(enumerate(saved), 2):
            if _equal(earlier, value, same):
                where = f"that save {i} had saved" if i else "that was there before all saves"
                raise ValueError(
                    f"save {number} saved the value {where}: expected another, so that what is loaded tells which save "
                    "it is of"
                )
        crashes = crash_states(record, rules, most=most)
        by_point: dict[int, Counter[Judgement]] = {}
        bad = []
        for state in crashes.states:
            verdict, what = loads.judge(state, saved)
            by_point.setdefault(state.point, Counter())[verdict] += 1
            if verdict in ("lost", "broken"):
                bad.append(BadState(state, verdict, what))
    bad.sort(key=lambda finding: (len(finding.state.losses), finding.state.point))
    return Report(rules, len(crashes.states), crashes.all_of_them, by_point, bad)


_Outcome = tuple[str, Any]
"""("value", the returned value), or ("error", the exception)."""


class _Loads:
    """Loads folders, each once, and keeps of each only which of the known values it holds."""

    def __init__(self, function: Callable[[Path], Any], scratch: Path, same: Callable[[Any, Any], bool]) -> None:
        self.function = function
        self.scratch = scratch
        self.same = same
        self._known: dict[Hashable, tuple[list[int], str]] = {}

    def load(self, files: Files) -> _Outcome:
        folder = self.scratch / "folder"
        write_files(folder, files)
        try:
            return "value", self.function(folder)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # torch's CheckpointException is no Exception
            return "error", error.with_traceback(None)
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # a load may have removed it

    def values(self, record: Record) -> list[_Outcome]:
        """Return the values before the record and after each save that returned, without a crash."""
        outcomes = [self.load(files_after(record, 0))]
        for i, operation in enumerate(record.operations):
            if isinstance(operation, Saved):
                kind, value = self.load(files_after(record, i))
                if kind == "error":
                    raise ValueError(
                        f"what save {len(outcomes)} left cannot be loaded, without any crash: "
                        f"{type(value).__name__}: {value}. Fix save or load first"
                    ) from value
                outcomes.append((kind, value))
        return outcomes

    def judge(self, state: State, saved: list[_Outcome]) -> tuple[Judgement, str]:
        if (key := state.key) not in self._known:
            kind, value = outcome = self.load(state.files)
            places = [i for i, legal in enumerate(saved) if _equal(outcome, legal, self.same)]
            error = f"load raised {type(value).__name__}: {str(value)[:200]}" if kind == "error" else ""
            self._known[key] = places, error
        places, error = self._known[key]
        if state.saves in places:
            return "old", ""
        if state.saves + 1 in places:
            return "new", ""
        if any(i < state.saves for i in places):
            return "lost", f"save {state.saves} had returned, and {error or 'the value of before it was loaded'}"
        return "broken", error or "load returned a value that was never saved"


def _equal(one: _Outcome, other: _Outcome, same: Callable) -> bool:
    if one[0] != other[0]:
        return False
    return type(one[1]) is type(other[1]) if one[0] == "error" else same(one[1], other[1])


def _same_value(one: Any, other: Any) -> bool:
    """Equal, through dictionaries and lists; tensors and arrays in type, shape and every element."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same_value(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same_value, one, other))
    if hasattr(one, "dtype") and hasattr(one, "shape"):
        module = sys.modules["torch" if type(one).__module__.startswith("torch") else "numpy"]
        equal = getattr(module, "equal" if module.__name__ == "torch" else "array_equal")
        return one.dtype == other.dtype and one.shape == other.shape and bool(equal(one, other))
    return bool(one == other)


def loaded(load: Callable[[Path], Any], files: Files) -> Any:
    """Return the value that `load` gives for a folder with a state's files, or the exception that it raises."""
    with tempfile.TemporaryDirectory(dir=_memory()) as scratch:
        return _Loads(load, Path(scratch), _same_value).load(files)[1]


def write_files(folder: str | os.PathLike[str], files: Files) -> None:
    """Make a folder that holds a state's files."""
    os.makedirs(folder)
    for path in sorted(files):
        content = files[path]
        full = os.path.join(folder, path)
        if content is None:
            os.mkdir(full)
        elif isinstance(content, str):
            os.symlink(content, full)
        else:
            with open(full, "wb", buffering=0) as file:
                file.write(content)


def _memory() -> str | None:
    """Return the folder where files are created fastest."""
    with contextlib.suppress(OSError):
        if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 1 << 28:
            return "/dev/shm"
    return None
