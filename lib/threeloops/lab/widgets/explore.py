"""`explore`: move a slider and see the figure change; an exported page shows the figure of the start state."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

from threeloops.lab.text.wording import describe
from threeloops.lab.widgets import style
from threeloops.lab.widgets.display import in_kernel, publish

__all__ = ["Control", "Explorer", "explore"]

_VIEW = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class Control:
    """One slider: over a range (`low`, `high`, `step`), over `options`, or the author's own `widget`."""

    name: str
    start: Any
    low: float | None = None
    high: float | None = None
    step: float | None = None
    options: tuple = ()
    widget: Any = None

    @property
    def integers(self) -> bool:
        return all(type(n) is int for n in (self.low, self.high, self.step, self.start))

    def require(self, value: Any) -> None:
        """Raises ValueError if the slider cannot take the value; the message names what it can."""
        if self.options and not any(value is o or (type(value) is type(o) and value == o) for o in self.options):
            raise ValueError(f"{self.name} = {describe(value)}: expected one of {describe(list(self.options))}")
        possible = (int,) if self.integers else (int, float)
        if self.low is not None and not (type(value) in possible and self.low <= value <= self.high):
            noun = "an integer" if self.integers else "a number"
            raise ValueError(f"{self.name} = {describe(value)}: expected {noun} from {self.low} to {self.high}")

    def build(self) -> Any:
        import ipywidgets

        if self.widget is not None:
            return self.widget
        look = {
            "description": self.name.replace("_", " "),
            "style": {"description_width": "initial"},
            "layout": ipywidgets.Layout(width="28rem"),
        }
        if self.options:
            return ipywidgets.Dropdown(options=[(str(o), o) for o in self.options], value=self.start, **look)
        bounds = {"min": self.low, "max": self.high, "step": self.step, "continuous_update": False}
        if self.integers:
            return ipywidgets.IntSlider(self.start, **bounds, **look)
        return ipywidgets.FloatSlider(self.start, readout_format=".4g", **bounds, **look)


def _control(name: str, spec: Any) -> Control:
    """Read `(low, high, step, start)`, a list of options, or an ipywidgets widget."""
    if hasattr(spec, "observe") and hasattr(spec, "value"):
        return Control(name, spec.value, widget=spec)
    if type(spec) is list:
        if not spec:
            raise ValueError(f"{name} = []: expected at least one option")
        return Control(name, spec[0], options=tuple(spec))
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
    return Control(name, start, low, high, step)


class Explorer:
    """The handle that `explore` returns: `.values`, `.set(**values)`, `.figure()`, `.png`, `.error`, `.widgets`."""

    def __init__(self, draw: Callable, controls: dict[str, Control]) -> None:
        self.draw, self.controls = draw, controls
        self.values = {name: c.start for name, c in controls.items()}
        self.error = ""
        self.widgets: dict[str, Any] = {}
        self.picture = self.message = None
        self.png, self.size = style.png(self.figure())

    def figure(self):
        """The figure of the present values, drawn anew."""
        fig = self.draw(**self.values)
        if not hasattr(fig, "savefig"):
            raise TypeError(f"draw({self.state()}) returned {describe(fig)}: expected a matplotlib Figure")
        return fig

    def set(self, **values: Any) -> None:
        """Move sliders as a reader would: what `draw` raises is kept in `.error`.

        Raises ValueError for an unknown name and for a value that the slider cannot take.
        """
        for name, value in values.items():
            if name not in self.controls:
                raise ValueError(f"{name}: no such slider; there are {', '.join(self.controls)}")
            self.controls[name].require(value)
        if self.widgets:
            for name, value in values.items():
                self.widgets[name].value = value
        else:
            self._moved(values)

    def _moved(self, values: dict[str, Any]) -> None:
        """Draw the new values; a draw that fails leaves the last picture and says why, in the widget."""
        self.values.update(values)
        try:
            self.png, self.size = style.png(self.figure())
            self.error = ""
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        if self.picture is not None:
            self.picture.value = self.png
            shown = f'<pre style="color:{style.palette.vermillion}">{escape(self.error)}</pre>'
            self.message.value = shown if self.error else ""

    def attach(self):
        """Build the live widgets and return the box that holds them; only where a kernel can speak to a front end."""
        import ipywidgets

        self.widgets = {name: c.build() for name, c in self.controls.items()}
        self.picture = ipywidgets.Image(value=self.png, format="png", width=self.size["width"])
        self.message = ipywidgets.HTML()
        for name, widget in self.widgets.items():
            widget.observe(lambda change, name=name: self._moved({name: change["new"]}), names="value")
        return ipywidgets.VBox([*self.widgets.values(), self.picture, self.message])

    def state(self) -> str:
        return ", ".join(f"{name} = {describe(value)}" for name, value in self.values.items())

    def __repr__(self) -> str:
        return f"Explorer({self.state()})"

    def _ipython_display_(self) -> None:
        """Nothing: `explore` has shown it, also where the handle is the last expression of a cell."""


def explore(draw: Callable, **sliders: Any) -> Explorer:
    """Show `draw(**values) -> Figure` under one slider per keyword.

    A slider is `(low, high, step, start)` (integers give an integer slider), a list of options (the first is the
    start), or an ipywidgets widget. One output holds the live view and the PNG of the start state, so an exported page
    shows it too. An exception in the first draw is raised; one after a move is shown under the last good picture.
    """
    if not sliders:
        raise ValueError("explore: expected at least one slider; a figure that never changes needs show.figure")
    explorer = Explorer(draw, {name: _control(name, spec) for name, spec in sliders.items()})
    bundle: dict[str, Any] = {"image/png": base64.b64encode(explorer.png).decode()}
    if in_kernel():
        bundle[_VIEW] = {"version_major": 2, "version_minor": 0, "model_id": explorer.attach().model_id}
    said = f"explorer at {explorer.state()}"
    publish(said, bundle, {"image/png": explorer.size | {"alt": said}})
    return explorer
