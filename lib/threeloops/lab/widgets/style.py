"""The look of the course's figures: one palette that colour-blind readers can tell apart, one set of sizes.

On a page a figure is SVG that takes the page's own colours of text and background, light or dark. If a page cannot show
SVG, it shows a PNG. Its background is an opaque white, so that it is readable everywhere. The picture at the top of a
lab is a PNG on every page: it has no background, and its ink is a grey that light and dark pages both show.
"""

import base64
import io
import re
import sys
from html import escape
from typing import Any

from threeloops.figures import GRID, ON_DARK, ON_LIGHT, colour_labels, figure, palette

__all__ = ["WIDTH", "figure", "html", "png", "svg", "with_still", "words"]

WIDTH = "48rem"
"""The width of cards, animations and the prose of exported pages: that of a figure of 8 inches, in any font."""

_DPI = 144
_MOST_BYTES = 300_000
_SVG_STYLE = (
    "fill:currentColor;max-width:100%;min-width:min({0:g}pt,34rem);height:auto;stroke-linejoin:round;"
    "stroke-linecap:butt"
)
"""The style of a figure. On a screen narrower than its least width it scrolls, so that its labels stay readable."""
_THEMED = {
    palette.ink: "currentColor",
    "#000000": "currentColor",
    "#ffffff": "var(--jp-layout-color0, Canvas)",
    GRID: "color-mix(in srgb, currentColor 18%, transparent)",
}
"""Colours that follow the page: text and lines, areas filled with the background, and the grid."""
_COLOURED_TEXT = r"color-mix(in srgb, \2 60%, currentColor)"
"""Darker than the bar or line of the same colour on a light page and lighter on a dark one, so that it can be read."""
_DRAWN = "threeloops-drawn"
_SVG_INSTEAD = f".{_DRAWN}:has(svg)>div{{display:block!important}}.{_DRAWN}:has(svg)>img{{display:none}}"
"""The style of a trusted cell counts for the whole page, so it asks whether the SVG of the figure at hand is there."""

_Still = tuple[bytes, dict]
"""PNG bytes, and the size in CSS pixels at which to show them."""


def png(fig) -> _Still:
    """The figure as a still picture of few colours; pyplot forgets the figure."""
    colour_labels(fig)
    _clear_labels(fig)
    buffer = io.BytesIO()
    fig.savefig(buffer, dpi=_DPI, format="png", facecolor=fig.get_facecolor())
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close(fig)
    width, height = fig.get_size_inches()
    return _with_few_colours(buffer.getvalue()), {"width": round(width * 96), "height": round(height * 96)}


def _with_few_colours(data: bytes) -> bytes:
    """The same PNG in 256 colours, which is enough for bars, lines and texts and takes 40% of the bytes."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").quantize(256).save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def html(fig, alt: str, still: _Still) -> str:
    """The figure for a page: its SVG with `still` in reserve, or `still` alone if the SVG is over `_MOST_BYTES`."""
    picture = svg(fig, alt)
    return with_still(picture, still, alt) if len(picture) <= _MOST_BYTES else _image(still, alt)


def with_still(picture: str, still: _Still, alt: str) -> str:
    """Return HTML that shows `picture`, which holds SVG, or the still picture if a page removes SVG.

    JupyterLab removes it in every notebook that it does not trust. It keeps the words of a figure and drops the rest.
    So the words are hidden, and only a style that it drops as well shows them.
    """
    style = f"<style>{_SVG_INSTEAD}</style>"
    hidden = f'<div style="display:none">{picture}</div>'
    return f'<div class="{_DRAWN}">{style}{hidden}{_image(still, alt)}</div>'


def _image(still: _Still, alt: str) -> str:
    data, size = still
    source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return f'<img src="{source}" width="{size["width"]}" style="max-width:100%" alt="{escape(alt, quote=True)}">'


def svg(fig, alt: str = "", salt: str = "", *, quick: bool = False) -> str:
    """Return the figure as SVG whose ink and background are those of the page. `salt` keeps the ids of two figures
    apart.

    Texts stay texts, in the page's own font, with all of their spaces. A `quick` figure is laid out once instead of
    twice, which takes half of the time and may place an axis a point further.
    """
    import matplotlib

    colour_labels(fig)
    crowded = _clear_labels(fig)
    if quick:
        if not crowded and (engine := fig.get_layout_engine()) is not None:
            engine.execute(fig)
        fig.set_layout_engine(None)  # even with "none", `savefig` would draw it once more for a layout
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt or alt}):
        fig.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.S)
    for colour, themed in _THEMED.items():
        text = text.replace(colour, themed)
    on_bars = f"{ON_LIGHT}|{ON_DARK}"  # text on a bar, which has the same colour on every page
    text = re.sub(rf"(<text[^>]*fill: )(?!{on_bars})(#[0-9a-f]{{6}})", rf"\1{_COLOURED_TEXT}", text)
    text = re.sub(r"font-family: [^;\"]*", "font-family: sans-serif", text)
    text = re.sub(r'<style type="text/css">.*?</style>| id="\w+_\d+"', "", text, flags=re.S)  # both are the page's
    text = re.sub(r"(<text[^>]*>)([^<]*)", lambda match: match[1] + _kept_spaces(match[2]), _compact(text))
    label = f' role="img" aria-label="{escape(alt, quote=True)}"' if alt else ""
    return text.replace("<svg", f'<svg style="{_SVG_STYLE.format(72 * fig.get_size_inches()[0])}"{label}', 1).strip()


def _kept_spaces(text: str) -> str:
    """A page drops spaces at both ends of a text and joins those in a row, unless they are no-break spaces."""
    return re.sub(r"^ +| +$|  +", lambda spaces: "\N{NO-BREAK SPACE}" * len(spaces[0]), text)


def _clear_labels(fig) -> bool:
    """Put the page's colour behind labels that a line would strike through, be it one of the axes or of their grid, but
    not behind those on bars, boxes and areas. Return whether there are axes with labels and lines. The figure is laid
    out then."""
    crowded = [axes for axes in fig.axes if axes.texts and (axes.lines or _rules(axes))]
    if not crowded:
        return False
    fig.draw_without_rendering()  # places are known only then
    for axes in crowded:
        lines = [line for line in axes.lines if line.get_visible() and line.get_linestyle() != "None"]
        paths, rules = _paths(lines), _paths(_rules(axes))
        boxes = [patch for patch in axes.patches if patch.get_facecolor()[3] > 0]
        for label in axes.texts:
            if not label.get_visible() or not label.get_text().strip() or label.get_bbox_patch() is not None:
                continue
            place = label.get_window_extent()
            middle = ((place.x0 + place.x1) / 2, (place.y0 + place.y1) / 2)
            inside = place.padded(-0.15 * place.height)
            struck = any(path.intersects_bbox(inside, filled=False) for path in paths)
            ruled = any(path.intersects_bbox(inside, filled=False) for path in rules)
            on_area = any(box.contains_point(middle) for box in boxes)
            if not on_area and (struck or (ruled and not _on_polygon(axes, middle))):
                touches = any(box.get_window_extent().overlaps(place.padded(2)) for box in boxes)
                pad = -2 if touches and not struck else 1  # less, so that the bar below a label keeps its edge
                label.set_bbox({"facecolor": "#ffffff", "edgecolor": "none", "alpha": 0.85, "pad": pad})
    return True


def _paths(lines: list[Any]) -> list[Any]:
    return [line.get_transform().transform_path(line.get_path()) for line in lines]


def _rules(axes) -> list[Any]:
    """Return the horizontal lines of the grid."""
    is_drawn = axes.get_visible() and axes.axison and axes.yaxis.get_visible()
    return [line for line in axes.get_ygridlines() if line.get_visible()] if is_drawn else []


def _on_polygon(axes, place: tuple[float, float]) -> bool:
    """Tell whether a place, in pixels, lies on a polygon of the axes, such as the area between two curves."""
    from matplotlib.collections import PolyCollection

    polygons = [area for area in axes.collections if isinstance(area, PolyCollection) and area.get_visible()]
    return any(
        path.contains_point(place, polygon.get_transform()) for polygon in polygons for path in polygon.get_paths()
    )


def _compact(text: str) -> str:
    """SVG with a third fewer bytes: coordinates to a hundredth of a point, no indentation, no rotations by 0."""
    text = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", re.sub(r"\n\s*", "\n", text))
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0].replace(" \n", "\n")), text)


def words(fig) -> str:
    """Return the figure's titles and labels: its text form, if no picture can be shown."""
    titles = [fig.get_suptitle(), *(axes.get_title("left") or axes.get_title() for axes in fig.axes)]
    texts = [title.replace("\n", " ") for title in titles if title]
    return "figure: " + ("; ".join(texts) or "without a title")
