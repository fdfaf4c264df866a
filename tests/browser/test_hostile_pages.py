"""Feedback and formgrader in a real browser: what a student wrote neither runs, loads, nor leads anywhere."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import pytest
from nbconvert.filters.markdown_mistune import markdown2html_mistune
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output, new_raw_cell
from payloads import LIVE, PAYLOADS, numbered
from playwright.sync_api import Error
from real_jupyterlab import jupyter_lab
from threeloops_grader.release.release import release
from threeloops_grader.sandbox import bwrap
from toy_course import make_course

pytestmark = pytest.mark.browser

REPOSITORY = Path(__file__).resolve().parents[2]
CONTROL = "http://control.invalid/"
STUDENT = 'mallory"><img src=x onerror=top.hits.push(-1)>'
HONEST = """\
## A heading of mine

See [above](#A-heading-of-mine), $e^{i\\pi} = -1$ and `a < b`.

| left | right |
|:-----|------:|
| 1    | 2     |

```python
def doubled(x):
    return 2 * x
```
"""
HOSTILE_CODE = """\
from IPython.display import HTML, SVG, Image, Javascript, Latex, Markdown, display

print("\\x1b[38m\\x1b[31;1mred\\x1b[0m <script>top.hits.push(-2)</script>")
display(HTML("<img src=x onerror=top.hits.push(-3)>"), Javascript("top.hits.push(-4)"))
display(SVG("<svg xmlns='http://www.w3.org/2000/svg' onload='top.hits.push(-5)'/>"))
display(Latex("$<script>top.hits.push(-6)</script>$"), Markdown("[x](javascript:top.hits.push(-7))"))
raise type("<img src=x onerror=top.hits.push(-8)>", (Exception,), {})("<script>top.hits.push(-9)</script>")
"""
ACT = """() => {
  for (const element of document.querySelectorAll("#notebook-container *")) {
    if (element.closest(".panel-heading, .panel-footer")) continue;
    for (const kind of ["mouseover", "mouseenter", "focus", "animationend"]) element.dispatchEvent(new Event(kind));
    if (element.matches("a, b, button, form, input, label, mtext, summary, text")) element.click?.();
    if (element.matches("form")) element.requestSubmit();
  }
}"""


@dataclass
class Witness:
    """Everything that a page did besides being shown."""

    page: object
    hits: list[int] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.page.add_init_script("window.hits = {push: number => console.log('hit ' + number)}")
        self.page.on("console", lambda m: self.hits.append(int(m.text[4:])) if m.text.startswith("hit ") else None)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfailed", self._failed)
        self.page.on("dialog", lambda dialog: (self.other.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("popup", lambda popup: self.other.append(f"popup {popup.url}"))
        self.page.on("download", lambda download: self.other.append(f"download {download.url}"))

    def _failed(self, request) -> None:
        """What the policy of the page held back never left the browser."""
        if request.failure == "csp":
            self.requests.remove(request.url)

    def act(self) -> None:
        """Click and touch whatever the student's part of the page offers, and let what was begun end."""
        self.page.evaluate(ACT)
        for link in self.page.locator("#notebook-container a[href]").all():
            if link.is_visible():
                link.click(timeout=10_000)
        self.page.wait_for_load_state("networkidle")


@pytest.fixture
def witness(chromium):
    page = chromium.new_page(viewport={"width": 1200, "height": 900})
    yield Witness(page)
    page.close()


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course with one hostile submission, autograded and with feedback by stock commands."""
    lab = make_course(tmp_path_factory.mktemp("course"))
    shutil.copy(REPOSITORY / "nbgrader_config.py", lab.root)
    release([lab])
    folder = lab.root / "submitted" / STUDENT / lab.slug
    folder.mkdir(parents=True)
    nbformat.write(hostile(lab.master()), folder / f"{lab.slug}.ipynb")
    (folder / "evil.html").write_text("<script>top.hits.push(-10)</script>")
    (folder / "nbgrader_config.py").write_text("open('pwned.txt', 'w')")
    nbgrader(lab.root, "generate_assignment", lab.slug, "--force")
    nbgrader(lab.root, "autograde", lab.slug, *(["--WalledExecute.sandbox=none"] if bwrap.why_not() else []))
    nbgrader(lab.root, "generate_feedback", lab.slug)
    return lab


def hostile(notebook):
    """Honest answers; payloads in cells of their own, in the reflection, and in outputs and metadata."""
    notebook.cells[0:0] = [new_markdown_cell(text) for text in numbered()]
    notebook.cells.insert(0, new_markdown_cell(HONEST))
    script = "<script>top.hits.push(-11)</script>"
    notebook.cells.insert(0, new_raw_cell(script, metadata={"raw_mimetype": "text/html"}))
    picture = {"image/svg+xml": "PHN2ZyBvbmxvYWQ9InRvcC5oaXRzLnB1c2goLTEyKSIvPg=="}
    notebook.cells.insert(0, new_markdown_cell("![x](attachment:x.svg)", attachments={"x.svg": picture}))
    data = {"text/html": script, "application/javascript": "top.hits.push(-13)"}
    own = new_code_cell(HOSTILE_CODE, outputs=[new_output("display_data", data=data)])
    own.metadata.tags = ['"><img src=x onerror=top.hits.push(-14)>']
    notebook.cells.insert(0, own)
    notebook.metadata.update(title=f"</title>{script}", language_info={"name": f"x'>{script}"})
    next(c for c in notebook.cells if c.id == "reflection").source = "\n\n".join([HONEST, *numbered()[:40]])
    return notebook


def nbgrader(root: Path, *words: str) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *words],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "THREELOOPS_ROOT": str(root), "PATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def server(course, tmp_path_factory):
    with jupyter_lab(course.root, tmp_path_factory.mktemp("runtime") / "own", THREELOOPS_ROOT=str(course.root)) as url:
        yield url


def submission_page(page, server: str, slug: str) -> str:
    (submission,) = page.request.get(f"{server}formgrader/api/submitted_notebooks/{slug}/{slug}").json()
    return f"{server}formgrader/submissions/{submission['id']}/"


def is_ready(page) -> None:
    """Formgrader has read the grades and comments and listens to their fields. (The policy forbids polling by eval.)"""
    page.locator("input#rescale_test_values[placeholder]").wait_for()
    page.locator("textarea#reflection-comment[placeholder]").wait_for()


def is_readable(page) -> None:
    """What is honest in the page is all there."""
    page.get_by_role("heading", name="A heading of mine").first.wait_for()
    assert page.locator("#notebook-container td", has_text="2").count() >= 2
    assert page.locator("#notebook-container th").first.evaluate("e => e.style.textAlign") == "left"
    assert "$e^{i\\pi} = -1$" in page.inner_text("#notebook-container")
    assert "a < b" in page.locator("#notebook-container p > code").first.inner_text()
    keyword = page.locator(".rendered_html .highlight .k", has_text="def").first
    plain = page.locator(".rendered_html .highlight .n").first
    colour = "e => getComputedStyle(e).color"
    assert keyword.evaluate(colour) != plain.evaluate(colour)
    assert page.locator(".input_area .highlight .k").count() > 2


@pytest.mark.parametrize("name", LIVE)
def test_the_payloads_are_live(witness, name):
    """The control: as nbconvert renders them, under no policy, they run. Else this file shows nothing."""
    number = list(PAYLOADS).index(name)
    html = f"<div id=notebook-container>{markdown2html_mistune(numbered()[number])}</div>"
    witness.page.route("**", answer_with(status=404))
    witness.page.route(CONTROL, answer_with(body=html, content_type="text/html"))
    with witness.page.expect_console_message(lambda message: message.text == f"hit {number}", timeout=30_000):
        witness.page.goto(CONTROL)
        with suppress(Error):  # some lead the page away while it is being clicked
            witness.page.evaluate(ACT)
    assert number in witness.hits


def answer_with(**response):
    """A handler of requests that gives each the same response."""
    return lambda route: route.fulfill(**response)


def test_a_hostile_feedback_page_stays_dead(witness, course):
    path = course.root / "feedback" / STUDENT / course.slug / f"{course.slug}.html"
    witness.page.goto(path.as_uri())
    is_readable(witness.page)
    witness.act()
    assert witness.hits == []
    assert witness.other == []
    assert witness.page.url.partition("#")[0] == path.as_uri()
    assert {url for url in witness.requests if not url.startswith("data:")} == {path.as_uri()}
    assert witness.page.locator("script").count() == 0


def test_a_hostile_submission_stays_dead_in_formgrader(witness, course, server):
    page, address = witness.page, submission_page(witness.page, server, course.slug)
    page.goto(address)
    is_ready(page)
    is_readable(page)
    witness.act()
    assert witness.hits == []
    assert witness.other == []
    assert page.url.partition("#")[0].partition("?")[0] == address
    allowed = (address, f"{server}formgrader/static/", f"{server}formgrader/api/", "data:")
    assert [url for url in witness.requests if not url.startswith(allowed)] == []
    assert list(course.root.rglob("pwned.txt")) == []


def test_formgrader_still_saves_a_score_and_a_comment(witness, course, server):
    page, address = witness.page, submission_page(witness.page, server, course.slug)
    page.goto(address)
    is_ready(page)
    score, comment = page.locator("input#mean_test"), page.locator("textarea#mean-comment")
    for field_, text, saved in ((score, "7", "api/grade/"), (comment, "well done", "api/comment/")):
        with page.expect_response(lambda r, saved=saved: saved in r.url and r.request.method == "PUT") as answer:
            field_.fill(text)
            field_.blur()
        assert answer.value.ok
    page.reload()
    is_ready(page)
    assert (score.input_value(), comment.input_value()) == ("7", "well done")
    page.locator(".glyphicon-eye-open").click()
    assert page.locator("a.name-shown").inner_text() == STUDENT
    assert page.evaluate("formgrader.keyboard_manager !== undefined")
    assert witness.hits == []
