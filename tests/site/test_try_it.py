"""Exercises in the page: which ones, with which files, and in Chromium with a real Pyodide if there is one.

`$THREELOOPS_PYODIDE` names a folder with Pyodide and its NumPy (`pyodide.js`, `pyodide.asm.js`, `pyodide.asm.wasm`,
`pyodide-lock.json`, `python_stdlib.zip` and the wheel of NumPy). Without it the one test that needs them is skipped.
"""

import functools
import http.server
import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import nbformat
import pytest
from threeloops_grader.authoring.labs import find_lab
from threeloops_grader.course.execute import execute_solution
from threeloops_grader.release.release import release
from threeloops_grader.site.build import build
from threeloops_grader.site.in_browser import bundle
from toy_course import SOURCE, make_course

PAGE = "labs/90_toy/90_toy.html"
PYODIDE = os.environ.get("THREELOOPS_PYODIDE", "")
RIGHT = "def mean(values):\n    return sum(values) / len(values)\n"


def check(packed, folder, answers, exercise):
    """Check in a folder of the bundle's files, with nothing else of the library."""
    zipfile.ZipFile(io.BytesIO(packed)).extractall(folder)
    script = f"import try_it, json; print(json.dumps(try_it._check({answers!r}, {exercise!r})))"
    environment = {**os.environ, "PYTHONPATH": str(folder), "THREELOOPS_HOME": str(folder / "home")}
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = make_course(tmp_path_factory.mktemp("try"), SOURCE.replace("import nbformat\n", ""))
    release([lab])
    return lab


def test_a_bundle_has_the_exercises_and_only_the_files_that_they_need(lab, tmp_path):
    exercises, packed = bundle(lab)
    assert exercises == ["mean", "rescale"]
    names = zipfile.ZipFile(io.BytesIO(packed)).namelist()
    assert {"lab.json", "try_it.py", "data/samples.txt", "threeloops/lab/checking/check.py"} <= set(names)
    assert len(packed) < 200_000 and len(names) == len(set(names))
    text = "".join(zipfile.ZipFile(io.BytesIO(packed)).read(name).decode() for name in ("lab.json", "data/samples.txt"))
    assert "BEGIN" not in text and "a median is not a mean" not in text, "answers and hidden tests stay here"
    passed, printed = check(packed, tmp_path, {"mean": RIGHT}, "mean")
    assert passed and printed == "✓ the mean of a list (1 check)"


@pytest.mark.parametrize(
    ("answers", "exercise", "said"),
    [
        ({}, "mean", "mean is not written yet"),
        ({"mean": "def mean(values):\n    return sum(values)\n"}, "mean", "the sum was not divided by the count"),
        ({"mean": "def mean(values)\n    return 3\n"}, "mean", "SyntaxError: expected ':'"),
        ({"mean": "def mean(values):\n    return values[9]\n"}, "mean", "IndexError: list index out of range"),
        ({"mean": "import torch_of_nobody\n"}, "mean", "line 1 of your cell: import torch_of_nobody"),
        ({"mean": "half ("}, "rescale", "rescale is not written yet"),
    ],
)
def test_a_failure_says_what_is_wrong(lab, tmp_path, answers, exercise, said):
    passed, printed = check(bundle(lab)[1], tmp_path, answers, exercise)
    assert not passed and said in printed


def test_a_lab_that_needs_more_than_numpy_has_no_exercises_in_the_page(tmp_path):
    lab = make_course(tmp_path, SOURCE)
    release([lab])
    assert bundle(lab)[0] == []


def test_the_labs_of_the_page_are_those_that_need_only_numpy():
    assert len(bundle(find_lab("00"))[0]) == 7
    assert bundle(find_lab("03"))[0] == []


class _Server(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture(scope="module")
def served(lab):
    """Builds the site with Pyodide in the given place, and returns its address on loopback."""
    servers = []

    def serve(pyodide):
        reports = lab.root / "reports"
        if not (reports / "executed").is_dir():
            done = execute_solution(lab, "cpu", reports / "executed" / lab.slug)
            assert not done.error, done.error
            (reports / "claims.md").write_text("# Claims\n\nNone.\n")
        build([lab], reports / "executed", reports / "site", api=False, pyodide=pyodide)
        handler = functools.partial(_Server, directory=reports / "site/html")
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.browser
def test_without_pyodide_the_page_says_how_to_run_the_exercise(chromium, served):
    page = chromium.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{served('nowhere')}/{PAGE}")
    box = page.locator(".tl-try").first
    assert "without an installation" in box.text_content()
    assert not [url for url in asked if "worker" in url or "nowhere" in url or ".zip" in url]
    box.get_by_role("button", name="Try it here").click()
    box.get_by_text("Python cannot run in this page").wait_for(timeout=10_000)
    assert "make lab LAB=90" in box.text_content() and box.get_by_role("button").count() == 0
    page.close()


@pytest.mark.browser
@pytest.mark.pyodide
@pytest.mark.skipif(not Path(PYODIDE, "pyodide.js").is_file(), reason="THREELOOPS_PYODIDE names no folder of Pyodide")
def test_a_reader_solves_an_exercise_in_the_page(chromium, served):
    page = chromium.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    address = served(PYODIDE)
    page.goto(f"{address}/{PAGE}")
    assert not [url for url in asked if "pyodide" in url or "worker" in url]
    box = page.locator(".tl-try").first
    box.get_by_role("button", name="Try it here").click()
    area = box.get_by_label("Your code for mean")
    box.get_by_role("button", name="Run the checks").click()
    box.get_by_text("mean is not written yet").wait_for(timeout=120_000)
    area.fill("")
    area.press_sequentially("def mean(values):\n")
    area.press_sequentially("return sum(values)")
    assert area.input_value() == "def mean(values):\n    return sum(values)"
    box.get_by_role("button", name="Run the checks").click()
    box.get_by_text("the sum was not divided by the count").wait_for(timeout=30_000)
    area.press_sequentially(" / len(values)")
    area.press("Control+Enter")
    box.get_by_text("✓ the mean of a list").wait_for(timeout=30_000)
    assert box.get_attribute("data-state") == "passed"
    area.fill("while True:\n    pass\n")
    box.get_by_role("button", name="Run the checks").click()
    box.get_by_role("button", name="Stop").click()
    box.get_by_text("Stopped.").wait_for(timeout=5000)
    assert all(url.startswith((address, "data:", "blob:")) for url in asked)
    page.close()


def test_by_default_no_page_offers_python(site):
    assert "tl-try" not in (site / PAGE).read_text() and not (site / "_static/try").exists()
    notebook = nbformat.read(site.parent / "source/labs/90_toy/90_toy.ipynb", as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.id == "mean")
