"""A site of two small notebooks, and Chromium."""

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("browser_conftest", ROOT / "tests/browser/conftest.py")
_browser = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_browser)
chromium = _browser.chromium

CELLS = """
# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.lab import animate, debrief, explore, figure, reveal, show


def draw(n, kind):
    fig, axes = figure(width=7, height=2)
    axes.plot(range(n), label=kind)
    axes.set_title(f"{kind} with {n} points")
    return fig


explore(draw, n=(1, 6, 1, 3), kind=["ring", "tree"])
animate(lambda n: draw(n, "ring"), [1, 2, 3], caption="a line that grows", still=1)
predict("sum", "What is the sum?", "GB")
predict("who", "Who wins?", options=("ring", "tree"))
with reveal("sum"):
    print("the sum is printed")
show.against_prediction("sum", 8.0, source="model")
show.against_prediction("who", "ring", source="model")
debrief("mean", "Because it is the middle.")
"""
DIVES = """
# %% [markdown]
# # More of it
#
# Read [the glossary](../glossary.md).

# %% tags=["demo"]
from threeloops.lab import show

show.table([["a", 1], ["b", 2]], ["name", "value"])
"""


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the pages, with all documents and the pages of a toy lab."""
    pytest.importorskip("sphinx") if not os.environ.get("THREELOOPS_CI") else None
    from threeloops_grader.course.execute import execute_solution, seconds_to_record
    from threeloops_grader.release.release import release
    from threeloops_grader.site.build import build
    from toy_course import SOURCE, add_dives, make_course

    folder = tmp_path_factory.mktemp("site")
    lab = make_course(folder, SOURCE + CELLS)
    header = SOURCE.partition("\n# %%")[0].rstrip()
    add_dives(lab, f"{header}\n{DIVES}")
    release([lab])
    reports = folder / "reports"
    for notebook in lab.notebooks:
        done = execute_solution(notebook, "cpu", reports / "executed" / lab.slug, record=seconds_to_record())
        assert not done.error, done.error
    (reports / "claims.md").write_text("# Claims\n\nNone.\n")
    (reports / "site").mkdir()
    (reports / "site/notes.txt").write_text("somebody's")
    build([lab], reports / "executed", reports / "site")
    return reports / "site/html"
