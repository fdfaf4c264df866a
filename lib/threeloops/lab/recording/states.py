"""Every state of an explorer, drawn beforehand for pages without a kernel: one more form of the explorer's output."""

import math
import time
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

__all__ = ["MIME", "states"]

MIME = "application/vnd.threeloops.explorer+json"
_MOST_STATES = 160
_MOST_BYTES = 1_500_000
_MOST_SECONDS = 8.0
"""Limits of one explorer: its pictures, the bytes of their different lines (packed, they take a third), and how long
this processor draws them."""
_FEWEST_VALUES = 5
"""A grid with fewer values per control says less about each control than moving one control at a time."""


def states(explorer: Any) -> dict[str, Any] | None:
    """Draw the states of an explorer, and return its controls and pictures as JSON. None if it has a control without a
    list of values, such as a text.

    `pictures` holds the indices of lines, because pictures of one explorer share most of their lines. The key of a
    picture is the index of each control's value, such as "0,3". A state that cannot be drawn is in `errors`. If there
    are too many states, each control keeps some of its values (`of` says how many it had), or, with many controls, only
    one control at a time differs from its start (`one_at_a_time`).
    """
    choices = {name: _values(spec) for name, spec in explorer.specifications.items()}
    if any(values is None for values in choices.values()):
        return None
    starts = [values.index(explorer.values[name]) for name, values in choices.items()]
    size, seconds = _cost(explorer, choices)
    most = min(_MOST_STATES, _MOST_BYTES // size, int(_MOST_SECONDS / seconds))
    drawn, one_at_a_time = _sampled([len(values) for values in choices.values()], starts, most)
    names = list(choices)
    controls = [
        {
            "name": name,
            "label": explorer.labels[name],
            "values": [_shown(choices[name][index]) for index in indices],
            "start": indices.index(start),
            "of": len(choices[name]),
            "kind": "options" if isinstance(explorer.specifications[name], list) else "slider",
        }
        for name, indices, start in zip(names, drawn, starts, strict=True)
    ]
    lines: dict[str, int] = {}
    pictures: dict[str, list[int]] = {}
    errors: dict[str, str] = {}
    for state in _states([control["start"] for control in controls], drawn, one_at_a_time):
        key = ",".join(map(str, state))
        values = {
            name: choices[name][drawn[at][index]] for at, (name, index) in enumerate(zip(names, state, strict=True))
        }
        try:
            html = explorer.drawing(values)
        except Exception as error:  # as for a reader who moves the slider there
            errors[key] = f"{type(error).__name__}: {error}"
            continue
        pictures[key] = [lines.setdefault(line, len(lines)) for line in html.split("\n")]
    whole = {"controls": controls, "one_at_a_time": one_at_a_time, "errors": errors}
    return {**whole, "lines": list(lines), "pictures": pictures}


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


def _values(spec: Any) -> list[Any] | None:
    """Return the values that a control can take, its start among them, or None if nothing lists them."""
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
    options = getattr(spec, "options", None)
    if not options:
        return None
    return [option[1] if isinstance(option, tuple) else option for option in options]


def _shown(value: Any) -> str:
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
    share = max(most // len(counts), _FEWEST_VALUES)
    return [_spread(count, start, min(count, share)) for count, start in zip(counts, starts, strict=True)], True


def _spread(count: int, start: int, size: int) -> list[int]:
    """Return about `size` indices below `count`, evenly spread, with both ends and the start among them."""
    if size >= count:
        return list(range(count))
    even = {round(n * (count - 1) / (size - 1)) for n in range(size)} if size > 1 else set()
    if start not in even and len(even) > 2:
        even.discard(min(even - {0, count - 1}, key=lambda n: abs(n - start)))
    return sorted(even | {start})


def _states(starts: Sequence[int], drawn: Sequence[Sequence[int]], one_at_a_time: bool) -> list[tuple[int, ...]]:
    """Return the states to draw, as the index of each control's value among those that it keeps."""
    if not one_at_a_time:
        return list(product(*(range(len(indices)) for indices in drawn)))
    states = {tuple(starts): None}
    for at, indices in enumerate(drawn):
        for index in range(len(indices)):
            states[(*starts[:at], index, *starts[at + 1 :])] = None
    return list(states)
