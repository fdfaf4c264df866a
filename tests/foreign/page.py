"""Write docs/what_runs.md from the registry: `python tests/foreign/page.py`."""

import ast
import inspect
import sys
from itertools import groupby
from pathlib import Path

from programs import Program, every_program

__all__ = ["PAGE", "source", "written"]

PAGE = Path(__file__).parents[2] / "docs/what_runs.md"

_RESULTS = ["runs", "refused by name", "refused by both"]

_HEAD = """# What runs on the virtual cluster

`Cluster(n).run(program)` runs programs that were written for `torch.distributed`. This page lists the {count} small
programs that test this, modelled on public training code. Each one runs twice, on the virtual cluster and on real
processes with gloo, and the results are compared: {exact} must agree to the bit, and {rounded} up to rounding, because
floats may be added in a different order. The other {refused} are refused, as explained below. For {costed} programs,
formulas predict the virtual time and the bytes, and the run must match them.

- **runs**: returns the same values as on gloo.
- **refused by name**: runs on gloo; the virtual cluster raises an error that names the missing feature.
- **refused by both**: gloo and the virtual cluster raise the same error.

The last column gives the oldest torch version on which that row's programs were run.

| area | program | result | torch |
|---|---|---|---|
"""

_TAIL = """
`python tests/foreign/page.py` generates this page from the programs in `tests/foreign/programs`. To add a program,
write a function there with the decorator `@program(ranks=…)`, and run that command again.
"""


def source(program: Program) -> str:
    """The text of a program's function."""
    return inspect.getsource(program.function)


def _result(program: Program) -> str:
    if not program.refused:
        return "runs"
    return "refused by name" if program.gloo_runs else "refused by both"


def _title(program: Program) -> str:
    """The first line of its module, with a link to it."""
    text = Path(inspect.getfile(program.function)).read_text()
    heading = (ast.get_docstring(ast.parse(text)) or "").splitlines()[0].rstrip(".")
    return f"[{heading}](../tests/foreign/programs/{program.area}.py)"


def written(programs: list[Program]) -> str:
    """The page: a row for the programs of one area that have the same result."""

    def row(program: Program) -> tuple[str, int, str]:
        return program.area, _RESULTS.index(_result(program)), program.since

    rows = []
    for _, found in groupby(sorted(programs, key=row), key=row):
        alike = list(found)
        ideas = "<br>".join(program.idea.rstrip(".") for program in alike)
        rows.append(f"| {_title(alike[0])} | {ideas} | {_result(alike[0])} | {alike[0].since} |\n")
    rounded = sum(bool(program.rounding) for program in programs)
    head = _HEAD.format(
        count=len(programs),
        exact=sum(_result(program) == "runs" for program in programs) - rounded,
        rounded=rounded,
        refused=sum(_result(program) != "runs" for program in programs),
        costed=sum(program.cost is not None for program in programs),
    )
    return head + "".join(rows) + _TAIL


def main() -> None:
    PAGE.write_text(written(every_program()))
    print(f"wrote {PAGE}", file=sys.stderr)


if __name__ == "__main__":
    main()
