"""Number formats and their scales: the recipes of lab 05, and its pictures of bits, gradients, scales and losses."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from threeloops.figures import figure, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

__all__ = [
    "RECIPES", "Training", "cast", "draw_bits", "draw_gradients", "draw_losses", "draw_master",
    "draw_number_line", "draw_row", "draw_scale", "draw_training", "draw_windows", "stored", "train",
]  # fmt: skip

RECIPES = {"nvfp4": 4.5, "delayed": 8, "current": 8, "mxfp8": 8.25, "bfloat16": 16, "float32": 32}
"""The bits per element of each recipe, with their share of the scales. The cheapest comes first."""
_E4M3_LARGEST = 448.0
_E2M1 = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BLOCKS = {"mxfp8": 32, "nvfp4": 16}
_SMALLEST_AMAX = 1e-30


def stored(x: "Tensor", recipe: str, history: Sequence[float] = ()) -> "Tensor":
    """Return float32 x of shape (rows, k) as a recipe stores it, in float32 again.

    `history` holds amaxes of earlier tensors, for the recipe `delayed`. `mxfp8` has a power of two per 32 neighbours,
    rounded up so that nothing is clipped (arXiv:2506.08027). `nvfp4` has an e4m3 scale per 16 neighbours, and a float32
    scale for the tensor (arXiv:2509.25149).
    """
    if recipe == "float32":
        return x
    if recipe == "bfloat16":
        return x.bfloat16().float()
    if recipe in ("delayed", "current"):
        amax = max(history) if history and recipe == "delayed" else _amax(x)
        return _in_e4m3(x, _E4M3_LARGEST / amax)
    blocks = x.unflatten(-1, (-1, _BLOCKS[recipe]))
    unit = _units(x, recipe)
    if recipe == "mxfp8":
        return _in_e4m3(blocks, 1 / unit).flatten(-2)
    return torch.where(unit > 0, _in_e2m1(blocks / unit) * unit, 0.0).flatten(-2)


def _amax(x: "Tensor") -> float:
    return max(x.abs().max().item(), _SMALLEST_AMAX)


def _units(x: "Tensor", recipe: str) -> "Tensor":
    """Return what the number 1 of the format stands for in each block of x, of shape (…, blocks, 1)."""
    if recipe == "current":
        return torch.full((*x.shape[:-1], 1, 1), _amax(x) / _E4M3_LARGEST)
    top = x.unflatten(-1, (-1, _BLOCKS[recipe])).abs().amax(-1, keepdim=True)
    if recipe == "mxfp8":
        return 2.0 ** torch.ceil(torch.log2(top.clamp(min=2.0**-100) / _E4M3_LARGEST))
    whole = _E2M1[-1] * _E4M3_LARGEST / _amax(x)
    return (top / _E2M1[-1] * whole).to(torch.float8_e4m3fn).float() / whole


def _in_e4m3(x: "Tensor", scale: "float | Tensor") -> "Tensor":
    """Return x · scale, limited to ±448 and rounded to float8_e4m3fn, and divided by the scale again."""
    return (x * scale).clamp(-_E4M3_LARGEST, _E4M3_LARGEST).to(torch.float8_e4m3fn).float() / scale


def _in_e2m1(x: "Tensor") -> "Tensor":
    """Round x to the nearest of ±0, 0.5, 1, 1.5, 2, 3, 4 and 6, ties to even.

    `inner.precision.fp4` rounds alike, but graded runs of lab 05 withhold that package, and its cells import this one.
    """
    size = x.abs().clamp(max=_E2M1[-1])
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.copysign(torch.round(size / step) * step, x)


def draw_bits(formats: Sequence[Any], question: str) -> "Figure":
    """Draw a box per bit, and ask the question about all formats but the first.

    A format has a `name`, `exponent_bits` and `mantissa_bits`.
    """
    fig, axes = figure(width=9.5, height=2.9)
    for row, shape in enumerate(formats):
        colours = [palette.ink] + [palette.orange] * shape.exponent_bits + [palette.sky] * shape.mantissa_bits
        axes.barh([row] * len(colours), 0.86, left=range(len(colours)), height=0.66, color=colours, alpha=0.85)
    first = formats[0]
    for place, name, colour in (
        (0.43, "sign", palette.ink),
        (1 + first.exponent_bits / 2, "exponent", palette.orange),
        (1 + first.exponent_bits + first.mantissa_bits / 2, "mantissa", palette.sky),
    ):
        axes.text(place, -0.5, name, ha="center", va="bottom", fontsize=10, color=colour, weight="bold")
    widest = max(1 + shape.exponent_bits + shape.mantissa_bits for shape in formats[1:])
    middle = len(formats) / 2
    axes.plot([widest + 0.8] * 2, [0.6, len(formats) - 0.6], color=palette.grey, lw=1.5)
    axes.text(widest + 1.6, middle, question, va="center", fontsize=13)
    axes.set_yticks(range(len(formats)), [shape.name for shape in formats])
    axes.set(xlim=(-0.3, 32), ylim=(len(formats) - 0.4, -1.1), xticks=[])
    axes.tick_params(length=0)
    _bare(axes)
    return fig


def _bare(axes: "Axes") -> None:
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)


def draw_number_line(shape: Any, value: float) -> "Figure":
    """Draw the numbers of a format around a value above 0, and an arrow to the number that it is rounded to.

    `shape` is a `FloatFormat` of `threeloops.inner.precision`.
    """
    fig, axes = figure(width=11, height=2.9)
    here = int(shape.encode(min(value, shape.largest), "toward-zero"))
    codes = np.arange(max(0, here - 8), min(shape.largest_code, here + 9) + 1)
    numbers = shape.decode(codes)
    nearest = float(shape.rounded(value))
    normal = numbers >= shape.smallest_normal
    for some, colour, name in ((normal, palette.orange, "normal"), (~normal, palette.sky, "subnormal")):
        if some.any():
            axes.vlines(numbers[some], 0, np.where(codes[some] % 2 == 0, 1.0, 0.6), colors=colour, lw=2)
            axes.text(numbers[some][0], 1.08, name, color=colour, fontsize=10)
    at = min(value, numbers[-1] + (numbers[-1] - numbers[0]) / 18)
    axes.plot(at, 1.75, "D", color=palette.ink, ms=8)
    if np.isfinite(nearest):
        arrow = {"arrowstyle": "->", "color": palette.blue, "lw": 1.8}
        axes.annotate("", (nearest, 1.03), (at, 1.67), arrowprops=arrow)
    error = f"relative error {abs(nearest - value) / value:.2g}" if np.isfinite(nearest) else "too large"
    axes.set_title(f"{shape.name}: {value:.9g} becomes {nearest:.9g}, {error}", fontsize=11)
    marked = numbers[codes % 4 == 0]
    axes.set_xticks(marked, [f"{number:.9g}" for number in marked])  # 9 digits tell float32 numbers apart
    margin = (numbers[-1] - numbers[0]) / 15
    axes.set(xlim=(numbers[0] - margin, numbers[-1] + margin), ylim=(0, 2.15), yticks=[])
    axes.set_xlabel("each line is a number of the format; the tall ones have even codes")
    axes.grid(visible=False)
    return fig


def draw_gradients(gradients: Mapping[str, Sequence[float]], marks: Mapping[str, float]) -> "Figure":
    """Draw histograms of magnitudes above 0 on a logarithmic axis, and a dotted line at each of `marks`."""
    fig, axes = figure(width=11, height=3.4)
    for (name, values), colour in zip(gradients.items(), (palette.orange, palette.blue), strict=True):
        counts, edges, _ = axes.hist(np.log10(values), np.linspace(-11.5, 0.5, 91), color=colour, alpha=0.55)
        top = int(counts.argmax())
        place = {"xytext": (-14, 2), "textcoords": "offset points", "ha": "right", "va": "top"}
        axes.annotate(f"{name}\n{len(values):,}", (edges[top], counts[top]), **place, color=colour, weight="bold")
    height = axes.get_ylim()[1]
    for name, value in marks.items():
        axes.axvline(np.log10(value), color=palette.ink, lw=1.2, ls=":")
        axes.text(np.log10(value) - 0.08, 0.97 * height, name, ha="right", va="top", fontsize=9)
    ticks = range(-11, 1, 2)
    axes.set_xticks(ticks, [f"10{_raised(power)}" for power in ticks])
    axes.set(xlabel="|gradient|", ylabel="elements", title="Gradients that are not zero in float32", xlim=(-11.5, 0.5))
    return fig


def _raised(number: int) -> str:
    return str(number).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def draw_windows(powers: Sequence[int], shares: Mapping[str, np.ndarray], usable: Mapping[str, np.ndarray]) -> "Figure":
    """Draw a strip per format: how many per cent of the gradients are zero, right, and too large at each scale.

    `shares[name]` has the per cent of zeros and of overflows, of shape (scales, 2). `usable[name]` says which scales
    lose next to nothing; a bar below the strip marks them.
    """
    fig, rows = figure(len(shares), 1, width=10, height=1.3 + 0.85 * len(shares), sharex=True)
    rows[0].set_title("What a loss scale does to the gradients", pad=24)
    for axes, (name, share) in zip(rows, shares.items(), strict=True):
        zero, beyond = share.T
        axes.stackplot(
            powers,
            zero,
            100 - zero - beyond,
            beyond,
            colors=[palette.grey, palette.sky, palette.vermillion],
            alpha=0.75,
            lw=0,
        )
        good = np.asarray(powers)[usable[name]]
        if len(good):
            axes.hlines(-12, good[0], good[-1], color=palette.green, lw=5)
        axes.set(ylim=(-24, 100), yticks=[0, 100], yticklabels=["0", "100%"], xlim=(powers[0], powers[-1]))
        axes.set_ylabel(name, rotation=0, ha="right", va="center", labelpad=4)
        axes.grid(visible=False)
    for x, name, colour in (
        (0.0, "■ rounded to zero", palette.grey),
        (0.22, "■ kept", palette.sky),
        (0.34, "■ too large", palette.vermillion),
        (0.51, "▬ a scale that loses next to nothing", palette.green),
    ):
        rows[0].text(x, 1.08, name, transform=rows[0].transAxes, color=colour, fontsize=10, weight="bold")
    ticks = range(powers[0], powers[-1] + 1, 8)
    rows[-1].set_xticks(ticks, [f"2{_raised(power)}" for power in ticks])
    rows[-1].set_xlabel("loss scale")
    return fig


def draw_scale(scales: Sequence[float], skipped: Sequence[int]) -> "Figure":
    """Draw a loss scale, step by step, with a dot at each step that was skipped."""
    fig, axes = figure(width=10, height=2.9)
    _scale_line(axes, scales, skipped)
    axes.set(xlabel="step", title="The scaler finds its level, and tries a larger one again and again")
    return fig


def _scale_line(axes: "Axes", scales: Sequence[float], skipped: Sequence[int]) -> None:
    powers = np.log2(scales)
    axes.step(range(len(powers)), powers, where="post", color=palette.blue)
    axes.plot(skipped, [powers[step] for step in skipped], "o", color=palette.vermillion, ms=5)
    if skipped:
        first = skipped[len(skipped) // 3]
        axes.annotate(
            "skipped: a gradient is infinite",
            (first, powers[first]),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            color=palette.vermillion,
        )
    ticks = sorted({int(power) for power in np.linspace(powers.min(), powers.max(), 4)})
    axes.set_yticks(ticks, [f"2{_raised(power)}" for power in ticks])
    axes.set(ylabel="loss scale", ylim=(powers.min() - 0.8, powers.max() + 0.8))


def draw_master(step: int) -> "Figure":
    """Draw a weight of 1 after some updates of 1/4096, in bfloat16 alone and with a float32 master."""
    fig, axes = figure(width=10, height=2.6)
    at = step / 4096
    spacing = 1 / 128
    numbers = np.arange(0, 3) * spacing
    rows = (
        ("bfloat16 alone", 0.0, "o", palette.vermillion),
        ("float32 master", at, "D", palette.ink),
        ("bfloat16 of the master", round(at / spacing) * spacing, "o", palette.blue),
    )
    for row, (name, place, marker, colour) in enumerate(rows):
        if marker == "o":
            axes.vlines(numbers, row - 0.3, row + 0.3, color=palette.grey, lw=2)
        axes.plot(place, row, marker, ms=11, color=colour)
        axes.text(-0.0012, row, name, ha="right", va="center", fontsize=11, color=colour)
    axes.set_xticks(numbers, ["1", "1 + 1/128", "1 + 2/128"])
    axes.set(xlim=(-0.0075, 0.0175), ylim=(2.6, -0.6), yticks=[], title=f"after {step} updates of 1/4096")
    axes.grid(visible=False)
    return fig


_ROWS = {
    "current": "one scale for the row, 8 bits",
    "mxfp8": "mxfp8: a scale per 32, 8 bits",
    "nvfp4": "nvfp4: a scale per 16, 4 bits",
}


def draw_row(x: "Tensor") -> "Figure":
    """Draw one row of numbers, of shape (k,), as three recipes store it.

    Grey lines are the numbers that each block can hold. A ring is an element, a dot what is stored of it, and a cross
    an element that becomes zero.
    """
    fig, rows = figure(len(_ROWS), 1, width=11, height=7.2, sharex=True)
    sizes = x.abs().numpy()
    places = np.arange(len(sizes))
    low = sizes[sizes > 0].min() / 3
    high = sizes.max() * 2
    for axes, (recipe, name) in zip(rows, _ROWS.items(), strict=True):
        levels = np.array(_E2M1) if recipe == "nvfp4" else _e4m3()
        units = _units(x, recipe).flatten().tolist()
        width = len(sizes) / len(units)
        for block, unit in enumerate(units):
            shown = levels * unit
            shown = shown[(shown > low) & (shown < high)]
            axes.hlines(shown, block * width - 0.4, (block + 1) * width - 0.6, color=palette.grey, lw=0.5, alpha=0.6)
        as_stored = stored(x[None], recipe)[0].abs().numpy()
        gone = as_stored == 0
        axes.vlines(places[~gone], sizes[~gone], as_stored[~gone], color=palette.blue, lw=1)
        axes.plot(places, sizes, "o", mfc="none", color=palette.ink, ms=5, mew=1)
        axes.plot(places[~gone], as_stored[~gone], "o", color=palette.blue, ms=3)
        axes.plot(places[gone], np.full(gone.sum(), low * 1.25), "x", color=palette.vermillion, ms=6, mew=1.6)
        off = 100 * np.sqrt(np.mean((as_stored[~gone] / sizes[~gone] - 1) ** 2))
        lost = f"{gone.sum()} of {len(sizes)} become zero (✕)" if gone.any() else "nothing becomes zero"
        axes.set_title(f"{name}: {lost}, the others are off by {off:.2g}%", fontsize=11)
        axes.set(yscale="log", ylim=(low, high), xlim=(-1, len(sizes)), ylabel="|x|")
        axes.minorticks_off()
        axes.grid(visible=False)
    rows[-1].set_xticks(range(0, len(sizes) + 1, 16))
    rows[-1].set_xlabel("element;  ○ the number,  • as stored,  grey lines: all that its block can store")
    return fig


def _e4m3() -> np.ndarray:
    """Return the numbers of float8_e4m3fn above 0."""
    return torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()


@dataclass
class Training:
    """The loss and the loss scale of each step, and the numbers of the skipped steps."""

    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)


def cast(x: "Tensor", name: str) -> "Tensor":
    """Round float32 x by PyTorch's cast to the dtype of this name. float8_e4m3fn, without infinities, saturates."""
    limited = x.clamp(-_E4M3_LARGEST, _E4M3_LARGEST) if name == "float8_e4m3fn" else x
    return limited.to(getattr(torch, name)).float()


def train(
    batches: Iterable[tuple["Tensor", "Tensor"]],
    steps: Any,
    rescaled: Callable[[Any, float], Any],
    rounded: Callable[["Tensor", str], "Tensor"] = cast,
    recipe: str = "delayed",
    seconds: float = 20.0,
) -> Training:
    """Train linear layers with a ReLU between them, whose products get 8-bit numbers, for at most so many seconds.

    Args:
        batches: inputs of shape (batch, k) and labels.
        steps: has the bfloat16 or float32 `weights`, the loss `scale` and `step(gradients) -> skipped`.
        rescaled: the state of delayed scaling after a tensor, from the state before it (None at first) and its amax.
        rounded: rounds a float32 tensor to the format of a name.
        recipe: how the inputs of the layers are stored. "float32" trains in float32 throughout.
        seconds: no step begins later.
    """
    plain = recipe == "float32"
    result = Training()
    states: list[Any] = [None] * len(steps.weights)
    begun = time.monotonic()
    for number, (x, labels) in enumerate(batches):
        inputs = []
        weights = [stored(weight.float(), recipe if plain else "current") for weight in steps.weights]
        for layer, weight in enumerate(weights):
            scale = 1.0 if states[layer] is None else states[layer].scale
            states[layer] = rescaled(states[layer], float(x.abs().max()))
            inputs.append(rounded(x * scale, "float8_e4m3fn") / scale if recipe == "delayed" else stored(x, recipe))
            x = inputs[layer] @ weight.T
            x = x.relu() if weight is not weights[-1] else x
        result.losses.append(functional.cross_entropy(x, labels).item())
        result.scales.append(steps.scale)
        error = (x.softmax(1) - functional.one_hot(labels, x.shape[1])) * (steps.scale / len(labels))
        gradients: list[Tensor] = []
        for layer, weight in reversed(list(enumerate(weights))):
            error = error if plain else rounded(error, "float8_e5m2")
            gradient = error.T @ inputs[layer]
            gradients.insert(0, gradient if plain else rounded(gradient, "float16").half())
            error = (error @ weight) * (inputs[layer] > 0)
        if steps.step(gradients):
            result.skipped.append(number)
        if time.monotonic() - begun > seconds:
            break
    return result


def draw_training(runs: Mapping[str, Training], shown: str, per_epoch: int) -> "Figure":
    """Draw the losses of trainings as `draw_losses` does, and the loss scale of the run `shown`."""
    fig, (above, below) = figure(2, 1, width=11, height=5.4, gridspec_kw={"height_ratios": [2.4, 1]}, sharex=True)
    _loss_lines(above, {name: run.losses for name, run in runs.items()}, per_epoch)
    above.set_title("The loss, averaged over an epoch, and the loss scale below")
    _scale_line(below, runs[shown].scales, runs[shown].skipped)
    below.set(xlabel="step")
    return fig


def draw_losses(losses: Mapping[str, Sequence[float]], per_epoch: int, title: str) -> "Figure":
    """Draw the losses of trainings, averaged over an epoch, with each name at the end of its line.

    The first two curves are wide and pale, so that the others can lie on them.
    """
    fig, axes = figure(width=11, height=3.6)
    _loss_lines(axes, losses, per_epoch)
    axes.set(xlabel="step", title=title)
    return fig


def _loss_lines(axes: "Axes", losses: Mapping[str, Sequence[float]], per_epoch: int) -> None:
    colours = (palette.grey, palette.orange, palette.blue, palette.vermillion, palette.purple)
    longest = max(map(len, losses.values()))
    ends = []
    for place, (name, values) in enumerate(losses.items()):
        smooth = np.convolve(values, np.ones(per_epoch) / per_epoch, mode="valid")
        width = max(1.6, 7 - 3 * place)
        axes.plot(
            np.arange(len(smooth)) + per_epoch,
            smooth,
            color=colours[place],
            lw=width,
            alpha=0.5 if width > 2 else 1.0,
            ls=":" if place == 4 else "-",
        )
        ends.append((smooth[-1], name, colours[place]))
    low, high = axes.get_ylim()
    at = low
    for end, name, colour in sorted(ends):
        at = max(end, at + 0.09 * (high - low))
        axes.text(longest * 1.01, at, f"{name}: {end:.3f}", color=colour, va="center", fontsize=10, weight="bold")
    axes.set(ylabel="loss", xlim=(0, longest * 1.4), xticks=range(0, longest + 1, 100))
