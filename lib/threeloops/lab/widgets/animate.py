"""`animate`: frames that play in JupyterLab and in an exported page, without a kernel and without a script.

All frames are drawn once, as SVG that follows the page's theme, and lie on top of each other. CSS shows one at a time.
A reader can stop, and pick a frame by its dot. If a page removes SVG, the picture of one frame is shown instead.
"""

import base64
import hashlib
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from threeloops.lab.widgets import style
from threeloops.lab.widgets.display import publish

__all__ = ["animate"]

_MOST_BYTES = 1 << 20
_MOST_SECONDS = 60.0


def animate(
    draw: Callable[[Any], Any], frames: Sequence[Any], *, seconds: float = 0.5, caption: str = "", still: int = -1
) -> None:
    """Show `draw(frame) -> Figure` for each of `frames`, `seconds` each, over and over.

    `caption` is the text form. `still` is the index of the frame that is shown if nothing can move, or if the reader
    wants no motion. Raises ValueError if the animation is longer than a minute or larger than 1 MiB: then use fewer
    frames, or simpler figures.
    """
    total = len(frames) * seconds
    if len(frames) < 2 or not seconds > 0 or total > _MOST_SECONDS:
        raise ValueError(
            f"animate: {len(frames)} frames of {seconds:g} s take {total:g} s: expected at least 2 frames, and at most "
            f"{_MOST_SECONDS:g} s in all"
        )
    figures = [draw(frame) for frame in frames]
    pictures = [style.svg(figure, salt=str(number)) for number, figure in enumerate(figures)]
    html = _player(pictures, seconds, caption, still % len(frames))
    if len(html.encode()) > _MOST_BYTES:
        raise ValueError(
            f"animate: {len(frames)} frames make {len(html.encode()) / 2**20:.1f} MiB: expected at most 1 MiB; use "
            "fewer frames, or draw less in each"
        )
    data, size = picture = style.png(figures[still])
    text = caption or style.words(figures[still])
    bundle = {
        "text/html": style.with_still(html, picture, text),
        "image/png": base64.b64encode(data).decode(),
    }
    publish(f"animation of {len(frames)} frames: {text}", bundle, {"image/png": size | {"alt": text}})


def _player(pictures: list[str], seconds: float, caption: str, still: int) -> str:
    """One group of radio buttons: the first lets the frames take turns, each of the others shows one."""
    name = "anim-" + hashlib.sha256("".join(pictures).encode()).hexdigest()[:12]
    count = len(pictures)
    total = len(pictures) * seconds
    chosen = ",\n".join(
        f".{name} > .pick:nth-of-type({n + 1}):checked ~ .frames > :nth-child({n})" for n in range(1, count + 1)
    )
    css = f"""
.{name} {{ max-width: {style.WIDTH}; }}
.{name} > .frames {{ position: relative; margin-top: .3em; }}
.{name} > .frames > * {{ position: absolute; inset: 0; visibility: hidden; }}
.{name} > .frames > :first-child {{ position: relative; }}
.{name} > .play:checked ~ .frames > * {{ animation: {name} {total:g}s step-end infinite; }}
@keyframes {name} {{ 0% {{ visibility: visible; }} {100 / count:.4f}% {{ visibility: hidden; }} }}
{chosen} {{ visibility: visible; animation: none; }}
@media (prefers-reduced-motion: reduce) {{
.{name} > .play:checked ~ .frames > * {{ animation: none; }}
.{name} > .play:checked ~ .frames > .still {{ visibility: visible; }}
}}
.{name} > .pick {{ margin: 0 .1em; width: .7em; height: .7em; vertical-align: middle; }}
"""
    chosen_frame = ' class="still"'
    delays = "".join(
        f'<div{chosen_frame * (n == still)} style="animation-delay:{n * seconds:g}s">{picture}</div>'
        for n, picture in enumerate(pictures)
    )
    picks = "".join(
        f'<input class="pick" type="radio" name="{name}" aria-label="frame {n} of {count}">'
        for n in range(1, count + 1)
    )
    play = f'<input class="play" type="radio" name="{name}" id="{name}" checked><label for="{name}">play</label> '
    label = f'<div style="opacity:.75;font-size:90%">{escape(caption)}</div>' if caption else ""
    return f'<div class="{name}"><style>{css}</style>{play}{picks}<div class="frames">{delays}</div>{label}</div>'
