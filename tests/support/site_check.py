"""What must hold of every page of the site, and how it is seen: in files alone, and in a browser."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

WIDTHS = (390, 768, 1280)
SCHEMES = ("light", "dark")
SMALLEST_TEXT = 9
MOST_BYTES = 2_000_000
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
ANSWERS = ("BEGIN SOLUTION", "END SOLUTION", "BEGIN HIDDEN", "END HIDDEN")

LEAST_CONTRAST = (4.5, 3.0)
"""Of text, and of text from 24 CSS px, or 18.66 if bold: WCAG 2.2, 1.4.3."""
_PAGE = (Path(__file__).parent / "site_page.js").read_text(encoding="utf-8")


class _Page(HTMLParser):
    """The ids of a page, its links, and the addresses that it loads."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids |= {value for name, value in attrs if name in ("id", "name") and value}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if (
            tag in LOADING
            and values.get(LOADING[tag])
            and values.get("rel") not in ("canonical", "next", "prev", "search", "index")
        ):
            self.loads.append(values[LOADING[tag]])


def faults_in_files(html: Path) -> list[str]:
    """Links without a target, addresses on other hosts, and answers, in all pages below a folder."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(html.rglob("*.html"))}
    return [f"{path.relative_to(html)}: {fault}" for path in pages for fault in _of_file(path, pages, html)]


def _of_file(path: Path, pages: dict[Path, _Page], html: Path) -> Iterator[str]:
    page = pages[path]
    for address in page.loads:
        if address.startswith(("http:", "https:", "//")):
            yield f"loads {address}"
    for address in [*page.links, *(load for load in page.loads if not load.startswith("data:"))]:
        if address.startswith(("http:", "https:", "mailto:", "//", "javascript:")):
            continue
        file, anchor = urldefrag(address)
        target = (path.parent / unquote(file.partition("?")[0])).resolve() if file else path
        if not target.exists():
            yield f"a link to {address}, which does not exist"
        elif anchor and target in pages and unquote(anchor) not in pages[target].ids:
            yield f"a link to {address}, which has no such place"
    text = path.read_text(encoding="utf-8")
    scripts = [html / "_static/explorers" / f"{name}.js" for name in re.findall(r'data-name="([\w-]+)"', text)]
    weight = path.stat().st_size + sum(script.stat().st_size for script in scripts)
    if weight > MOST_BYTES:
        yield f"weighs {weight:,} bytes with its explorers"
    if path.name != "CONTRIBUTING.html":  # which explains the markers
        yield from (f"holds {words!r}" for words in ANSWERS if words in text)


def faults_in_browser(chromium, html: Path, names: list[str], widths=WIDTHS, schemes=SCHEMES) -> list[str]:
    """Faults of pages in a browser: errors, requests to other hosts, and what a reader could not see or not name."""
    page = chromium.new_page(reduced_motion="reduce")
    here: list[str] = []
    page.on("console", lambda message: here.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: here.append(str(error)))
    page.on("request", lambda request: here.append(f"asks {request.url}") if request.url.startswith("http") else None)
    faults = []
    for name in names:
        here.clear()
        page.set_viewport_size({"width": widths[-1], "height": 900})
        page.goto((html / name).as_uri())
        page.evaluate(f"() => {{ window.check = {_PAGE}; }}")
        here += page.evaluate("() => [...check.moving(), ...check.structure()]")
        for width in widths:
            page.set_viewport_size({"width": width, "height": 900})
            here += [
                f"at {width} px: {fault}" for fault in page.evaluate("(size) => check.laidOut(size)", SMALLEST_TEXT)
            ]
        page.evaluate("() => check.unfold()")
        for scheme in schemes:
            page.emulate_media(color_scheme=scheme)
            weak = page.evaluate("(least) => check.contrast(...least)", LEAST_CONTRAST)
            here += [f"{scheme}: {fault}" for fault in weak]
        faults += [f"{name}: {fault}" for fault in dict.fromkeys(here)]
    page.close()
    return faults


def faults_of_focus(chromium, html: Path, name: str, width: int) -> list[str]:
    """Controls of a page that the Tab key does not reach in the order of the document, or where it is not seen."""
    page = chromium.new_page(viewport={"width": width, "height": 900}, reduced_motion="reduce")
    page.goto((html / name).as_uri())
    page.evaluate(f"() => {{ window.check = {_PAGE}; check.startTabbing(); }}")
    for _ in range(3000):
        page.keyboard.press("Tab")
        if page.evaluate("() => check.tabbed()"):
            break
    faults = page.evaluate("() => check.afterTabbing()")
    page.close()
    return [f"{name}: at {width} px, {fault}" for fault in faults]


def still_controls(chromium, html: Path, name: str) -> list[str]:
    """Controls of a page's explorers that change nothing within three seconds when the keyboard moves them."""
    page = chromium.new_page(viewport={"width": 390, "height": 900})
    page.goto((html / name).as_uri())
    still = []
    for control in page.locator(".tl-explorer :is(input, select)").all():
        if not control.is_visible():  # folded until a guess
            control.evaluate("e => e.closest('.tl-until').classList.add('tl-open')")
        control.focus()
        at_end = control.evaluate("e => e.type === 'range' ? e.value === e.max : e.selectedIndex === e.length - 1")
        page.keyboard.press("ArrowLeft" if at_end else "ArrowRight")
        explorer = control.locator("xpath=ancestor::div[contains(@class, 'tl-explorer')]")
        value = control.input_value()
        moved = """([e, value]) => e.querySelector('.tl-error') || (e.dataset.shown ?? '').split(',').includes(value)"""
        try:
            page.wait_for_function(moved, arg=[explorer.element_handle(), value], timeout=3000)
        except Exception as error:
            still.append(f"{name}: {control.get_attribute('id')} moved to {value}: {type(error).__name__}")
    page.close()
    return still


def faults_of_settings(chromium, html: Path, name: str, schemes=SCHEMES) -> list[str]:
    """Texts with too little contrast in the pictures that a page's explorers show when one control is moved."""
    page = chromium.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page.goto((html / name).as_uri())
    page.evaluate(f"() => {{ window.check = {_PAGE}; check.unfold(); }}")
    faults = []
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme)
        for number, explorer in enumerate(page.locator(".tl-explorer").element_handles(), start=1):
            for control, value in page.evaluate("(explorer) => check.settings(explorer)", explorer):
                setting = page.evaluate("(setting) => check.moved(...setting)", [explorer, control, value])
                if not setting:  # the page does not have it
                    continue
                weak = page.evaluate("(asked) => check.contrast(...asked)", [*LEAST_CONTRAST, explorer])
                faults += [f"{name}: {scheme}, explorer {number}, {setting}: {fault}" for fault in weak]
    page.close()
    return faults
