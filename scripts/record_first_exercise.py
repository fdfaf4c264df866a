"""Record the first exercise of lab 00 for the README: `python scripts/record_first_exercise.py [FILE.gif]`.

A real JupyterLab in headless Chromium opens the notebook that students get. The script types a wrong line, runs the
check, opens a hint, corrects the line, runs the check again and plays the animation. Every frame is a screenshot.
"""

import io
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "lib"), str(ROOT / "grader"), str(ROOT / "tests/support")]
from real_jupyterlab import jupyter_lab

DEFAULT = ROOT / ".github/images/first_exercise.gif"
NOTEBOOK = "00_start_here/00_start_here.ipynb"
WIDTH, HEIGHT = 820, 420
FRAME = 96
"""Pixels that JupyterLab needs around the notebook, which the recording leaves out."""
COLOURS = 96
LARGEST = 1_500_000
"""Bytes: a README that takes longer to load is not watched to its end."""
WAIT_MS = 300_000


@dataclass
class Film:
    """Screenshots of a page, each with the milliseconds that it is shown."""

    page: Page
    frames: list[Image.Image] = field(default_factory=list)
    milliseconds: list[int] = field(default_factory=list)

    def shoot(self, milliseconds: int) -> None:
        area = self.page.locator(".jp-Notebook").bounding_box()
        area["width"], area["height"] = WIDTH, HEIGHT
        picture = Image.open(io.BytesIO(self.page.screenshot(animations="disabled", caret="initial", clip=area)))
        self.frames.append(picture.convert("RGB"))
        self.milliseconds.append(milliseconds)

    def write(self, file: Path) -> None:
        """All frames share one palette, so that what does not change costs nothing."""
        samples = Image.new("RGB", (WIDTH, HEIGHT * len(self.frames[::4])))
        for index, frame in enumerate(self.frames[::4]):
            samples.paste(frame, (0, HEIGHT * index))
        palette = samples.quantize(COLOURS, dither=Image.Dither.NONE)
        first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in self.frames)
        first.save(file, save_all=True, append_images=others, duration=self.milliseconds, loop=0, optimize=True)


def main(file: Path) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shutil.copytree(ROOT / "labs/00_start_here", folder / "00_start_here")
        home = str(folder / ".home")
        with jupyter_lab(folder, folder / ".runtime", THREELOOPS_HOME=home) as url, sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--disable-gpu"], chromium_sandbox=False
            )
            page = browser.new_page(viewport={"width": WIDTH + FRAME, "height": HEIGHT + 2 * FRAME})
            page.goto(f"{url}doc/tree/{NOTEBOOK}?reset")
            film = Film(page)
            record(page, film)
            browser.close()
    file.parent.mkdir(parents=True, exist_ok=True)
    film.write(file)
    size = file.stat().st_size
    print(f"{file.name}: {len(film.frames)} frames, {sum(film.milliseconds) / 1e3:.0f} s, {size:,} bytes")
    if size > LARGEST:
        print(f"{file.name} has {size:,} bytes: expected at most {LARGEST:,}; use fewer frames or colours")
    return int(size > LARGEST)


def record(page: Page, film: Film) -> None:
    page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=WAIT_MS)
    page.wait_for_function("window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel", timeout=WAIT_MS)
    cells = {name: number(page, name) for name in ("saxpy_bytes", "saxpy_bytes_test")}
    for index in range(cells["saxpy_bytes"]):  # setup, prediction and animation
        run(page, index)
    solution, test = cells["saxpy_bytes"], cells["saxpy_bytes_test"]
    clear_screen(page)
    bring_up(page, solution)
    film.shoot(1500)

    write(page, film, solution, "raise NotImplementedError()", "return 2 * n * element_bytes")
    run_and_show(page, film, solution, test)
    film.shoot(3500)
    run(page, test + 1)
    hint = cell(page, test + 1).locator("summary, button").filter(has_text="int").first
    hint.click()
    bring_up(page, solution)
    film.shoot(3500)
    write(page, film, solution, "return 2 * n * element_bytes", "return 3 * n * element_bytes")
    run_and_show(page, film, solution, test)
    film.shoot(1500)
    run(page, test + 1)
    film.shoot(5000)

    player = cell(page, solution - 1)
    bring_up(page, solution - 1)
    for frame in range(12):
        step(player, frame)
        film.shoot(700)
    film.shoot(1500)


def clear_screen(page: Page) -> None:
    """Hide what a learner does not need in a small picture."""
    page.add_style_tag(
        content=".jp-CellFooter, .jp-Collapser, .Toastify, .jp-Notebook-footer { display: none !important; }"
        ".jp-InputPrompt, .jp-OutputPrompt, .jp-cell-toolbar { display: none !important; }"
        ".jp-Notebook { padding: 4px !important; }"
    )


def number(page: Page, name: str) -> int:
    """Which cell has this grade_id."""
    return page.evaluate(
        "name => [...jupyterapp.shell.currentWidget.content.model.cells]"
        ".findIndex(each => each.getMetadata('nbgrader')?.grade_id === name)",
        name,
    )


def cell(page: Page, index: int) -> Locator:
    return page.locator(f'.jp-Notebook .jp-Cell[data-windowed-list-index="{index}"]')


def bring_up(page: Page, index: int) -> None:
    """Scroll until this cell is at the top of the window."""
    page.evaluate("index => jupyterapp.shell.currentWidget.content.scrollToItem(index, 'start')", index)
    cell(page, index).wait_for(timeout=WAIT_MS)
    page.wait_for_timeout(300)  # the list of cells settles its heights
    cell(page, index).evaluate("cell => cell.scrollIntoView({block: 'start'})")
    page.wait_for_timeout(200)


def run(page: Page, index: int) -> None:
    """Run one cell, and wait until it has ended and its outputs are drawn."""
    page.evaluate(
        """async index => {
            const content = jupyterapp.shell.currentWidget.content;
            content.deselectAll();
            content.activeCellIndex = index;
            await jupyterapp.commands.execute('notebook:run-cell');
        }""",
        index,
    )
    page.wait_for_timeout(300)


def write(page: Page, film: Film, index: int, old: str, new: str) -> None:
    """Replace `old` by `new` in a cell, a few letters at a time; what both begin with stays."""
    same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), len(new))
    line = cell(page, index).locator(".cm-line", has_text=old)
    line.click()
    page.keyboard.press("End")
    for _ in range(len(old) - same):
        page.keyboard.press("Shift+ArrowLeft")
    film.shoot(500)
    for begin in range(same, len(new), 4):
        page.keyboard.insert_text(new[begin : begin + 4])
        film.shoot(160)
    film.shoot(700)


def run_and_show(page: Page, film: Film, solution: int, test: int) -> None:
    run(page, solution)
    run(page, test)
    bring_up(page, solution)


def step(player: Locator, frame: int) -> None:
    """Show one frame of an animation, as its own buttons do."""
    player.locator("input.pick").nth(frame).evaluate("button => button.click()")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT))
