"""One way to show anything: as a rich bundle in a notebook, as plain text elsewhere, or later as part of another
output."""

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

from threeloops.lab.recording.notes import noted, recording

__all__ = ["Piece", "capture", "execution", "html_widget", "in_kernel", "live", "preformatted", "publish"]

_VIEW = "application/vnd.jupyter.widget-view+json"


def _shell():
    """The running IPython shell, or None in plain Python; imports nothing."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def in_kernel() -> bool:
    """True under JupyterLab, papermill and the like; False in a terminal, in plain Python and behind the wall."""
    return getattr(_shell(), "kernel", None) is not None


def execution() -> int:
    """The number that the kernel has given to the running cell; 0 outside a notebook."""
    return getattr(_shell(), "execution_count", 0)


def live() -> bool:
    """Whether a person sits at a front end that can press buttons: JupyterLab, VS Code, Colab or Kaggle.

    Colab loads its own package into the kernels of its page. Kaggle says whether it runs a notebook for its page
    ("Interactive") or saves a version of it ("Batch"), and its machines may be Colab's.
    """
    if not in_kernel() or "NBGRADER_EXECUTION" in os.environ:
        return False
    if on_kaggle := os.environ.get("KAGGLE_KERNEL_RUN_TYPE"):
        return on_kaggle == "Interactive"
    in_page = "JPY_SESSION_NAME" in os.environ or "google.colab" in sys.modules
    return in_page or "__vsc_ipynb_file__" in getattr(_shell(), "user_ns", {})


@dataclass(frozen=True)
class Piece:
    """A displayed piece: its plain text, a bundle (MIME type → data) and, if it is live, the widget itself."""

    text: str
    bundle: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    widget: Any = None

    def html(self) -> str:
        if "text/html" in self.bundle:
            return self.bundle["text/html"]
        if "image/png" in self.bundle:
            return f'<img src="data:image/png;base64,{self.bundle["image/png"]}" alt="{escape(self.text, quote=True)}">'
        return preformatted(self.text)

    def as_widget(self) -> Any:
        if self.widget is not None:
            return self.widget
        return html_widget(self.html())


def html_widget(html: str) -> Any:
    """A widget that looks like `html` in an ordinary output: JupyterLab leaves 20 pixels beside that, and none around
    it."""
    import ipywidgets

    return ipywidgets.HTML(html, layout=ipywidgets.Layout(margin="0 20px 0 0"))


_LABEL = re.compile(r" {2}[a-z]+ +(?<=^.{13})(?=\S)| *")
"""The indentation of a long line's continuation: the label of a card's line, or the line's own indentation."""


def preformatted(text: str, style: str = "") -> str:
    """HTML of a text that keeps its line breaks. JupyterLab would break long lines inside words; this breaks a word
    only if it is longer than a line, and indents the rest of a long line."""
    form = "margin:0;background:none;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
    lines = "".join(map(_line, text.split("\n")))
    return f'<pre style="{form};{style}">{lines}</pre>'


def _line(line: str) -> str:
    """Return a block whose line break shows only if a page ignores the style."""
    match = _LABEL.match(line)
    width = len(match[0]) if match else 0
    return f'<span style="display:block;padding-left:{width}ch;text-indent:-{width}ch">{escape(line)}\n</span>'


_captured: list[list[Piece]] = []


@contextlib.contextmanager
def capture() -> Iterator[list[Piece]]:
    """Keep what is published and printed inside, in order, instead of showing it.

    If the block fails, everything kept so far is shown before the exception continues.
    """
    pieces: list[Piece] = []
    _captured.append(pieces)
    printed = _Printed(pieces)
    try:
        with contextlib.redirect_stdout(printed):
            yield pieces
    except BaseException:
        _captured.pop()
        printed.flush()
        for piece in pieces:
            publish(piece.text, piece.bundle, piece.metadata, piece.widget)
        raise
    _captured.pop()
    printed.flush()


class _Printed(io.StringIO):
    """Printed text becomes a piece of its own whenever something else is shown."""

    def __init__(self, pieces: list[Piece]) -> None:
        super().__init__()
        self._pieces = pieces

    def flush(self) -> None:
        if text := self.getvalue().rstrip("\n"):
            self._pieces.append(Piece(text))
        self.seek(0)
        self.truncate()


def publish(
    text: str, bundle: dict[str, Any] | None = None, metadata: dict[str, Any] | None = None, widget: Any = None
) -> None:
    """Emit exactly one display of `bundle` (MIME type → data) with `text` as its plain form, or print the text.

    `widget` is shown instead if the front end can. `bundle` then holds its static form, which is all that a recording
    keeps: it is for pages without a kernel, and `nbconvert` would choose the widget.
    """
    metadata = noted(metadata or {})
    if _captured:
        sys.stdout.flush()
        _captured[-1].append(Piece(text, bundle or {}, metadata, widget))
        return
    if _shell() is None:
        print(text)
        return
    from IPython.display import display

    whole = {**(bundle or {}), "text/plain": text}
    if widget is not None and not recording():
        whole[_VIEW] = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    display(whole, raw=True, metadata=metadata)
