"""The benchmarks measure what they say: a fair class, every sample kept, nobody's machine named."""

import io
import json
import math
import os
import re
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.machine.child_process import CODE, environment
from threeloops_grader.machine.provenance import provenance
from threeloops_grader.sandbox import bwrap
from threeloops_grader.submissions.rebuild import rebuild
from toy_course import make_course

from benchmarks import grading
from benchmarks.classroom import MIX, Student, classroom
from benchmarks.grading import HARNESSES, grade_lab, require_fair
from benchmarks.harnesses import OURS, STOCK, Bench, HarnessFailed, Run
from benchmarks.process_tree import TookTooLong, Usage, run_measured
from benchmarks.result import Prediction, Result, Series, a_row_a_line, readable
from benchmarks.tables import Lines
from benchmarks.wall import KERNEL, WALL, Effort, wall_costs

needs_sandbox = pytest.mark.skipif(bool(bwrap.why_not()), reason=f"the sandbox does not work here: {bwrap.why_not()}")


@pytest.fixture(scope="module")
def about():
    from threeloops.hardware.capability import probe

    return provenance(probe(), "cpu")


@pytest.fixture
def lab(tmp_path):
    return make_course(tmp_path)


def test_a_class_is_mixed_and_each_student_has_earned_a_known_score(lab):
    students = list(classroom(lab, lab.master(), 20))
    assert {s.kind for s in students} == set(MIX)
    assert len({s.name for s in students}) == 20
    score = {"honest": {100.0}, "untouched": {0.0}, "half-done": {40.0}, "crashing": {60.0}, "wrong": {40.0, 60.0}}
    for student in students:
        assert student.score in score[student.kind], student
    assert len({s.score for s in students if s.kind == "wrong"}) == 2, "every wrong answer is of the same exercise"


def test_a_class_is_the_same_every_time(lab):
    first, second = (list(classroom(lab, lab.master(), 10)) for _ in range(2))
    assert first == second


def test_an_honest_student_answers_everything_and_an_untouched_one_nothing(lab):
    trusted = manifest(lab)
    released = lab.master()
    for cell in released.cells:
        if cell.id in ("mean", "rescale"):
            cell.source = "raise NotImplementedError()"
    for student in classroom(lab, released, 10):
        cells = {c.id: c.source for c in rebuild(student.notebook, trusted).notebook.cells}
        answered = [name for name in ("mean", "rescale") if "NotImplementedError" not in cells[name]]
        expected = {"untouched": [], "half-done": ["mean"]}.get(student.kind, ["mean", "rescale"])
        assert answered == expected, student.kind


@needs_sandbox
@pytest.mark.parametrize("harnesses", [(STOCK, OURS), pytest.param(HARNESSES, marks=pytest.mark.slow)])
def test_the_grading_benchmark_of_a_toy_class_of_two(lab, about, harnesses):
    series, facts = grade_lab(lab, 2, 1, harnesses)
    written = json.loads(json.dumps(Result("grading", about, {"class": 2}, series, {lab.slug: facts}).to_dict()))

    assert written.keys() == {"benchmark", "provenance", "settings", "series", "predictions", "notes", "facts"}
    wall = {s["by"]: s for s in written["series"] if s["what"].endswith("wall time")}
    assert wall.keys() == set(harnesses)
    assert wall[STOCK]["peer"] and "times_better" not in wall[STOCK]
    assert wall[OURS]["times_better"] == pytest.approx(wall[STOCK]["median"] / wall[OURS]["median"])
    assert wall[OURS]["peer_name"] == STOCK
    for row in written["series"]:
        assert len(row["samples"]) == 1 and row["samples"][0] > 0
    memory = [s for s in written["series"] if "peak memory" in s["what"]]
    assert all(s["samples"][0] > 30 << 20 for s in memory), "a Python with nbgrader takes more than 30 MiB"

    found = written["facts"][lab.slug]
    earned = {s["name"]: s["earned"] for s in found["students"]}
    assert all(found["scores"][harness] == earned for harness in harnesses), "the toy class is easy for everyone"
    assert len(found["own_computing_seconds"]) == 2
    assert all(0 < share < 1 for shares in found["own_computing_share"].values() for share in shares)

    text = json.dumps(written)
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
    assert str(CODE) not in text and str(lab.root) not in text


WORDS = ("torch.optim.AdamW(foreach=False),", "resident,", "block_sparse_attention_with_gradients")


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("columns", [1, 3, 8])
def test_a_table_breaks_no_word_and_no_number_at_80_columns_or_in_a_pipe(width, columns):
    names = tuple(f"quantity {number}" for number in range(columns))
    made = Lines("a title", names)
    cells = tuple(f"{number}.5 … 1,{number}00 GB/s" for number in range(columns))
    made.rows += [("what it is about", " ".join(WORDS), cells), ("what it is about", WORDS[2], cells)]
    pipe = io.StringIO()
    Console(file=pipe, width=width).print(made)
    lines = [line.rstrip() for line in pipe.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    assert all(any(word in line.split() for line in lines) for word in WORDS), lines
    for text in (*names, *cells):
        assert any(text in line for line in lines), text
    assert lines.count("what it is about") == 1


def test_a_table_without_rows_has_its_title():
    pipe = io.StringIO()
    Console(file=pipe, width=80).print(Lines("nothing was timed", ("median",)))
    assert pipe.getvalue().splitlines()[0].strip() == "nothing was timed"


def test_numbers_are_printed_as_a_person_would():
    found = [readable(value, "s") for value in (1148.3, 0.99951, 0.0005, 123456, 1)]
    assert found == ["1,148 s", "1,000 ms", "500 µs", "123,456 s", "1 s"]
    assert readable(0, "tokens") == "0 tokens"


def test_predictions_stand_in_one_table_a_line_for_each_party(about):
    rows = [
        Prediction("peak", "small", "tracker", "bytes", 100.0, 97.0),
        Prediction("peak", "large", "tracker", "bytes", 200.0, 202.0),
        Prediction("peak", "small", "allocator", "bytes", 100.0, 100.0),
    ]
    result = Result("memory", about, {}, [], predictions=rows, notes=["nothing else was looked at"])
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(result.tables())
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["tracker", "2", "-3.0%", "…", "+1.0%"] in lines
    assert ["allocator", "1", "+0.0%"] in lines
    assert lines.count(["peak"]) == 1, "what both lines are about stands once, above them"
    assert lines[-1] == ["nothing", "else", "was", "looked", "at"]
    assert [row["difference"] for row in result.to_dict()["predictions"]] == pytest.approx([-0.03, 0.01, 0.0])


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=12,
    )
)
def test_json_with_a_row_a_line_is_the_same_json(value):
    assert json.loads(a_row_a_line(value)) == value


def test_a_record_stands_on_one_line():
    text = a_row_a_line(
        {"rows": [{"a": 1, "samples": [1.0, 2.0]}, {"a": 2, "samples": []}], "settings": {"quick": True}}
    )
    assert text.splitlines() == [
        "{",
        ' "rows": [',
        '  {"a": 1, "samples": [1.0, 2.0]},',
        '  {"a": 2, "samples": []}',
        " ],",
        ' "settings": {"quick": true}',
        "}",
    ]


def test_a_harness_that_gives_unearned_points_is_not_compared(lab, tmp_path):
    bench = Bench(lab, [Student("a", "honest", lab.master(), 60.0)], {}, {})
    usage = Usage(1.0, 1, 1, 0)
    require_fair(bench, OURS, Run(usage, {"a": 60.0}))
    with pytest.raises(HarnessFailed, match="gives a 100 points, and 60 were earned"):
        require_fair(bench, OURS, Run(usage, {"a": 100.0}))
    with pytest.raises(HarnessFailed, match="left a ungraded"):
        require_fair(bench, STOCK, Run(usage, {}))
    require_fair(bench, STOCK, Run(usage, {"a": 100.0}))


def test_without_a_sandbox_the_grading_benchmark_refuses(monkeypatch, lab, about):
    monkeypatch.setattr(grading, "why_not", lambda: "bubblewrap is not installed")
    with pytest.raises(bwrap.SandboxError, match="sandbox on"):
        grading.measure(about, [lab], size=2, repeats=1)


@needs_sandbox
def test_the_cost_of_the_wall_has_a_peer_for_each_thing_that_has_one():
    found = wall_costs("bwrap", Effort(starts=1, forks=2, cells=3, calls=5, large=2))
    by_what = {}
    for series in found:
        assert series.samples and all(s > 0 and math.isfinite(s) for s in series.samples)
        by_what.setdefault(series.what, {})[series.by] = series
    assert all(WALL in parties for parties in by_what.values())
    assert all(len(parties) == 2 for what, parties in by_what.items() if "next submission" not in what)
    cold = by_what["cold start to the first answer, torch imported"]
    assert KERNEL in cold and len(cold[WALL].samples) == 1
    assert len(by_what["one empty test cell"][WALL].samples) == 3
    assert len(by_what["one call"][WALL].samples) == 5


def test_rates_count_upwards_and_times_downwards():
    slow, fast = Series("t", "peer", "s", (4.0, 2.0, 9.0), peer=True), Series("t", "ours", "s", (1.0, 2.0, 1.0))
    assert slow.median == 4.0 and fast.times_better(slow) == 4.0
    low, high = (Series("r", "x", "FLOP/s", (v,), "higher") for v in (1e9, 3e9))
    assert high.times_better(low) == 3.0


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.00052, "s", "520 µs"), (2.5, "s", "2.5 s"), (231.4, "s", "231 s"), (3 << 29, "bytes", "1.5 GiB")],
)
def test_numbers_are_written_for_people(value, unit, text):
    assert readable(value, unit) == text


def test_memory_is_that_of_the_whole_process_tree(tmp_path):
    """Two grandchildren hold 64 MiB each, and both are alive for 1.5 s from the moment when the second one holds it."""
    source = """
import os, time
holding, held = os.pipe()
ending, end = os.pipe()
if os.fork() == 0 or os.fork() == 0:
    os.close(end)
    memory = bytearray(os.urandom(1 << 20) * 64)
    os.write(held, b"1")
    os.read(ending, 1)
    os._exit(0)
os.read(holding, 1), os.read(holding, 1)
time.sleep(1.5)
os.close(end)
os.wait(), os.wait()
"""
    usage = run_measured([sys.executable, "-c", source], tmp_path, environment(), tmp_path / "log", 60)
    assert usage.returncode == 0 and usage.seconds > 1.0
    assert usage.peak_resident_bytes > 128 << 20


def test_a_run_that_does_not_end_is_ended(tmp_path):
    with pytest.raises(TookTooLong, match="within 1 s"):
        run_measured(
            [sys.executable, "-c", "import time; time.sleep(600)"], tmp_path, environment(), tmp_path / "log", 1
        )


def test_the_list_of_benchmarks_needs_no_measuring():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks"], cwd=CODE, capture_output=True, text=True, timeout=600, check=True,
        env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    assert "grading" in done.stdout and "roofline" in done.stdout
