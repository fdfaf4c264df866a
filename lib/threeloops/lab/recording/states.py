"""Every state of an explorer, drawn beforehand for pages without a kernel: one more form of the explorer's output."""

import math
import os
import time
from collections.abc import Mapping, Sequence
from html import escape
from itertools import product
from typing import Any

from threeloops.lab.recording.notes import VARIABLE

__all__ = ["MIME", "states"]

MIME = "application/vnd.threeloops.explorer+json"
_MOST_STATES = 640
_MOST_BYTES = 1_500_000
_SHARE_OF_SECONDS = 0.5
"""Limits of a sample: its pictures, the bytes of their different lines (packed, they take a third), and the share of
the notebook's remaining processor seconds that drawing them may take."""
_FEW_STATES = 140
"""An explorer with this few states is drawn whole if the notebook has the seconds left for it."""
_FEWEST_VALUES = 5
"""A grid with fewer values per control says less about each control than moving one control at a time."""

_spent: list[float] = []
"""The processor seconds that each explorer of this kernel took. Their sum stays within `$THREELOOPS_RECORD`, except for
the picture that is being drawn at that time, or the first pictures of an explorer, which measure its cost."""


def states(explorer: Any) -> dict[str, Any] | None:
    """Draw the states of an explorer, and return its controls and pictures as JSON. Return None if no state but the
    first can be drawn in the seconds of the notebook. Without examples, also return None if a control has no list of
    values, as a text field, or starts outside of its list, as when several values are chosen at once.

    `pictures` holds the indices of lines, because pictures of one explorer share most of their lines. The key of a
    picture is the index of each control's value, such as "0,3". A state that cannot be drawn is in `errors`. If there
    are too many states, each control keeps some of its values (`of` says how many it had), or, with many controls, only
    one control at a time differs from its start (`one_at_a_time`). A state that the seconds do not suffice for is in
    neither. If the explorer has examples, these are the only states, and the only control is a menu of them (`instead`
    says of what). `seconds` says how long the drawing took.
    """
    listed = {name: _values(spec) for name, spec in explorer.specifications.items()}
    choices = {name: values for name, values in listed.items() if explorer.values[name] in values}
    left = float(os.environ.get(VARIABLE, "inf")) - sum(_spent)
    if left <= 0 or not (explorer.examples or len(choices) == len(listed)):
        return None
    began = time.process_time()
    try:
        drawn = _examples(explorer, began + left) if explorer.examples else _drawn(explorer, choices, began + left)
    finally:
        _spent.append(time.process_time() - began)
    is_alive = len(drawn["pictures"]) + len(drawn["errors"]) > 1
    return {**drawn, "seconds": round(_spent[-1], 3)} if is_alive else None


def _drawn(explorer: Any, choices: Mapping[str, Sequence[Any]], until: float) -> dict[str, Any]:
    """Return what `states` does, and begin no picture but that of the start after the processor time `until`."""
    starts = [values.index(explorer.values[name]) for name, values in choices.items()]
    size, seconds = _cost(explorer, choices)
    counts = [len(values) for values in choices.values()]
    left = max(0.0, until - time.process_time())
    is_whole = math.prod(counts) <= _FEW_STATES and math.prod(counts) * seconds <= left
    most = int(min(_MOST_STATES, _MOST_BYTES / size, left * (1 if is_whole else _SHARE_OF_SECONDS) / seconds))
    drawn, one_at_a_time = _sampled(counts, starts, most)
    names = list(choices)
    controls = [
        {
            "name": name,
            "label": explorer.labels[name],
            "values": [_shown(choices[name][index]) for index in indices],
            "start": indices.index(start),
            "of": len(choices[name]),
            "kind": "slider" if _is_ordered(explorer.specifications[name]) else "options",
        }
        for name, indices, start in zip(names, drawn, starts, strict=True)
    ]
    settings = {
        ",".join(map(str, state)): {
            name: choices[name][drawn[at][index]] for at, (name, index) in enumerate(zip(names, state, strict=True))
        }
        for state in _states([control["start"] for control in controls], drawn, one_at_a_time)
    }
    return {"controls": controls, "one_at_a_time": one_at_a_time, **_pictures(explorer, settings, until)}


def _examples(explorer: Any, until: float) -> dict[str, Any]:
    """Return what `states` does for an explorer's examples, each with the text of its values."""
    names = list(explorer.examples)
    control = {"name": "example", "label": "example", "values": names, "start": 0, "of": len(names), "kind": "options"}
    drawn = _pictures(explorer, {str(at): explorer.examples[name] for at, name in enumerate(names)}, until)
    told = [
        "\n".join(f"{explorer.labels[name]}: {_shown(value)}" for name, value in values.items())
        for values in explorer.examples.values()
    ]
    lines = {line: at for at, line in enumerate(drawn["lines"])}
    for key, picture in drawn["pictures"].items():
        text = f'<div class="tl-example">{escape(told[int(key)])}</div>'.split("\n")
        drawn["pictures"][key] = [*(lines.setdefault(line, len(lines)) for line in text), *picture]
    errors = {key: f"{told[int(key)]}\n\n{error}" for key, error in drawn["errors"].items()}
    whole = {**drawn, "errors": errors, "lines": list(lines), "controls": [control], "one_at_a_time": False}
    return {**whole, "instead": [explorer.labels[name] for name in explorer.specifications]}


def _pictures(explorer: Any, settings: Mapping[str, Mapping[str, Any]], until: float) -> dict[str, Any]:
    """Draw the settings by their keys, and begin none but the first after the processor time `until`."""
    lines: dict[str, int] = {}
    pictures: dict[str, list[int]] = {}
    errors: dict[str, str] = {}
    for key, values in settings.items():
        if pictures and time.process_time() >= until:
            break
        try:
            html = explorer.drawing(values)
        except Exception as error:  # as for a reader who moves the slider there
            errors[key] = f"{type(error).__name__}: {error}"
            continue
        pictures[key] = [lines.setdefault(line, len(lines)) for line in html.split("\n")]
    return {"lines": list(lines), "pictures": pictures, "errors": errors}


def _cost(explorer: Any, choices: Mapping[str, Sequence[Any]]) -> tuple[int, float]:
    """Return how many bytes a picture has that the picture of the start lacks, and how long it takes to draw: means
    over one other value of each control."""
    start = set(explorer.drawing(explorer.values).split("\n"))
    new = [0]
    began = time.process_time()
    for name, values in choices.items():
        other = next((value for value in values if value != explorer.values[name]), explorer.values[name])
        try:
            picture = explorer.drawing({**explorer.values, name: other})
        except Exception:  # `states` notes it
            continue
        new.append(sum(len(line) for line in set(picture.split("\n")) - start))
    seconds = (time.process_time() - began) / len(choices)
    return max(1, sum(new) // len(choices)), max(1e-3, seconds)


def _values(spec: Any) -> list[Any]:
    """Return the values that a control can take, or an empty list if nothing lists them."""
    if isinstance(spec, list):
        return list(spec)
    if isinstance(spec, tuple):
        low, high, step, start = spec
        count = math.floor((high - low) / step + 1e-9) + 1
        values = [low + n * step for n in range(count)]
        near = min(range(count), key=lambda n: abs(values[n] - start))
        if abs(values[near] - start) < 1e-6 * step:
            values[near] = start
        else:
            values.append(start)
        return sorted(round(v, 12) if isinstance(v, float) and v != start else v for v in values)
    if isinstance(getattr(spec, "value", None), bool):
        return [False, True]
    options = getattr(spec, "options", ())
    if isinstance(options, Mapping):
        return list(options.values())
    return [option[1] if isinstance(option, tuple) else option for option in options]


def _is_ordered(spec: Any) -> bool:
    """Return whether a control's values have an order, as those of sliders do."""
    return isinstance(spec, tuple) or "Slider" in type(spec).__name__


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _sampled(counts: Sequence[int], starts: Sequence[int], most: int) -> tuple[list[list[int]], bool]:
    """Return the indices of the values to draw for each control, and whether one control moves at a time."""
    if math.prod(counts) <= most:
        return [list(range(count)) for count in counts], False
    sizes = list(counts)
    while math.prod(sizes) > most:
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        sizes[largest] -= 1
    if all(size >= min(count, _FEWEST_VALUES) for size, count in zip(sizes, counts, strict=True)):
        return [_spread(*sized) for sized in zip(counts, starts, sizes, strict=True)], False
    sizes = list(counts)
    while sum(sizes) > max(most, _FEWEST_VALUES * len(sizes)) and max(sizes) > _FEWEST_VALUES:
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        sizes[largest] -= 1
    return [_spread(*sized) for sized in zip(counts, starts, sizes, strict=True)], True


def _spread(count: int, start: int, size: int) -> list[int]:
    """Return about `size` indices below `count`, evenly spread, with both ends and the start among them."""
    if size >= count:
        return list(range(count))
    even = {round(n * (count - 1) / (size - 1)) for n in range(size)} if size > 1 else set()
    if start not in even and len(even) > 2:
        even.discard(min(even - {0, count - 1}, key=lambda n: abs(n - start)))
    return sorted(even | {start})


def _states(starts: Sequence[int], drawn: Sequence[Sequence[int]], one_at_a_time: bool) -> list[tuple[int, ...]]:
    """Return the states to draw, the start first, as the index of each control's value among those that it keeps."""
    states: dict[tuple[int, ...], None] = {tuple(starts): None}
    if not one_at_a_time:
        return list(states | dict.fromkeys(product(*(range(len(indices)) for indices in drawn))))
    for at, indices in enumerate(drawn):
        for index in range(len(indices)):
            states[(*starts[:at], index, *starts[at + 1 :])] = None
    return list(states)
