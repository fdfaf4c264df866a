"""The look of the course's figures: one palette that colour-blind readers can tell apart, one set of sizes.

On a page a figure is SVG that takes the page's own colours of text and background, light or dark. The PNG that stands
in where a page shows no SVG has an opaque white background, so that it is readable everywhere.
"""

import base64
import io
import re
import sys
from html import escape

from threeloops.palette import palette

__all__ = ["figure", "html", "png", "svg", "words"]

_DPI = 144
_MOST_SVG = 300_000
_SVG_STYLE = "fill:currentColor;max-width:100%;height:auto;stroke-linejoin:round;stroke-linecap:butt"
_GRID = "#dddddd"
_THEMED = {
    palette.ink: "currentColor",
    "#000000": "currentColor",
    "#ffffff": "var(--jp-layout-color0, Canvas)",
    _GRID: "color-mix(in srgb, currentColor 18%, transparent)",
}
"""Colours that follow the page: text and lines, what is filled with the background, and the grid."""
_SETTINGS = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "figure.dpi": 96,
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelcolor": palette.ink,
    "axes.edgecolor": palette.grey,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "lines.linewidth": 2.0,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "text.color": palette.ink,
    "xtick.color": palette.ink,
    "ytick.color": palette.ink,
}


def figure(rows: int = 1, columns: int = 1, *, width: float = 8.0, height: float = 3.8, **subplots):
    """`(Figure, axes)` in the course's look, in inches; `subplots` goes to `Figure.subplots`.

    Also makes this look matplotlib's default in the process. The figure is unknown to pyplot: nothing shows it twice,
    nothing has to close it.
    """
    import matplotlib
    from cycler import cycler
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colours = [c for c in palette if c not in (palette.yellow, palette.grey, palette.ink)]
    matplotlib.rcParams.update(_SETTINGS | {"axes.prop_cycle": cycler(color=colours)})
    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made, made.subplots(rows, columns, **subplots)


def png(fig) -> tuple[bytes, dict]:
    """The figure as PNG bytes, and the size in CSS pixels at which to show it; pyplot forgets the figure."""
    buffer = io.BytesIO()
    fig.savefig(buffer, dpi=_DPI, format="png", facecolor=fig.get_facecolor())
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close(fig)
    width, height = fig.get_size_inches()
    return buffer.getvalue(), {"width": round(width * 96), "height": round(height * 96)}


def html(fig, alt: str) -> str:
    """The figure for a page: SVG inline, or a PNG where the SVG would be larger than `_MOST_SVG` bytes."""
    picture = svg(fig, alt)
    if len(picture) <= _MOST_SVG:
        return picture
    data, size = png(fig)
    source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return f'<img src="{source}" width="{size["width"]}" alt="{escape(alt, quote=True)}">'


def svg(fig, alt: str = "", salt: str = "") -> str:
    """The figure as SVG whose ink and background are those of the page; `salt` keeps the ids of two figures apart.

    Texts stay texts, in the page's own font.
    """
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt or alt}):
        fig.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.S)
    for colour, themed in _THEMED.items():
        text = text.replace(colour, themed)
    text = re.sub(r"font-family: [^;\"]*", "font-family: sans-serif", text)
    text = re.sub(r'<style type="text/css">.*?</style>| id="\w+_\d+"', "", text, flags=re.S)  # both are the page's
    label = f' role="img" aria-label="{escape(alt, quote=True)}"' if alt else ""
    return text.replace("<svg", f'<svg style="{_SVG_STYLE}"{label}', 1).strip()


def words(fig) -> str:
    """The figure's titles and labels: its text form, where no picture can be shown."""
    titles = [fig.get_suptitle(), *(axes.get_title("left") or axes.get_title() for axes in fig.axes)]
    found = [title.replace("\n", " ") for title in titles if title]
    return "figure: " + ("; ".join(found) or "without a title")
