"""The drawings of a step's memory against what they show, and training within a budget against a plain one."""

from pathlib import Path

import numpy as np
import pytest
import torch
from threeloops.inner.memory.recompute import segment_peak
from threeloops.lab.drawings.inner import budget
from threeloops.models.gpt import Block
from threeloops.models.gpt_config import GPTConfig

CONFIG = GPTConfig.tiny(layers=4, width=16, mlp_width=24, vocabulary_size=32, max_sequence=16)
TWO_SEGMENTS = [
    ("keep", 0), ("forward", 0), ("forward", 1), ("keep", 2), ("forward", 2), ("forward", 3),
    ("restore", 2), ("record", 2), ("record", 3), ("backward", 3), ("backward", 2),
    ("restore", 0), ("record", 0), ("record", 1), ("backward", 1), ("backward", 0),
]  # fmt: skip
LAST_ONE_AT_ONCE = [
    ("keep", 0), ("forward", 0), ("forward", 1), ("record", 2), ("record", 3), ("backward", 3), ("backward", 2),
    ("restore", 0), ("record", 0), ("record", 1), ("backward", 1), ("backward", 0),
]  # fmt: skip


def mean_loss(weights, tokens, targets):
    raise AssertionError("the loss of this module: expected that of the GPT")


def accumulated(weights, tokens, targets, micro):
    """Sums of losses in parts, divided by the targets that count."""
    total = (targets != -100).sum()
    sums = [
        mean_loss(weights, some, wanted) * (wanted != -100).sum()
        for some, wanted in zip(tokens.split(micro), targets.split(micro), strict=True)
    ]
    loss = sum(sums) / total
    return loss.detach(), torch.autograd.grad(loss, weights)


def adamw(folder, parameter, gradient, step):
    """A step of PyTorch's optimizer, with its moments in a file."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    weight = parameter.clone().requires_grad_()
    weight.grad = gradient
    optimizer = torch.optim.AdamW([weight], foreach=False)
    if step > 1:
        optimizer.load_state_dict(torch.load(path / "state"))
    optimizer.step()
    torch.save(optimizer.state_dict(), path / "state")
    return weight.detach()


@pytest.mark.parametrize(
    ("sizes", "ends"), [((1, 2, 1), (24, 14, 14)), ((3, 1, 3), (42, 36, 36)), ((1, 5, 1), (42, 32, 32))]
)
def test_a_second_buffer_hides_the_shorter_of_link_and_update(sizes, ends):
    panels = budget.draw_journey(*sizes).axes
    titles = [axes.get_title(loc="left") for axes in panels]
    assert [float(title.split(": ")[1].split()[0]) for title in titles] == list(ends)
    bars = [[bar for bar in axes.patches if bar.get_y() < 0.2] for axes in panels]  # of the link
    for row in bars:
        at = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in row)
        assert all(before[1] <= after[0] for before, after in zip(at, at[1:], strict=False))


def test_a_frame_shows_what_is_held_and_the_bound_is_above_all_frames():
    kept, recorded = [[0], [0], [0], [0], []], [[], [], [1], [1], [1]]
    actions = [("keep", 0), ("forward", 0), ("record", 1), ("record", 1), ("backward", 0)]
    left, right = budget.draw_held(actions, kept, recorded, 1, 2).axes
    blue, orange = left.patches[:2], left.patches[2:]
    assert [bar.get_height() for bar in blue] == [1, 0]
    assert [bar.get_height() > 0 for bar in orange] == [False, True]
    assert left.get_title(loc="left") == "record 1: 1·b + 1·c held"
    held, dot, bound = (list(line.get_ydata()) for line in right.lines)
    assert held == [1, 1, 7, 7, 6] and dot == [7] and bound == [8, 8]


def test_the_bars_of_segments_are_the_formula():
    axes = budget.draw_segments(12, 2.0**20, 3.0 * 2**20, {2: 5.0}, 36.0 * 2**20).axes[0]
    heights = [bar.get_height() for bar in axes.patches]
    sums = [a + b for a, b in zip(heights[:6], heights[6:], strict=True)]
    assert sums == [segment_peak(12, k, 1.0, 3.0) for k in (1, 2, 3, 4, 6, 12)]


@pytest.mark.parametrize("actions", [TWO_SEGMENTS, LAST_ONE_AT_ONCE])
def test_a_schedule_is_carried_out_and_trains_as_without_one(actions, monkeypatch):
    training = budget.Training(CONFIG, batch=4, length=16)
    training.plain()
    plain = training.parameters
    calls = []
    forward = Block.forward
    monkeypatch.setattr(Block, "forward", lambda self, *args: (calls.append(self), forward(self, *args))[1])
    training.within(4, 2, None, schedule=lambda layers, k: actions, accumulated=accumulated, update=adamw)
    assert np.linalg.norm(training.parameters - plain) < 1e-5 * np.linalg.norm(plain)
    blocks = list(dict.fromkeys(calls))  # in order, as every schedule computes the layers
    computed = [layer for action, layer in actions if action in ("forward", "record")]
    assert [blocks.index(block) for block in calls] == computed * training.steps


def test_training_in_parts_with_moments_in_files_is_the_same_training(tmp_path):
    training = budget.Training(CONFIG, batch=4, length=16)
    training.plain()
    plain = training.parameters
    training.within(3, 0, str(tmp_path), schedule=None, accumulated=accumulated, update=adamw)
    assert np.linalg.norm(training.parameters - plain) < 1e-5 * np.linalg.norm(plain)
    assert len(list(tmp_path.glob("*/state"))) == len(list(training._model().parameters()))
    with pytest.raises(AssertionError, match="the loss of this module"):
        accumulated([], training.tokens, training.targets, 4)


def test_pictures_name_their_peaks_and_their_budget():
    training = budget.Training(CONFIG, batch=4, length=16)
    line = budget.tracked(training.plain)
    figure = budget.draw_within(line, line, 1e6, (line.peak_bytes, 2_000_000), ("first", "second"))
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert words.count("budget") == 2 and "peak, by your tracker: 2.0 MB" in words
    left, right = budget.draw_timelines(line, line).axes
    assert f"{line.peak_bytes / 2**20:.2f} MiB at the loss" in [text.get_text() for text in (*left.texts, *right.texts)]
    bars = {"small": {"parameter": 2 * 10**9}, "large": {"parameter": 10**9, "activation": 4 * 10**9}}
    named = [text.get_text() for text in budget.draw_budgets(bars, 3e9, "two").axes[0].texts]
    assert {"2 GB", "5 GB", "dashed: the GPU, 3 GB"} <= set(named)
    assert sum(text.get_text().endswith(": ?") for text in budget.draw_kinds().axes[0].texts) == 6
