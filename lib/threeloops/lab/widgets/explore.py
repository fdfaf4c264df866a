"""`explore`: move a slider, see the figure change; where nothing can move, see the figure of the start state."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

from threeloops.lab.text.wording import describe
from threeloops.lab.widgets import style
from threeloops.lab.widgets.display import in_kernel, publish

VIEW = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class Control:
    """What one slider may hold: a range (`low`, `high`, `step`), one of `options`, or what a given `widget` admits."""

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

    def admit(self, value: Any) -> Any:
        """The value itself, or a ValueError naming what is possible."""
        if self.options and not any(value is o or (type(value) is type(o) and value == o) for o in self.options):
            raise ValueError(f"{self.name} = {describe(value)}: expected one of {describe(list(self.options))}")
        possible = (int,) if self.integers else (int, float)
        if self.low is not None and not (type(value) in possible and self.low <= value <= self.high):
            noun = "an integer" if self.integers else "a number"
            raise ValueError(f"{self.name} = {describe(value)}: expected {noun} from {self.low} to {self.high}")
        return value


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def control(name: str, spec: Any) -> Control:
    """Read `(low, high, step, start)`, a list of options, or an ipywidgets widget."""
    if hasattr(spec, "observe") and hasattr(spec, "value"):
        return Control(name, spec.value, widget=spec)
    if type(spec) is list:
        if not spec:
            raise ValueError(f"{name} = []: expected at least one option")
        return Control(name, spec[0], options=tuple(spec))
    if type(spec) is not tuple or len(spec) != 4 or not all(map(_is_number, spec)):
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
        self.picture = self.message = self.view = None
        self.png, self.size = style.png(self.figure())

    def figure(self):
        """The figure of the present values, drawn anew."""
        fig = self.draw(**self.values)
        if not hasattr(fig, "savefig"):
            raise TypeError(f"draw({self._state()}) returned {describe(fig)}: expected a matplotlib Figure")
        return fig

    def set(self, **values: Any) -> None:
        """Move sliders as a reader would: what `draw` raises is kept in `.error`.

        Raises ValueError for an unknown name and for a value that the slider cannot take.
        """
        for name, value in values.items():
            if name not in self.controls:
                raise ValueError(f"{name}: no such slider; there are {', '.join(self.controls)}")
            self.controls[name].admit(value)
        if self.widgets:
            for name, value in values.items():
                self.widgets[name].value = value
        else:
            self.values.update(values)
            self.redraw()

    def redraw(self) -> None:
        """Draw the present values; a draw that fails leaves the last picture and says why, in the widget."""
        try:
            self.png, self.size = style.png(self.figure())
            self.error = ""
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        if self.picture is not None:
            self.picture.value = self.png
            shown = f'<pre style="color:{style.palette.vermillion}">{escape(self.error)}</pre>'
            self.message.value = shown if self.error else ""

    def attach(self) -> None:
        """Build the live widgets; only where a kernel can speak to a front end."""
        import ipywidgets

        self.widgets = {name: c.widget or _widget(c) for name, c in self.controls.items()}
        self.picture = ipywidgets.Image(value=self.png, format="png", width=self.size["width"])
        self.message = ipywidgets.HTML()
        for name, widget in self.widgets.items():
            widget.observe(lambda change, name=name: self._moved(name, change["new"]), names="value")
        self.view = ipywidgets.VBox([*self.widgets.values(), self.picture, self.message])

    def _moved(self, name: str, value: Any) -> None:
        self.values[name] = value
        self.redraw()

    def show(self) -> None:
        """Emit the one output: the live view, where there is one, and the picture."""
        bundle = {"image/png": base64.b64encode(self.png).decode()}
        if self.view is not None:
            bundle[VIEW] = {"version_major": 2, "version_minor": 0, "model_id": self.view.model_id}
        said = f"explorer at {self._state()}"
        publish(said, bundle, {"image/png": self.size | {"alt": said}})

    def _state(self) -> str:
        return ", ".join(f"{name} = {describe(value)}" for name, value in self.values.items())

    def _ipython_display_(self) -> None:
        """Shown once, by `explore`; as the last expression of a cell the handle adds nothing."""

    def __repr__(self) -> str:
        return f"Explorer({self._state()})"


def _widget(c: Control):
    import ipywidgets

    wide = {
        "description": c.name.replace("_", " "),
        "style": {"description_width": "initial"},
        "layout": ipywidgets.Layout(width="28rem"),
    }
    if c.options:
        return ipywidgets.Dropdown(options=[(str(o), o) for o in c.options], value=c.start, **wide)
    kind = ipywidgets.IntSlider if c.integers else ipywidgets.FloatSlider
    if not c.integers:
        wide["readout_format"] = ".4g"
    return kind(value=c.start, min=c.low, max=c.high, step=c.step, continuous_update=False, **wide)


def explore(draw: Callable, **sliders: Any) -> Explorer:
    """Show `draw(**values) -> Figure` under one slider a keyword.

    A slider is `(low, high, step, start)` (integers give an integer slider), a list of options (the first is the
    start), or an ipywidgets widget. One output holds the live view and the PNG of the start state, so an exported page
    shows it too. An exception in the first draw is raised; one after a move is shown under the last good picture.
    """
    if not sliders:
        raise ValueError("explore: expected at least one slider; a figure that never changes needs show.figure")
    explorer = Explorer(draw, {name: control(name, spec) for name, spec in sliders.items()})
    if in_kernel():
        explorer.attach()
    explorer.show()
    return explorer
