"""The look of the course's figures: one palette that colour-blind readers can tell apart, one set of sizes.

The background is opaque white, so that figures are readable on dark pages too.
"""

import io
import sys

from threeloops.palette import palette

__all__ = ["figure", "png", "words"]

_DPI = 144
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
    "grid.color": "#dddddd",
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


def words(fig) -> str:
    """The figure's titles and labels: its text form, where no picture can be shown."""
    titles = [fig.get_suptitle(), *(axes.get_title("left") or axes.get_title() for axes in fig.axes)]
    found = [title.replace("\n", " ") for title in titles if title]
    return "figure: " + ("; ".join(found) or "without a title")
