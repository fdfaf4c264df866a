"""The site: a page per released notebook with the outputs of demonstrations, in files and in Chromium."""

from pathlib import Path

import nbformat
import pytest
from site_check import faults_in_browser, faults_in_files, faults_of_focus, faults_of_settings, still_controls
from threeloops.lab.recording.page.living import living
from threeloops.lab.recording.states import MIME
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.site.notebooks import lab_pages

ROOT = Path(__file__).parents[2]
WHOLE = ROOT / "reports/site/html"
LAB = "labs/90_toy/90_toy.html"
NAMES = [
    LAB,
    "labs/90_toy/90_toy_dives.html",
    "index.html",
    "claims.html",
    "api/inner.meter.html",
    "docs/what_runs.html",
]
browser = pytest.mark.browser


@pytest.fixture
def lab(chromium, site):
    page = chromium.new_page(viewport={"width": 768, "height": 900})
    page.goto((site / LAB).as_uri())
    yield page
    page.close()


def test_no_link_is_broken_nothing_comes_from_another_host_and_no_answer_is_shown(site):
    assert faults_in_files(site) == []


def test_the_check_of_files_names_every_fault(tmp_path):
    script = '<script src="https://cdn.example/x.js"></script>'
    links = '<a href="gone.html">1</a> <a href="#nowhere">2</a> <a id="here" href="#here">3</a>'
    (tmp_path / "page.html").write_text(f"{script} {links} BEGIN SOLUTION")
    assert faults_in_files(tmp_path) == [
        "page.html: loads https://cdn.example/x.js",
        "page.html: a link to gone.html, which does not exist",
        "page.html: a link to #nowhere, which has no such place",
        "page.html: holds 'BEGIN SOLUTION'",
    ]


def test_a_build_deletes_no_file_of_others(site):
    assert (site.parent / "notes.txt").read_text() == "somebody's"


def test_a_page_has_the_outputs_of_demonstrations_and_none_of_checks_or_answers(site):
    text = (site / LAB).read_text()
    assert "the sum is printed" in text and "Because it is the middle." in text
    assert "NotImplementedError" in text and "A model answer" not in text and "✓" not in text
    assert "data:image/png" not in text


def test_an_answer_in_an_output_stops_the_build(site):
    from threeloops_grader.authoring.labs import Lab

    lab = Lab("90_toy", site.parents[2])
    path = site.parents[1] / "executed/90_toy/90_toy.ipynb"
    before = path.read_text()
    notebook = nbformat.reads(before, as_version=4)
    answer = next(cell.source for cell in lab.master().cells if cell.id == "mean")
    demo = next(cell for cell in notebook.cells if any(MIME in o.get("data", {}) for o in cell.get("outputs", [])))
    demo.outputs.append(nbformat.v4.new_output("stream", name="stdout", text=answer.replace("### BEGIN SOLUTION", "")))
    try:
        nbformat.write(notebook, path)
        with pytest.raises(LabError, match="would show an answer in cell"):
            lab_pages(lab, path.parent)
        path.unlink()
        with pytest.raises(LabError, match="`make course` executes the labs"):
            lab_pages(lab, path.parent)
    finally:
        path.write_text(before)


FAULTS = {
    '<div style="width: 500px">wide</div>': "at 390 px: wider than the screen: <div",
    '<p style="font-size: 5px">small</p>': '1 texts below 9 px: [["small"',
    '<img src="data:,">': "an image without alt text",
    "<svg><text>12</text></svg>": "a drawing without a label",
    "<h3>deep</h3>": "a heading of level 3 below one of level 1: deep",
    "<h1>again</h1>": "not exactly one heading of level 1",
    "<button> </button>": "a control without a name: <button>",
    '<a href="#" tabindex="2">first</a>': "a place of its own in the focus order: <a",
    '<p aria-hidden="true"><a href="#">a</a></p>': "a control that a screen reader does not know: <a",
    '<p id="a">a</p><p id="a">b</p>': "2 elements with the id a",
    "<style>@keyframes move { to { opacity: .5; } }</style><p style='animation: move 1s infinite'>a</p>": (
        "moves although the reader wants no motion: move"
    ),
    '<p style="color: #777">faint</p>': "light: too little contrast: #777777 on #ffffff (4.48)",
    '<p style="opacity: .5">half</p>': "light: too little contrast: #808080 on #ffffff (3.98)",
    '<p style="background: #0072b2">on blue</p>': "light: too little contrast: #000000 on #0072b2 (4.05)",
    # A text on a bar that is half transparent, below another bar that does not count
    "<svg aria-label='a' width='90'><g opacity='.5'><path d='M0 0h90v90h-90z' fill='#000'/></g><text x='9' y='50' "
    "fill='#fff'>bar</text><rect width='90' height='90' fill='#000' fill-opacity='0.01'/></svg>": (
        "light: too little contrast: #ffffff on #808080 (3.98), in a drawing: bar"
    ),
    # Turned by a quarter, only its end lies on the bar.
    "<svg aria-label='a' width='90'><rect width='90' height='60' fill='#c00'/><text transform='translate(40 110) "
    "rotate(-90)' fill='#000'>a long text</text></svg>": "light: too little contrast: #000000 on #cc0000 (3.57)",
    "<script>throw new Error('broken')</script>": "broken",
}


@browser
@pytest.mark.parametrize("html", FAULTS)
def test_the_check_of_pages_names_every_fault_and_no_other(html, chromium, tmp_path):
    (tmp_path / "page.html").write_text(f"<body style='background: #fff'><article><h1>Title</h1>{html}</article>")
    (fault,) = faults_in_browser(chromium, tmp_path, ["page.html"], widths=(390,), schemes=("light",))
    assert FAULTS[html] in fault


@browser
def test_the_check_of_pages_passes_texts_that_can_be_read(chromium, tmp_path):
    bars = "<rect width='90' height='90' fill='#e69f00'/><text x='9' y='50' fill='#111'>bar</text>"
    (tmp_path / "page.html").write_text(
        f"<body style='background: #fff'><article><h1 style='color: #888'>Large</h1><p style='color: #767676'>grey</p>"
        f"<svg aria-label='a'>{bars}</svg></article>"
    )
    assert faults_in_browser(chromium, tmp_path, ["page.html"], widths=(390,)) == []


CONTROLS = [
    {"label": "n", "values": ["1", "2"], "start": 0, "of": 2, "kind": "slider"},
    {"label": "way", "values": ["ring", "tree", "star"], "start": 1, "of": 3, "kind": "options"},
]


@browser
def test_the_check_of_settings_names_the_faults_of_pictures_that_only_a_moved_control_shows(chromium, tmp_path):
    lines = ["<p style='color: #111'>ring</p>", "<p style='color: #777'>ring</p>", "<p style='color: #888'>star</p>"]
    pictures = {"0,0": [0], "0,1": [0], "1,1": [1], "0,2": [2], "1,2": [2]}
    states = {"controls": CONTROLS, "lines": lines, "pictures": pictures, "errors": {}, "one_at_a_time": False}
    (tmp_path / "page.html").write_text(f"<body style='background: #fff'>{living(states, lines[0])}")
    faults = faults_of_settings(chromium, tmp_path, "page.html", schemes=("light",))
    assert [fault.partition(" (")[0] for fault in faults] == [
        "page.html: light, explorer 1, n = 2: too little contrast: #777777 on #ffffff",
        "page.html: light, explorer 1, way = star: too little contrast: #888888 on #ffffff",
    ]
    states["pictures"] = dict.fromkeys(pictures, [0])
    (tmp_path / "page.html").write_text(f"<body style='background: #fff'>{living(states, lines[0])}")
    assert faults_of_settings(chromium, tmp_path, "page.html", schemes=("light",)) == []


STYLE = "<style>a:focus { outline: none } .seen:focus { background: #ff0 }</style>"


@browser
@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ("<a class=seen href=#1>1</a> <button>2</button>", ""),
        ("<a href=#1>1</a>", "the focus is not seen on <a"),
        ("<a class=seen href=#1 style='position: absolute; left: -99px'>1</a>", "the focus is where nothing is seen"),
        ("<a class=seen href=#1>1</a> <a class=seen tabindex=1 href=#2>2</a>", "the focus goes back: <a"),
        ("<button>1</button><div style='position: fixed; inset: 0'></div>", "the focus is below something else"),
        (
            "<button onfocus=this.disabled=true>1</button> <button onfocus=this.blur()>2</button> <button>3</button>",
            "the keyboard cannot reach <button>3",
        ),
    ],
)
def test_the_check_of_focus_names_every_fault(html, fault, chromium, tmp_path):
    (tmp_path / "page.html").write_text(f"{STYLE}<body>{html}")
    faults = faults_of_focus(chromium, tmp_path, "page.html", 390)
    assert (fault in " ".join(faults)) if fault else faults == []


@browser
@pytest.mark.parametrize("width", [390, 1280])
def test_the_keyboard_reaches_all_of_a_page_in_order_and_is_seen(width, chromium, site):
    assert [fault for name in NAMES[:3] for fault in faults_of_focus(chromium, site, name, width)] == []


@browser
def test_the_list_of_pages_opens_and_closes_by_keyboard(chromium, site):
    page = chromium.new_page(viewport={"width": 390, "height": 900})
    page.goto((site / LAB).as_uri())
    link = page.get_by_role("link", name="Glossary", exact=True)
    assert not link.is_visible()
    button = page.get_by_role("button", name="Pages of this site")
    button.press("Enter")
    assert link.is_visible() and button.get_attribute("aria-expanded") == "true"
    assert page.evaluate("() => document.querySelector('.sidebar-drawer').contains(document.activeElement)")
    page.keyboard.press("Escape")
    assert not link.is_visible() and page.evaluate("() => document.activeElement.ariaLabel") == "Pages of this site"
    page.close()


@browser
@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_a_film_can_be_stopped_and_stands_still_if_the_reader_wants_no_motion(motion, chromium, site):
    page = chromium.new_page(reduced_motion=motion)
    page.goto((site / "index.html").as_uri())
    film = page.locator(".tl-film img")
    assert film.evaluate("e => e.src").endswith(".png" if motion == "reduce" else ".gif")
    page.get_by_role("button", name="Play" if motion == "reduce" else "Stop").click()
    assert film.evaluate("e => e.src").endswith(".gif" if motion == "reduce" else ".png")
    assert film.evaluate("async e => { await e.decode(); return e.naturalWidth; }") > 0
    page.close()


@browser
def test_pages_fit_every_screen_and_have_no_errors(chromium, site):
    assert faults_in_browser(chromium, site, NAMES) == []


@pytest.fixture
def whole():
    """The names of all pages of the site that `make site` built."""
    sources = [
        path
        for folder in ("docs/site", "grader/threeloops_grader/site", "labs")
        for path in ROOT.glob(f"{folder}/**/*")
    ]
    index = WHOLE / "index.html"
    if not index.is_file() or index.stat().st_mtime < max(path.stat().st_mtime for path in sources if path.is_file()):
        pytest.skip("there is no site, or an old one: run `make course` and `make site` first")
    return sorted(path.relative_to(WHOLE).as_posix() for path in WHOLE.rglob("*.html"))


@browser
def test_every_page_of_the_whole_site_fits_every_screen_and_is_without_faults(whole, chromium):
    assert faults_in_files(WHOLE) == []
    assert faults_in_browser(chromium, WHOLE, whole) == []


@browser
@pytest.mark.slow
def test_the_keyboard_reaches_all_of_every_lab_and_moves_every_control(whole, chromium):
    labs = [name for name in whole if name.startswith("labs/")]
    shown = labs + NAMES[2:]
    assert [f for name in shown for width in (390, 1280) for f in faults_of_focus(chromium, WHOLE, name, width)] == []
    assert [fault for name in labs for fault in still_controls(chromium, WHOLE, name)] == []


@browser
@pytest.mark.slow
def test_every_picture_that_one_moved_control_shows_can_be_read(whole, chromium):
    labs = [name for name in whole if name.startswith("labs/")]
    assert [fault for name in labs for fault in faults_of_settings(chromium, WHOLE, name)] == []


@browser
def test_a_slider_moved_by_the_keyboard_changes_the_picture(lab):
    explorer = lab.locator(".tl-explorer")
    assert "ring with 3 points" in explorer.locator(".tl-picture").text_content()
    explorer.locator("input").focus()
    lab.keyboard.press("ArrowRight")
    explorer.get_by_text("ring with 4 points").wait_for(timeout=3000)
    assert explorer.locator("output").text_content() == "4"
    explorer.locator("select").select_option("tree")
    explorer.get_by_text("tree with 4 points").wait_for(timeout=3000)


@browser
def test_a_prediction_locks_its_answer_until_a_guess_and_remembers_it(lab):
    hidden = lab.locator(".tl-until", has_text="the sum is printed")
    assert not hidden.is_visible()
    question = lab.locator(".tl-question").nth(1)
    question.locator("input").fill("lots")
    question.get_by_role("button", name="This is my guess").click()
    assert "Type a number first" in question.text_content() and not hidden.is_visible()
    question.locator("input").fill("4")
    lab.keyboard.press("Enter")
    assert hidden.is_visible()
    assert lab.get_by_text("Your guess is 2× too low: within a factor of two.").is_visible()
    lab.reload()
    assert hidden.is_visible()
    lab.locator(".tl-question").nth(1).get_by_role("button", name="Ask me again").click()
    assert not hidden.is_visible()


@browser
def test_an_animation_stands_still_if_the_reader_wants_no_motion(lab):
    moving = lab.locator("[class^=anim-] > .frames > div").first
    assert moving.evaluate("e => getComputedStyle(e).animationName") != "none"
    lab.emulate_media(reduced_motion="reduce")
    assert moving.evaluate("e => getComputedStyle(e).animationName") == "none"
    frames = lab.locator("[class^=anim-] > .frames > div")
    visible = "all => all.map((e) => getComputedStyle(e).visibility === 'visible')"
    assert frames.evaluate_all(visible) == [False, True, False], "the frame that its author chose"
