"""The cost of judging a kernel by replay: recorded, admitted, executed under the meter in a process of its own."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.manifest import Kind, manifest
from threeloops_grader.grading.session import Session
from threeloops_grader.machine.provenance import Provenance
from threeloops_grader.sandbox.pool import Pool, choose

from benchmarks.result import Result, Series, Unmeasured

_ANSWER = """\
@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + offsets, mask=offsets < columns, other=float("-inf"))
    exponentials = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + offsets, exponentials / tl.sum(exponentials, 0), mask=offsets < columns)


def softmax(x):
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
"""
_SETUP = """\
import torch
import triton
import triton.language as tl
from threeloops.inner import interpreter
from threeloops.lab import replay

interpreter.enable_without_gpu()
"""
_SOURCE = f"""\
# %% tags=["setup"] nbgrader={{"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3}}
{_SETUP}
# %% nbgrader={{"grade": false, "grade_id": "softmax", "locked": false, "schema_version": 3, "solution": true}}
{_ANSWER}
# %% nbgrader={{"grade": true, "grade_id": "softmax_test", "points": 1, "schema_version": 3, "solution": false}}
assert replay(softmax, torch.ones(1, 1)).outputs == 1
"""
_TIMED = """\
import json, time
x = torch.rand({rows}, 1000)
for _ in range(3):
    {call}
seconds = []
for _ in range({samples}):
    started = time.perf_counter()
    {call}
    seconds.append(time.perf_counter() - started)
print(json.dumps(seconds))
"""
DIRECT, REPLAYED = "one launch over the wall, nothing judged", "replay behind the wall"
BUDGET_SECONDS = 0.2
"""The time limit of a replay of a small submission."""


def measure(about: Provenance, *, quick: bool) -> Result:
    """Replays of a row softmax beside the same kernel merely called. Raises Unmeasured, and SandboxError."""
    samples = 10 if quick else 50
    series: list[Series] = []
    with tempfile.TemporaryDirectory() as scratch:
        trusted = manifest(_lab(Path(scratch)))
        pool = Pool(trusted.lab, choose("auto"))
        try:
            with Session(trusted, pool) as session:
                _run(session, Kind.SETUP, _SETUP)
                _run(session, Kind.SOLUTION, _ANSWER)
                for rows in (4, 64):
                    what = f"softmax of {rows} rows of 1,000"
                    for by, call, peer in ((DIRECT, "softmax(x)", True), (REPLAYED, "replay(softmax, x)", False)):
                        cell = _TIMED.format(rows=rows, call=call, samples=samples)
                        printed = _run(session, Kind.TEST, cell)
                        series.append(Series(what, by, "s", tuple(json.loads(printed)), peer=peer))
        finally:
            pool.close()
    small = next(s for s in series if s.by == REPLAYED)
    facts = {"budget_seconds": BUDGET_SECONDS, "within_budget": small.median <= BUDGET_SECONDS}
    return Result("replay", about, {"samples": samples, "columns": 1000}, series, facts)


def _run(session: Session, kind: Kind, source: str) -> str:
    outcome = session.cell(kind, source, _ANSWER)
    if not outcome.ok:
        raise Unmeasured(f"the benchmark's own cell failed: {outcome.reason}")
    return outcome.printed


def _lab(root: Path) -> Lab:
    lab = Lab("90_replay", root)
    lab.folder.mkdir(parents=True)
    lab.source.write_text(_SOURCE, encoding="utf-8")
    return lab
