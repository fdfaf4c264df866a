"""The picture at the beginning of a lab, so that the first screen of an untouched notebook already shows the question.

The cell tagged `opening` draws it. Release runs that cell after the setup cells above it and keeps the picture beside
the source as `opening.png`, which `Lab.master()` attaches to the title. The cell itself is not released. The file
records the text of the cell that drew it. So the picture is drawn again if that text changes, but not because another
machine has other fonts.
"""

import base64
import hashlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from PIL import Image, PngImagePlugin

from threeloops_grader.authoring.labs import OPENING, Lab, LabError
from threeloops_grader.machine.child_process import run_child

__all__ = ["draw", "is_current"]

_MOST_BYTES = 80_000
_SECONDS = 120.0
_TEXT = "threeloops"
"""The key of the PNG's text that holds the hash of the cells which drew it."""
_LOOK = "without a background"
"""Part of that hash: change it together with the look of all pictures, and release draws them again."""


def is_current(lab: Lab) -> bool:
    """Return whether the picture was drawn by the cells that the source has now, or the lab has none and needs none."""
    cells = _cells(lab)
    if not cells:
        return not lab.opening.exists()
    try:
        with Image.open(lab.opening) as picture:
            return picture.info.get(_TEXT) == _digest(cells)
    except OSError:  # missing, or no picture
        return False


def draw(lab: Lab) -> None:
    """Write `opening.png`, or remove one that no cell draws.

    Raises:
        LabError: the cell failed or showed no figure, or the picture is larger than a notebook should carry.
    """
    cells = _cells(lab)
    if not cells:
        lab.opening.unlink(missing_ok=True)
        return
    done = run_child(["-m", __name__, str(lab.root), lab.slug], _SECONDS, changes={"CUDA_VISIBLE_DEVICES": ""})
    if done.answer is None:
        raise LabError(f"lab {lab.slug}: the cell tagged {OPENING!r} could not be drawn: {done.why}")
    picture = _with_digest(base64.b64decode(done.answer["png"]), _digest(cells))
    if len(picture) > _MOST_BYTES:
        raise LabError(
            f"lab {lab.slug}: the opening picture has {len(picture):,} bytes, expected at most {_MOST_BYTES:,}; "
            "draw less, or make it smaller"
        )
    lab.opening.write_bytes(picture)


def _cells(lab: Lab) -> list[str]:
    """Return the setup cells above the opening cell, and that cell, or nothing if there is none."""
    before: list[str] = []
    for cell in lab.master().cells:
        tags = cell.metadata.get("tags", [])
        if "setup" in tags or OPENING in tags:
            before.append(cell.source)
        if OPENING in tags:
            return before
    return []


def _digest(cells: list[str]) -> str:
    return hashlib.sha256("\n".join([_LOOK, *cells]).encode()).hexdigest()[:12]


def _with_digest(png: bytes, digest: str) -> bytes:
    """Return the picture in 256 colours, which halves its size, with the hash of the cells that drew it."""
    metadata = PngImagePlugin.PngInfo()
    metadata.add_text(_TEXT, digest)
    small = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        few = picture.convert("RGBA").quantize(256)
        few.save(small, "PNG", optimize=True, pnginfo=metadata, dpi=picture.info.get("dpi"))
    return small.getvalue()


def _show(root: str, slug: str) -> None:
    """Run the cells in a separate process, and print the last figure that they showed as JSON."""
    from threeloops.lab import show
    from threeloops.lab.widgets.display import capture

    from threeloops_grader.pages import any_page  # imports matplotlib

    figures: list[Any] = []
    vars(show)["figure"] = lambda figure, caption="": figures.append(figure)
    lab = Lab(slug, Path(root))
    os.chdir(lab.folder)
    names: dict[str, object] = {"__name__": "__main__"}
    with capture():
        for source in _cells(lab):
            exec(compile(source, str(lab.source), "exec"), names)
    if not figures:
        sys.exit("it showed no figure; it has to end with show.figure(plot, caption)")
    print(json.dumps({"png": base64.b64encode(any_page.png(figures[-1])).decode()}))


if __name__ == "__main__":
    _show(*sys.argv[1:])
