"""Decoding: what a step reads, four-bit steps under a group of weights, and guesses that are kept and rejected."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from threeloops.figures import figure, legend_above, legend_inside, name_bar, name_rows, palette

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_decode_steps", "draw_four_bits", "draw_guess", "draw_passes"]


def draw_decode_steps(
    weights: float, cache: float, flops: float, device: tuple[float, float, float], title: str
) -> "Figure":
    """Draw how long decode steps of growing batches take, as bars of what they read.

    Args:
        weights: bytes of all weights.
        cache: bytes of one sequence's keys and values.
        flops: FLOPs of one sequence's token.
        device: bytes per second, FLOP per second, and bytes of memory.
        title: what the model and the device are.
    """
    bandwidth, peak, memory = device
    most = int((memory - weights) // cache)
    batches = sorted({*(2**k for k in range(11) if 2**k < 0.8 * most), min(most, 1024)})
    plot, axes = figure(width=9.0, height=3.4)
    for place, batch in enumerate(batches):
        of_weights = 1e3 * weights / bandwidth
        of_cache = 1e3 * batch * cache / bandwidth
        arithmetic = 1e3 * batch * flops / peak
        axes.bar(place, of_weights, width=0.7, color=palette.sky)
        axes.bar(place, of_cache, width=0.7, bottom=of_weights, color=palette.orange)
        axes.plot([place - 0.42, place + 0.42], [arithmetic, arithmetic], color=palette.vermillion, lw=2.4)
        longest = max(of_weights + of_cache, arithmetic)
        axes.text(place, longest, f"{batch / longest:.2g}", ha="center", va="bottom", size=9)
    axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
    top = axes.get_ylim()[1]
    axes.set(ylim=(0, 1.45 * top), xlabel=f"sequences per step; memory is full at {most:,}", ylabel="ms per step")
    axes.set_title(f"{title}. Above the bars: thousand tokens/s", size=10)
    colours = {"reading weights": palette.sky, "reading keys and values": palette.orange}
    legend_inside(axes, colours | {"arithmetic (line)": palette.vermillion})
    return plot


def draw_four_bits(groups: dict[str, Sequence[float]]) -> "Figure":
    """Draw the weights of each group over the fifteen steps that the group's largest weight gives it."""
    plot, axes = figure(width=9.5, height=0.9 + 0.8 * len(groups))
    end = max(abs(weight) for weights in groups.values() for weight in weights)
    errors = []
    for row, weights in enumerate(groups.values()):
        scale = max(abs(weight) for weight in weights) / 7
        for step in range(-7, 8):
            axes.plot([step * scale] * 2, [row - 0.3, row + 0.3], color=palette.grey, lw=1)
        moved = [round(weight / scale) * scale for weight in weights]
        for weight, rounded in zip(weights, moved, strict=True):
            axes.plot([weight, rounded], [row, row], color=palette.vermillion, lw=2.4, solid_capstyle="butt")
        axes.plot(weights, [row] * len(weights), "o", ms=5, color=palette.blue)
        errors.append(sum((a - b) ** 2 for a, b in zip(weights, moved, strict=True)) ** 0.5)
    axes.set(xlim=(-1.08 * end, 1.08 * end), ylim=(len(groups) - 0.4, -0.7), xlabel="weight")
    name_rows(
        axes,
        list(range(len(groups))),
        [f"{name}\nerror {error:.3f}" for name, error in zip(groups, errors, strict=True)],
    )
    axes.grid(visible=False)
    axes.set_title("weights (dots), the steps of their group (grey), and how far each weight moves (red)", size=10)
    return plot


def draw_guess(draft: Sequence[float], model: Sequence[float], guess: int) -> "Figure":
    """Draw, for each token, how likely draft and model are to give it, and what becomes of a guess of the draft."""
    plot, axes = figure(width=9.0, height=3.2)
    for token, (q, p) in enumerate(zip(draft, model, strict=True)):
        shared = min(p, q)
        axes.bar(token - 0.2, shared, width=0.36, color=palette.green)
        axes.bar(token - 0.2, q - shared, width=0.36, bottom=shared, color=palette.vermillion)
        axes.bar(token + 0.2, shared, width=0.36, color=palette.green)
        axes.bar(token + 0.2, p - shared, width=0.36, bottom=shared, color=palette.orange)
        axes.text(token - 0.2, q, f"q = {q:.2f}", ha="center", va="bottom", size=9)
        axes.text(token + 0.2, p, f"p = {p:.2f}", ha="center", va="bottom", size=9)
    axes.set_xticks(range(len(draft)), [f"token {token}" for token in range(len(draft))])
    axes.set(ylim=(0, 1.4 * max(*draft, *model)), ylabel="probability", xlim=(-0.6, len(draft) - 0.4))
    share = min(1.0, model[guess] / draft[guess]) if draft[guess] else 1.0
    overlap = sum(min(q, p) for q, p in zip(draft, model, strict=True))
    axes.set_title(f"Guess {guess} is kept with probability {share:.2f}, and any guess with {overlap:.2f}", size=10)
    names = ("kept", "guessed too often: rejected", "the excess: drawn then")
    legend_inside(axes, dict(zip(names, (palette.green, palette.vermillion, palette.orange), strict=True)))
    axes.grid(axis="x", visible=False)
    return plot


def draw_passes(passes: Sequence[tuple[str, int, str]]) -> "Figure":
    """Draw passes of the target model, a row each: the guessed characters, how many were kept, and what came after."""
    plot, axes = figure(width=9.5, height=0.7 + 0.36 * len(passes))
    longest = max(len(guesses) for guesses, _, _ in passes) + 1
    for row, (guesses, accepted, drawn) in enumerate(passes):
        for place, letter in enumerate(guesses):
            if place < accepted:
                axes.barh(row, 0.92, left=place, height=0.8, color=palette.green)
                name_bar(axes, place + 0.46, row, _shown(letter), 10)
            else:
                axes.barh(row, 0.92, left=place, height=0.8, color=palette.vermillion, alpha=0.35)
                axes.text(place + 0.46, row, _shown(letter), ha="center", va="center", size=10)
        axes.barh(row, 0.92, left=longest + 0.3, height=0.8, color=palette.orange)
        name_bar(axes, longest + 0.76, row, _shown(drawn), 10)
        axes.text(longest + 1.6, row, f"{accepted + 1} token{'s' * (accepted > 0)}", va="center", size=10)
    axes.set(xlim=(-0.1, longest + 3.2), ylim=(len(passes) - 0.4, -0.6))
    name_rows(axes, list(range(len(passes))), [f"pass {row + 1}" for row in range(len(passes))])
    axes.set_xticks([])
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    legend_above(
        axes,
        {"guess kept": palette.green, "guess rejected": palette.vermillion, "drawn by the target": palette.orange},
    )
    return plot


def _shown(letter: str) -> str:
    return {" ": "␣", "\n": "↵"}.get(letter, letter)
