"""`explore`: move a slider and see the figure change; an exported page shows the figure of the start state."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

from threeloops.lab.recording.notes import recording
from threeloops.lab.recording.page.living import living
from threeloops.lab.recording.states import MIME, states
from threeloops.lab.text.wording import describe
from threeloops.lab.widgets import style
from threeloops.lab.widgets.display import capture, html_widget, in_kernel, preformatted, publish

__all__ = ["Explorer", "explore"]

_UNITS = {
    "us": "µs", "µs": "µs", "ms": "ms", "s": "s", "seconds": "s", "minutes": "min", "hours": "h", "gbs": "GB/s",
    "GBs": "GB/s", "KiB": "KiB", "MiB": "MiB", "GiB": "GiB", "percent": "%",
}  # fmt: skip
"""Units, by the last part of an argument's name."""
_COUNTED = ("thousand", "million", "billion")
_SPELLED = {"gpu": "GPU", "gpus": "GPUs", "alpha": "α", "beta": "β"}


def _label(name: str) -> str:
    """An argument's name as people write it: `decode_ms` is "decode (ms)", `thousand_tokens` "tokens (thousands)"."""
    words = [_SPELLED.get(word, word) for word in name.split("_")]
    unit = ""
    if len(words) > 1 and words[-1] in _UNITS:
        unit = _UNITS[words.pop()]
        if len(words) > 1 and words[-1] == "in":
            words.pop()
    elif len(words) > 1 and words[0] in _COUNTED:
        unit = f"{words.pop(0)}s"
    return " ".join(words) + (f" ({unit})" if unit else "")


def _slider(name: str, label: str, spec: Any) -> tuple[Any, Callable[[], Any]]:
    """Return the start value of `(low, high, step, start)`, a list of options or a widget, and a function that makes
    the widget."""
    if hasattr(spec, "observe") and hasattr(spec, "value"):
        return spec.value, lambda: spec
    if type(spec) is list:
        if not spec:
            raise ValueError(f"{name} = []: expected at least one option")
        options = [(str(option), option) for option in spec]
        return spec[0], lambda: _widget("Dropdown", label, options=options, value=spec[0])
    if type(spec) is not tuple or len(spec) != 4 or not all(type(n) in (int, float) for n in spec):
        wanted = "(low, high, step, start), a list of options, or a widget"
        raise ValueError(f"{name} = {describe(spec)}: expected {wanted}")
    low, high, step, start = spec
    if not low < high:
        raise ValueError(f"{name}: low = {low}, high = {high}: expected low < high")
    if not 0 < step <= high - low:
        raise ValueError(f"{name}: step = {step}: expected a positive step of at most {high - low}")
    if not low <= start <= high:
        raise ValueError(f"{name}: start = {start}: expected a value from {low} to {high}")
    bounds = {"min": low, "max": high, "step": step, "value": start, "continuous_update": False}
    if all(type(n) is int for n in spec):
        return start, lambda: _widget("IntSlider", label, **bounds)
    return start, lambda: _widget("FloatSlider", label, readout_format=".4g", **bounds)


def _widget(kind: str, label: str, **how: Any) -> Any:
    import ipywidgets

    look = {"style": {"description_width": "initial"}, "layout": ipywidgets.Layout(width="28rem", max_width="100%")}
    return getattr(ipywidgets, kind)(description=label, **look, **how)


def _state(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {describe(value)}" for name, value in values.items())


class Explorer:
    """The handle that `explore` returns: `.values`, `.figure()`, `.html`, `.png`, `.error`, `.widgets`."""

    def __init__(
        self,
        draw: Callable,
        specifications: dict[str, Any],
        labels: Mapping[str, str] | None = None,
        examples: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.draw = draw
        self.specifications = specifications
        self.examples = examples or {}
        self.labels = {name: (labels or {}).get(name) or _label(name) for name in specifications}
        sliders = {name: _slider(name, self.labels[name], spec) for name, spec in specifications.items()}
        self.values = {name: start for name, (start, _) in sliders.items()}
        self.error = ""
        self.widgets: dict[str, Any] = {}
        self._show(self.figure())
        self._make_widget = {name: make for name, (_, make) in sliders.items()}

    def figure(self):
        """Draw a new figure of the current values."""
        return self._drawn(self.values)

    def _drawn(self, values: Mapping[str, Any]):
        fig = self.draw(**values)
        if not hasattr(fig, "savefig"):
            raise TypeError(f"draw({_state(values)}) returned {describe(fig)}: expected a matplotlib Figure")
        return fig

    def drawing(self, values: Mapping[str, Any]) -> str:
        """Return the picture of other values as HTML, and leave the explorer as it is."""
        with capture():
            return style.svg(self._drawn(values), self.said(values), f"state of {self.labels}", quick=True)

    def _show(self, figure) -> None:
        self.png, self.size = still = style.png(figure)
        self.html = style.html(figure, self.said(), still)

    def publish(self) -> None:
        """One output: the live view, and the picture of the start state for an exported page."""
        bundle: dict[str, Any] = {"text/html": self.html, "image/png": base64.b64encode(self.png).decode()}
        widget = self.attach() if in_kernel() and not recording() else None
        if recording() and (drawn := states(self)):
            bundle |= {MIME: drawn, "text/html": living(drawn, self.html)}
        publish(self.said(), bundle, {"image/png": self.size | {"alt": self.said()}}, widget)

    def said(self, values: Mapping[str, Any] | None = None) -> str:
        """Return the text that stands for the picture of these values, the current ones by default."""
        shown = self.values if values is None else values
        return "explorer at " + ", ".join(f"{self.labels[name]} = {describe(v)}" for name, v in shown.items())

    def attach(self):
        """Build the live widgets and return the box that holds them. This needs a kernel that can speak to a front
        end."""
        import ipywidgets

        self.widgets = {name: make() for name, make in self._make_widget.items()}
        self.picture = html_widget(self.html)
        self.message = html_widget("")
        for name, widget in self.widgets.items():
            widget.observe(lambda change, name=name: self._moved(name, change["new"]), names="value")
        self.picture.add_class("threeloops-picture")
        return ipywidgets.VBox([*self.widgets.values(), self.picture, self.message]).add_class("threeloops-explorer")

    def _moved(self, name: str, value: Any) -> None:
        """Draw the new value; a draw that fails leaves the last picture and says why, in the widget."""
        self.values[name] = value
        try:
            self._show(self.figure())
            self.error = ""
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        self.picture.value = self.html
        self.message.value = preformatted(self.error, f"color:{style.palette.vermillion}") if self.error else ""

    def state(self) -> str:
        return _state(self.values)

    def __repr__(self) -> str:
        return f"Explorer({self.state()})"

    def _ipython_display_(self) -> None:
        """Show nothing, since `explore` has shown it, even if the handle is the last expression of a cell."""


def explore(
    draw: Callable,
    *,
    labels: Mapping[str, str] | None = None,
    examples: Mapping[str, Mapping[str, Any]] | None = None,
    **sliders: Any,
) -> Explorer:
    """Show `draw(**values) -> Figure` under one slider per keyword.

    A slider is `(low, high, step, start)` (integers give an integer slider), a list of options (the first is the
    start), or an ipywidgets widget. Its label is in `labels`, or is the name of its argument, whose last word may give
    the unit ("decode (ms)" for `decode_ms`). One output holds the live view and the picture of the start state, so an
    exported page shows it too. An exception in the first draw is raised. One after a move is shown under the last good
    picture.

    `examples` are values of all sliders, by name, for pages without a kernel. Such a page offers a menu of them instead
    of the sliders, as it must if a slider is a text field. The first example has the values of the start.
    """
    if not sliders:
        raise ValueError("explore: expected at least one slider; a figure that never changes needs show.figure")
    if unknown := [name for name in labels or {} if name not in sliders]:
        raise ValueError(f"explore: labels names {', '.join(unknown)}: expected names of sliders, {', '.join(sliders)}")
    for name, values in (examples or {}).items():
        if set(values) != set(sliders):
            raise ValueError(f"explore: example {name!r} has {', '.join(values)}: expected {', '.join(sliders)}")
    explorer = Explorer(draw, sliders, labels, examples)
    if examples and (first := next(iter(examples.values()))) != explorer.values:
        raise ValueError(f"explore: the first example has {_state(first)}: expected the start, {explorer.state()}")
    explorer.publish()
    return explorer
