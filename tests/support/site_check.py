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

# Faults of the page as it is laid out now: each is one line of text.
LAID_OUT = """(smallest) => {
    const faults = [];
    const room = document.documentElement.clientWidth;
    const scrolled = (element) => {
        for (let at = element.parentElement; at && at !== document.body; at = at.parentElement)
            if (['auto', 'scroll', 'hidden', 'clip'].includes(getComputedStyle(at).overflowX)) return true;
        return false;
    };
    if (document.documentElement.scrollWidth > room) {
        const wide = [...document.body.querySelectorAll('*')].find(
            (e) => e.getBoundingClientRect().right > room + 1 && !scrolled(e));
        faults.push(`wider than the screen: ${wide ? wide.outerHTML.slice(0, 80) : 'something'}`);
    }
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const small = new Map();
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !element.checkVisibility({visibilityProperty: true})) continue;
        if (['SCRIPT', 'STYLE', 'NOSCRIPT', 'OPTION'].includes(element.tagName)) continue;
        const svg = element.ownerSVGElement;
        const scale = svg ? Math.abs(element.getScreenCTM()?.d ?? 1) || Math.abs(element.getScreenCTM().b) : 1;
        const size = parseFloat(getComputedStyle(element).fontSize) * scale;
        if (size > 0 && size < smallest - 0.05) small.set(walker.currentNode.data.trim().slice(0, 30), size.toFixed(1));
    }
    if (small.size) faults.push(`${small.size} texts below ${smallest} px: ${JSON.stringify([...small].slice(0, 3))}`);
    for (const image of document.querySelectorAll('main img, article img'))
        if (!image.alt.trim()) faults.push(`an image without alt text: ${image.src.slice(-60)}`);
    for (const svg of document.querySelectorAll('article svg'))
        if (!svg.closest('[aria-label], [aria-hidden=true], [aria-labelledby]') && svg.querySelector('text'))
            faults.push('a drawing without a label');
    return [...new Set(faults)];
}"""


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
    """Faults of pages in a browser: errors, requests to other hosts, and what is too wide, too small or not named."""
    page = chromium.new_page()
    here: list[str] = []
    page.on("console", lambda message: here.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: here.append(str(error)))
    page.on("request", lambda request: here.append(f"asks {request.url}") if request.url.startswith("http") else None)
    faults = []
    for name in names:
        here.clear()
        page.set_viewport_size({"width": widths[-1], "height": 900})
        page.goto((html / name).as_uri())
        for width in widths:
            for scheme in schemes:
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=scheme)
                here += [f"at {width} px, {scheme}: {fault}" for fault in page.evaluate(LAID_OUT, SMALLEST_TEXT)]
        faults += [f"{name}: {fault}" for fault in dict.fromkeys(here)]
    page.close()
    return faults


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
