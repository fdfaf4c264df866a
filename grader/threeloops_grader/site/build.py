"""`make site`: write the sources of the site, and let Sphinx make pages of them."""

import argparse
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import nbformat
from PIL import Image, ImageSequence

from threeloops_grader.authoring.labs import Lab, LabError, all_labs, course_root, find_lab
from threeloops_grader.site import in_browser
from threeloops_grader.site.documents import write_documents
from threeloops_grader.site.notebooks import LabPage, lab_pages

__all__ = ["build", "main"]

_SETTINGS = "docs/site"
"""The folder with Sphinx's settings, styles and scripts."""
_PYODIDE = "pyodide"
"""The folder of the site's own Pyodide, beside its scripts."""


def build(labs: list[Lab], executed: Path, site: Path, *, api: bool = True, pyodide: str = "") -> list[LabPage]:
    """Build the site of these labs in the folder `site`: sources in `source`, pages in `html`.

    Other files in `site` stay. `executed` holds the notebooks that `make course` executed. `$THREELOOPS_REPOSITORY` is
    the address of the repository, for links to its files. `pyodide` is a folder with Pyodide and its NumPy, or its
    address. If it is given, readers can try exercises that need nothing else in their browser.

    Raises:
        LabError: a notebook is missing or old, a page would show an answer, or Sphinx failed.
    """
    source = site / "source"
    pages = [page for lab in labs for page in lab_pages(lab, executed / lab.slug)]
    for part in ("source", "html", "doctrees"):
        shutil.rmtree(site / part, ignore_errors=True)
    bundles = _bundles(pages, pyodide) if pyodide else {}
    for page in pages:
        _write_lab(page, source)
    write_documents(pages, source, executed.parent, api_pages=api)
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-b",
        "html",
        "-q",
        "-j",
        "auto",
        "-c",
        str(course_root() / _SETTINGS),
        str(source),
    ]
    command += [str(site / "html"), "-d", str(site / "doctrees")]
    done = subprocess.run(
        command, env={**os.environ, "THREELOOPS_SITE_SOURCE": str(source), "THREELOOPS_SITE_TRY": pyodide}
    )
    if done.returncode:
        raise LabError("Sphinx could not build the site; its messages are above")
    (site / "html/.nojekyll").touch()  # GitHub Pages would leave out folders that begin with an underscore
    for film in (site / "html/_images").glob("*.gif"):
        _write_still(film)
    for page in pages:
        for name, script in page.states.items():
            path = site / "html/_static/explorers" / f"{name}.js"
            path.parent.mkdir(exist_ok=True)
            path.write_text(script, encoding="utf-8")
    for slug, packed in bundles.items():
        path = site / "html/_static/try" / f"{slug}.zip"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(packed)
    if bundles and Path(pyodide).is_dir():
        shutil.copytree(pyodide, site / "html/_static" / _PYODIDE)
    return pages


def _write_still(film: Path) -> None:
    """Put the frame that a film shows longest beside it, for readers who want no motion."""
    with Image.open(film) as frames:
        durations = [frame.info.get("duration", 0) for frame in ImageSequence.Iterator(frames)]
        frames.seek(durations.index(max(durations)))
        frames.convert("RGB").save(film.with_suffix(".png"), optimize=True)


def _bundles(pages: list[LabPage], pyodide: str) -> dict[str, bytes]:
    """Put buttons below the exercises that can be tried, and return what their checks need, by lab."""
    bundles = {}
    address = f"{_PYODIDE}/" if Path(pyodide).is_dir() else f"{pyodide.rstrip('/')}/"
    for page in pages:
        if not page.lab.dives:
            exercises, packed = in_browser.bundle(page.lab)
            if exercises:
                bundles[page.lab.slug] = packed
                in_browser.add_buttons(page.notebook, page.lab, exercises, address)
    return bundles


def _write_lab(page: LabPage, source: Path) -> None:
    folder = source / "labs" / page.lab.slug
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(page.notebook, folder / f"{page.lab.stem}.ipynb")
    for name, picture in page.pictures.items():
        (folder / name).write_bytes(picture)


def main() -> None:
    """Build the site, and say where it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("labs", nargs="*", help="labs; all of them if none is named")
    parser.add_argument("--executed", type=Path, help="executed notebooks; reports/executed by default")
    parser.add_argument("--out", type=Path, help="folder of the site; reports/site by default")
    parser.add_argument("--no-api", action="store_true", help="leave out the pages of the library's modules")
    parser.add_argument(
        "--pyodide",
        default="",
        metavar="PLACE",
        help="let readers try exercises that need only NumPy in their browser, with the Pyodide in this folder, or at "
        "this address, such as https://cdn.jsdelivr.net/pyodide/v0.27.7/full/; nobody loads it before pressing a "
        "button. Left out by default",
    )
    chosen = parser.parse_args()
    reports = course_root() / "reports"
    site = chosen.out or reports / "site"
    labs = [find_lab(name) for name in chosen.labs] or all_labs()
    started = time.perf_counter()
    if find_spec("sphinx") is None or find_spec("myst_nb") is None or find_spec("furo") is None:
        sys.exit("make site: Sphinx is not installed; `make site` in a checkout installs it, or pip install '.[site]'")
    try:
        build(labs, chosen.executed or reports / "executed", site, api=not chosen.no_api, pyodide=chosen.pyodide)
    except LabError as error:
        sys.exit(f"make site: {error}")
    size = sum(path.stat().st_size for path in (site / "html").rglob("*") if path.is_file())
    print(f"{site / 'html/index.html'} ({size / 1e6:.0f} MB, {time.perf_counter() - started:.0f} s)")


if __name__ == "__main__":
    main()
