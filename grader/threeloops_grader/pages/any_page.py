"""A figure as a PNG for pages that may be light or dark, such as the picture at the top of a lab.

It has no background, and its ink is a grey that stands out from white and from black. A box with text in it is opaque,
because on a translucent box no single colour is readable on both kinds of page.
"""

import io
from collections.abc import Iterator
from typing import Any

from matplotlib.artist import Artist
from matplotlib.collections import Collection
from matplotlib.colors import to_hex, to_rgb, to_rgba, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text
from threeloops.figures import GRID, ON_DARK, ON_LIGHT, palette

__all__ = ["png"]

_DPI = 144
_INK = "#787878"
"""Its contrast is 4.4 with white, and 4.3 with the dark page of JupyterLab, #111111."""
_REPLACED = {palette.ink: _INK, "#000000": _INK, "#ffffff": "none", GRID: f"{_INK}40"}
_BEHIND = "#d8d8d8"
"""The colour that makes a translucent box opaque. It neither glares on a dark page nor looks dull on a light one."""
_PARTS = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")


def png(figure: Figure) -> bytes:
    """Draw the figure. Changes its colours."""
    figure.draw_without_rendering()  # ticks and their labels exist only then
    artists = list(_artists(figure))
    boxed = [(text, box) for text in artists if isinstance(text, Text) and (box := _box_of(text))]
    opaque = {box.get_facecolor() for _, box in boxed}
    for patch in figure.findobj(Patch):
        if patch.get_facecolor() in opaque:
            patch.set(facecolor=_mixed(patch.get_facecolor()), alpha=None)
    for text, box in boxed:
        if to_hex(text.get_color()) in (palette.ink, "#000000"):
            red, green, blue = to_rgb(box.get_facecolor())
            text.set_color(ON_LIGHT if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.4 else ON_DARK)
    for artist in artists:
        for part in _PARTS:
            _recolour(artist, part)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=_DPI, format="png", transparent=True)
    return buffer.getvalue()


def _artists(figure: Figure) -> Iterator[Artist]:
    """Yield all artists, with the arrows of annotations and the boxes of texts, which matplotlib does not list."""
    for artist in figure.findobj():
        yield artist
        if isinstance(artist, Text):
            yield from filter(None, (artist.get_bbox_patch(), getattr(artist, "arrow_patch", None)))


def _box_of(text: Text) -> Patch | None:
    """Return the coloured box that the middle of a text lies in, the topmost if there are several."""
    if text.axes is None or not text.get_text() or not text.get_visible():
        return None
    extent = text.get_window_extent()
    middle = ((extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2)
    boxes = sorted(text.axes.patches, key=lambda patch: patch.get_zorder())
    coloured = [box for box in boxes if box.get_facecolor()[3] > 0 and to_hex(box.get_facecolor()) != "#ffffff"]
    return next((box for box in reversed(coloured) if box.contains_point(middle)), None)


def _mixed(colour: Any) -> tuple[float, float, float]:
    """Return a translucent colour on `_BEHIND`, as an opaque one."""
    alpha = to_rgba(colour)[3]
    red, green, blue = (
        alpha * own + (1 - alpha) * behind for own, behind in zip(colour, to_rgb(_BEHIND), strict=False)
    )
    return red, green, blue


def _recolour(artist: Artist, part: str) -> None:
    get = getattr(artist, f"get_{part}", None)
    put = getattr(artist, f"set_{part}", None)
    if get is None or put is None:
        return
    colours = []
    for colour in to_rgba_array(get()):
        red, green, blue, alpha = to_rgba(_REPLACED.get(to_hex(colour), colour[:3]))
        colours.append((red, green, blue, alpha * colour[3]))
    if colours:
        if artist.get_alpha() == 1:  # a line of the grid says so, and its colour's own alpha would not count
            artist.set_alpha(None)
        put(colours if isinstance(artist, Collection) else colours[0])
