"""The look of the course's figures: one palette that colour-blind readers can tell apart, one set of sizes.

On a page a figure is SVG that takes the page's own colours of text and background, light or dark. The PNG that stands
in where a page shows no SVG has an opaque white background, so that it is readable everywhere. The picture on which a
lab opens is a PNG on every page: it has no background, and its ink is a grey that light and dark pages both show.
"""

import base64
import io
import re
import sys
from html import escape

from threeloops.figures import GRID, figure
from threeloops.palette import palette

__all__ = ["WIDTH", "figure", "html", "png", "svg", "words"]

WIDTH = "48rem"
"""Of cards and animations, and of the prose of exported pages: that of a figure of 8 inches, whatever the font."""

_DPI = 144
_MOST_BYTES = 300_000
_SVG_STYLE = (
    "fill:currentColor;max-width:100%;min-width:min({0:g}pt,36rem);height:auto;stroke-linejoin:round;"
    "stroke-linecap:butt"
)
"""On a screen narrower than the least width a figure scrolls, so that its labels stay readable."""
_THEMED = {
    palette.ink: "currentColor",
    "#000000": "currentColor",
    "#ffffff": "var(--jp-layout-color0, Canvas)",
    GRID: "color-mix(in srgb, currentColor 18%, transparent)",
}
"""Colours that follow the page: text and lines, what is filled with the background, and the grid."""


def png(fig) -> tuple[bytes, dict]:
    """The figure as PNG bytes, and the size in CSS pixels at which to show it; pyplot forgets the figure."""
    _clear_labels(fig)
    buffer = io.BytesIO()
    fig.savefig(buffer, dpi=_DPI, format="png", facecolor=fig.get_facecolor())
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close(fig)
    width, height = fig.get_size_inches()
    data = buffer.getvalue()
    if len(data) > _MOST_BYTES:
        data = _with_few_colours(data)
    return data, {"width": round(width * 96), "height": round(height * 96)}


def _with_few_colours(data: bytes) -> bytes:
    """The same PNG with a palette of 256 colours, which is all that a drawing of bars, lines and texts needs."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").quantize(256).save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def html(fig, alt: str) -> str:
    """The figure for a page: SVG inline, or a PNG where the SVG would be larger than `_MOST_BYTES` bytes."""
    picture = svg(fig, alt)
    if len(picture) <= _MOST_BYTES:
        return picture
    data, size = png(fig)
    source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return f'<img src="{source}" width="{size["width"]}" alt="{escape(alt, quote=True)}">'


def svg(fig, alt: str = "", salt: str = "") -> str:
    """The figure as SVG whose ink and background are those of the page; `salt` keeps the ids of two figures apart.

    Texts stay texts, in the page's own font, with all of their spaces.
    """
    import matplotlib

    _clear_labels(fig)
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt or alt}):
        fig.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.S)
    for colour, themed in _THEMED.items():
        text = text.replace(colour, themed)
    text = re.sub(r"font-family: [^;\"]*", "font-family: sans-serif", text)
    text = re.sub(r'<style type="text/css">.*?</style>| id="\w+_\d+"', "", text, flags=re.S)  # both are the page's
    text = re.sub(r"(<text[^>]*>)([^<]*)", lambda found: found[1] + _kept_spaces(found[2]), _compact(text))
    label = f' role="img" aria-label="{escape(alt, quote=True)}"' if alt else ""
    return text.replace("<svg", f'<svg style="{_SVG_STYLE.format(72 * fig.get_size_inches()[0])}"{label}', 1).strip()


def _kept_spaces(text: str) -> str:
    """A page drops spaces at both ends of a text and joins those in a row, unless they are no-break spaces."""
    return re.sub(r"^ +| +$|  +", lambda spaces: "\N{NO-BREAK SPACE}" * len(spaces[0]), text)


def _clear_labels(fig) -> None:
    """Put the page's colour behind labels that a line of their axes would strike through, but not behind those on bars
    and boxes."""
    crowded = [axes for axes in fig.axes if axes.texts and axes.lines]
    if not crowded:
        return
    fig.draw_without_rendering()  # places are known only then
    for axes in crowded:
        lines = [line for line in axes.lines if line.get_visible() and line.get_linestyle() != "None"]
        paths = [line.get_transform().transform_path(line.get_path()) for line in lines]
        boxes = [patch for patch in axes.patches if patch.get_facecolor()[3] > 0]
        for label in axes.texts:
            if not label.get_visible() or not label.get_text().strip() or label.get_bbox_patch() is not None:
                continue
            place = label.get_window_extent()
            middle = ((place.x0 + place.x1) / 2, (place.y0 + place.y1) / 2)
            inside = place.padded(-0.15 * place.height)
            struck = any(path.intersects_bbox(inside, filled=False) for path in paths)
            if struck and not any(box.contains_point(middle) for box in boxes):
                label.set_bbox({"facecolor": "#ffffff", "edgecolor": "none", "alpha": 0.85, "pad": 1})


def _compact(text: str) -> str:
    """SVG with a third fewer bytes: coordinates to a hundredth of a point, no indentation, no rotations by 0."""
    text = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", re.sub(r"\n\s*", "\n", text))
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0].replace(" \n", "\n")), text)


def words(fig) -> str:
    """The figure's titles and labels: its text form, where no picture can be shown."""
    titles = [fig.get_suptitle(), *(axes.get_title("left") or axes.get_title() for axes in fig.axes)]
    found = [title.replace("\n", " ") for title in titles if title]
    return "figure: " + ("; ".join(found) or "without a title")
