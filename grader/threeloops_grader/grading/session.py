"""Grade one submission, cell by cell: with time limits and restarts, and always with a verdict for every test cell.

A test cell earns its points only if its code ran to the end on the grader's side. A crash, a timeout or a lost process
costs that cell its points. Then the earlier cells run again in a fresh pair of processes, and the next cell is graded.
A fault that no submission can cause is not a verdict: a `MachineFault` ends the session.
"""

import time
from typing import Any, Self

from nbformat import NotebookNode

from threeloops_grader.authoring.labs import LabLimits
from threeloops_grader.authoring.manifest import SETUPS, Kind, Manifest, split_test_id
from threeloops_grader.machine.faults import NO_MEMORY, MachineFault
from threeloops_grader.sandbox.pool import Connection, Pool
from threeloops_grader.submissions.answer_cells import answer_of
from threeloops_grader.transport.link import FrameLink, LinkDead, WallError
from threeloops_grader.wall.outcome import Outcome

__all__ = ["Session"]

_ANSWER_GRACE_SECONDS = 10.0
_OUT_OF_MEMORY = f"this machine may be out of memory: {NO_MEMORY}"
_TIME_UP = "SIGALRM"
_CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE")
"""How values from an answer can make the grader's half end. A submission cannot cause any other signal."""


class Session:
    """Runs the cells of one rebuilt submission; use as a context manager."""

    def __init__(self, trusted: Manifest, pool: Pool, limits: LabLimits | None = None, jobs: int = 1) -> None:
        self.manifest = trusted
        self.pool = pool
        self.jobs = jobs
        self.limits = limits or trusted.lab.limits
        self.deadline = time.monotonic() + self.limits.notebook_seconds
        self.restarts_left = len(trusted.parts) + 2
        self.history: list[tuple[Kind, str]] = []
        self.answers: dict[str, str] = {}
        self.ran_own_code = False
        self.connection: Connection | None = pool.connect(self.limits, jobs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._hang_up()

    def run(self, cell: NotebookNode) -> Outcome:
        """Execute the next setup, solution, free or test cell of the notebook."""
        kind = self.manifest.kind(cell)
        if kind is Kind.SOLUTION:
            self.answers[cell.id] = cell.source
        elif kind is Kind.FREE and (answer := answer_of(cell.id)) in self.answers:
            self.answers[answer] += f"\n\n{cell.source}"
        return self.cell(kind, cell.source, self.answers.get(split_test_id(cell.id)[0], ""))

    def cell(self, kind: Kind, source: str, answer: str = "") -> Outcome:
        """Execute one cell on the side where its kind belongs. `answer` is the text of the solution that is tested."""
        if time.monotonic() > self.deadline:
            return _lost(f"the notebook used up its {self.limits.notebook_seconds:g} s")
        if self.connection is None:
            return _lost("the submission's process died too often")
        outcome = self._execute(kind, source, answer)
        if outcome.dead or outcome.full:
            self._restart()
            if kind in SETUPS:  # the cause has already cost points, and later exercises need this cell
                return self.cell(kind, source)
        elif kind is not Kind.TEST:
            self.history.append((kind, source))
        return outcome

    def _execute(self, kind: Kind, source: str, answer: str = "") -> Outcome:
        if kind is Kind.TEST:
            names = list(self.manifest.exports)
            return self._ask(self.limits.test_seconds, op="test", source=source, names=names, answer=answer)
        if kind in SETUPS:
            return self._set_up(kind, source)
        self.ran_own_code = True
        return self._ask(self.limits.cell_seconds, op="student", source=source, setup=False)

    def _set_up(self, kind: Kind, source: str) -> Outcome:
        """Run a setup cell on both sides, or an oracle on the grader's side.

        The cell belongs to the lab. If it fails before any of the student's code has run, it would fail for everybody,
        so nobody is graded. If it fails later, values that earlier answers returned may have filled the memory of the
        grader's side. Then it is the machine's fault only if the cell also fails alone."""
        limit = self.limits.cell_seconds
        fresh = not self.ran_own_code
        if kind is Kind.SETUP:
            outcome = self._ask(limit, op="student", source=source, setup=True)
        else:
            outcome = Outcome(ok=True)
        if fresh and not outcome.ok:
            raise MachineFault(_broken_setup("student's", outcome))
        if outcome.dead:
            return outcome
        here = self._ask(limit, op=kind.value, source=source)
        if here.ok:
            return outcome
        if time.monotonic() < self.deadline:  # otherwise the student's own cells used up the time
            if fresh:
                raise MachineFault(_broken_setup("grader's", here))
            with Session(self.manifest, self.pool, self.limits, self.jobs) as alone:  # raises where setup fails alone
                for cell_kind, text in [*(cell for cell in self.history if cell[0] in SETUPS), (kind, source)]:
                    alone.cell(cell_kind, text)
        return _lost(f"a setup cell failed after the submission's own code had run: {here.reason}", dead=True)

    def _ask(self, seconds: float, **request: Any) -> Outcome:
        """Have the grader's half run a cell. Raises MachineFault if it fails and no submission can be the cause."""
        assert self.connection is not None
        seconds = min(seconds, max(0.1, self.deadline - time.monotonic()))
        grader = self.connection.grader
        started = time.monotonic()
        grader.deadline = started + seconds + _ANSWER_GRACE_SECONDS
        try:
            outcome = Outcome(**_exchanged(grader, {**request, "seconds": seconds}))
        except LinkDead as gone:
            outcome = Outcome(ended=_TIME_UP if time.monotonic() > started + seconds else str(gone))
        except WallError:
            length = len(request["source"]) + len(request.get("answer", ""))
            return _lost(f"the cell, with the answer that it tests, has {length:,} characters: too long to execute")
        if outcome.ended:
            return _half_ended(outcome.ended, seconds, own_code=self.ran_own_code)
        if outcome.fault:
            fault = f"a test cell met a fault of this machine ({outcome.fault})"
            raise MachineFault(f"{fault}; `threeloops doctor` looks at it")
        if outcome.dead:
            self._explain(outcome, seconds)
        return outcome

    def _explain(self, outcome: Outcome, seconds: float) -> None:
        """Write into an outcome why the submission's process is dead."""
        assert self.connection is not None
        why = self.connection.reason()
        if why is None and self.pool.sandbox != "none":  # without a sandbox, a submission can end its own monitor
            raise MachineFault(f"a submission's monitor was ended from outside; {_OUT_OF_MEMORY}")
        late = f"it did not answer within {seconds:g} s" if "in time" in outcome.dead else outcome.dead
        outcome.ok = False
        outcome.error = "NoAnswer"
        outcome.message = f"the submission's process was lost: {why or late}"

    def _restart(self) -> None:
        """Start fresh processes and run the cells that worked again. A cell that kills them again is dropped from the
        history."""
        while True:
            self._hang_up()
            if self.restarts_left == 0 or time.monotonic() > self.deadline:
                return
            self.restarts_left -= 1
            self.connection = self.pool.connect(self.limits, self.jobs)
            fatal = (at for at, (kind, source) in enumerate(self.history) if self._execute(kind, source).dead)
            if (at := next(fatal, None)) is None:
                return
            del self.history[at]

    def _hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def _exchanged(link: FrameLink, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request. If the half was gone before the request arrived, return how it ended."""
    try:
        link.send(request)
    except LinkDead:
        if word := link.last_word():
            return word[0]
        raise
    return link.receive()[0]


def _half_ended(how: str, seconds: float, *, own_code: bool) -> Outcome:
    """Return the outcome of a cell if the grader's half ended before it answered. `own_code` says that student code has
    run, so the half may have crashed on data from the student's process."""
    if how == _TIME_UP:
        return _lost(f"the test did not end within {seconds:g} s", dead=True)
    if how in _CRASHES and own_code:
        return _lost(f"the test's process crashed ({how}) on what the answer gave it", dead=True)
    raise MachineFault(f"the process that runs the tests was lost ({how}); {_OUT_OF_MEMORY}")


def _broken_setup(side: str, outcome: Outcome) -> str:
    return (
        f"a setup cell of the lab failed on the {side} side, before any code of the student's: {outcome.reason}. "
        "`threeloops doctor` looks at the machine and the library"
    )


def _lost(message: str, *, dead: bool = False) -> Outcome:
    return Outcome(ok=False, error="NoAnswer", message=message, dead=message if dead else "")
