"""The cells of a student and of a test, in one namespace or on both sides of the wall."""

import textwrap
import time
from contextlib import contextmanager

import pytest
from grading import SANDBOXES, fresh_course, needs
from threeloops.lab.checking import wall
from threeloops_grader.authoring.labs import LabLimits
from threeloops_grader.sandbox.pool import pool
from threeloops_grader.transport.link import FrameLink
from threeloops_grader.wall.outcome import Outcome
from toy_course import make_course


def course_fixture(make=make_course):
    """Return the fixture `lab` of a module: a toy lab that all its tests share."""

    @pytest.fixture(scope="module")
    def lab(tmp_path_factory):
        with fresh_course(tmp_path_factory.mktemp("wall"), make) as lab:
            yield lab

    return lab


def sides_fixture(setup):
    """Return the fixture `run` of a module: `sides` with this setup cell, first direct and then in each sandbox."""

    @pytest.fixture(params=("direct", *SANDBOXES))
    def run(request, lab):
        with sides(lab, request.param, setup) as run:
            yield run

    return run


@contextmanager
def sides(lab, where, setup):
    """Yield `run(student, *tests)`, which returns the outcome of each test cell: "direct", or in a sandbox."""
    opened = []

    def run(student, *tests):
        if where != "direct":
            needs(where)
        student = textwrap.dedent(student)
        side = Direct(setup, student) if where == "direct" else Walled(lab, where, setup, student)
        opened.append(side)
        outcomes = [side.test(textwrap.dedent(test)) for test in tests]
        return outcomes if len(outcomes) > 1 else outcomes[0]

    try:
        yield run
    finally:
        for side in opened:
            side.close()


class Direct:
    """The cells in one namespace, as in JupyterLab."""

    def __init__(self, setup, student):
        self.namespace = {"__name__": "__main__"}
        exec(setup, self.namespace)
        exec(student, self.namespace)

    def test(self, source):
        assert wall.connection is None
        result = Outcome()
        try:
            exec(source, dict(self.namespace))
            result.ok = True
        except Exception as error:
            result.error, result.message = type(error).__name__, str(error)
        return result

    def close(self):
        pass


class Walled:
    """The same cells, each on the side where it belongs."""

    def __init__(self, lab, sandbox, setup, student):
        self.names = [n for n in ("f", "g", "Model", "CONSTANT") if n in student]
        self.connection = pool(lab, sandbox).connect(LabLimits(memory_mb=1024))
        for op, source, is_setup in (("student", setup, True), ("setup", setup, False), ("student", student, False)):
            done = self.ask(op=op, source=source, setup=is_setup)
            assert done.ok, done

    def ask(self, **request):
        link: FrameLink = self.connection.grader
        link.deadline = time.monotonic() + 600
        link.send({"seconds": 300.0, **request})
        return Outcome(**link.receive()[0])

    def test(self, source):
        return self.ask(op="test", source=source, names=self.names)

    def close(self):
        self.connection.close()
