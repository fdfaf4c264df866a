"""Lab 05's recipes against the numbers of each format, its training against autograd, and what its pictures show."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from threeloops.figures import palette
from threeloops.inner.precision.formats import FLOAT8_E4M3FN, FLOAT_FORMATS
from threeloops.lab import animate
from threeloops.lab.drawings.inner import formats
from threeloops.lab.drawings.inner.formats import RECIPES, stored
from threeloops.lab.widgets import style
from torch.nn import functional

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
"""The magnitudes of codes 0 to 7: of two equally near ones the even code wins."""


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_nvfp4_rounds_to_the_nearest_of_eight_magnitudes():
    values = torch.cat((torch.arange(0, 6, 0.125), -torch.arange(0.125, 6, 0.125), drawn(500).clamp(-6, 6)))
    for value in values.tolist():
        row = torch.tensor([[value, 6.0, *[0.0] * 14]])  # an amax of 6 makes every scale 1
        nearest = min(enumerate(E2M1), key=lambda entry: (abs(entry[1] - abs(value)), entry[0] % 2))[1]
        assert stored(row, "nvfp4")[0, 0].item() == np.copysign(nearest, value)


def test_mxfp8_has_a_power_of_two_per_32_neighbours_and_clips_nothing():
    x = drawn(5, 96) * 10.0 ** drawn(5, 96, seed=1)
    kept = stored(x, "mxfp8")
    for block, rounded in zip(x.reshape(-1, 32).double(), kept.reshape(-1, 32).double(), strict=True):
        power = np.ceil(np.log2(block.abs().max().item() / 448))
        assert torch.equal(rounded, torch.from_numpy(FLOAT8_E4M3FN.rounded(block.numpy() / 2**power)) * 2**power)
        assert rounded.abs().max() >= block.abs().max() * (1 - 2**-4)


def test_nvfp4_keeps_the_largest_of_each_block_to_within_its_scale():
    x = drawn(4, 64)
    kept = stored(x, "nvfp4")
    off = (kept - x).abs().reshape(-1, 16).amax(1) / x.abs().reshape(-1, 16).amax(1)
    assert off.max() < (1 / 6) * (1 + 2**-4) + 2**-4  # half of e2m1's widest gap, and the rounding of an e4m3 scale
    assert stored(torch.zeros(2, 32), "nvfp4").abs().max() == 0


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_keeps_shapes_and_signs_and_no_recipe_makes_nan(recipe):
    x = torch.cat((drawn(3, 64), 1e-30 * drawn(2, 64), torch.zeros(1, 64)))
    kept = stored(x, recipe, (3.0,))
    assert kept.shape == x.shape and kept.dtype == torch.float32 and bool(kept.isfinite().all())
    assert bool((kept * x >= 0).all())
    assert list(RECIPES.values()) == sorted(RECIPES.values())


def test_a_delayed_scale_clips_what_is_larger_than_its_history():
    x = torch.tensor([[1.0, -8.0] + [0.5] * 30])
    assert stored(x, "delayed", (1.0, 2.0)).tolist()[0][:2] == [1.0, -2.0]
    assert stored(x, "current").tolist()[0][:2] == [1.0, -8.0]


def test_casts_saturate_only_where_there_is_no_infinity():
    x = torch.tensor([1e9, -1e9, 0.3])
    assert formats.cast(x, "float8_e4m3fn").tolist() == [448.0, -448.0, 0.3125]
    assert formats.cast(x, "float8_e5m2").tolist() == [np.inf, -np.inf, 0.3125]


def batches(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(drawn(8, 16, seed=step), torch.arange(8) % 4) for step in range(steps)]


WEIGHTS = [drawn(12, 16, seed=100) / 4, drawn(4, 12, seed=101) / 4]


class Steps:
    """SGD on float32 parameters with a loss scale; no scale means float32 throughout."""

    def __init__(self, scale: float | None = None):
        self.parameters = [torch.nn.Parameter(weight.clone()) for weight in WEIGHTS]
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.25, momentum=0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        self.scaler.scale(torch.zeros(()))
        self.weights = [parameter.detach() for parameter in self.parameters]

    @property
    def scale(self) -> float:
        return self.scaler.get_scale()

    def step(self, gradients: list[torch.Tensor]) -> bool:
        before = self.scale
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.float()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.scale < before


def unscaled(_state, amax):
    return type("Scale", (), {"scale": 448 / amax})()


def test_a_training_in_float32_is_that_of_autograd():
    run = formats.train(batches(6), Steps(), unscaled, recipe="float32")
    first, second = (torch.nn.Parameter(weight.clone()) for weight in WEIGHTS)
    optimizer = torch.optim.SGD([first, second], lr=0.25, momentum=0.5)
    for (x, labels), loss in zip(batches(6), run.losses, strict=True):
        optimizer.zero_grad()
        expected = functional.cross_entropy((x @ first.T).relu() @ second.T, labels)
        expected.backward()
        optimizer.step()
        assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert (run.scales, run.skipped) == ([1.0] * 6, [])


def test_a_training_in_eight_bits_backs_off_until_nothing_overflows():
    run = formats.train(batches(1) * 60, Steps(2.0**30), unscaled)
    assert run.skipped == list(range(len(run.skipped))) and 3 < len(run.skipped) < 25
    assert run.scales[: len(run.skipped) + 1] == [2.0**30 / 2**step for step in range(len(run.skipped) + 1)]
    assert run.losses[-1] < 0.5 * run.losses[0]


def test_inputs_gradients_of_activations_and_gradients_of_weights_have_formats_of_their_own():
    calls, steps = [], Steps(1.0)
    before = [parameter.detach().clone() for parameter in steps.parameters]

    def rounded(x, name):
        calls.append((name, tuple(x.shape)))
        return 0 * x if name == "float8_e5m2" else formats.cast(x, name)

    formats.train(batches(1), steps, unscaled, rounded)
    forward = [("float8_e4m3fn", (8, 16)), ("float8_e4m3fn", (8, 12))]
    backward = [("float8_e5m2", (8, 4)), ("float16", (4, 12)), ("float8_e5m2", (8, 12)), ("float16", (12, 16))]
    assert calls == forward + backward
    assert all(torch.equal(new, old) for new, old in zip(steps.parameters, before, strict=True)), "errors were zero"


def test_a_training_stops_when_its_time_is_over():
    run = formats.train(batches(5), Steps(1.0), unscaled, seconds=0.0)
    assert len(run.losses) == 1


def row(large: float = 30.0) -> torch.Tensor:
    x = drawn(64, seed=5) * torch.where(torch.arange(64) < 32, 1.0, 1e-4)
    x[5] = large
    return x


@pytest.mark.parametrize("recipe, panel", [("current", 0), ("mxfp8", 1), ("nvfp4", 2)])
def test_a_row_shows_what_is_stored_and_what_becomes_zero(recipe, panel):
    x = row()
    axes = formats.draw_row(x).axes[panel]
    kept = stored(x[None], recipe)[0].abs()
    rings, dots, crosses = axes.lines
    assert rings.get_ydata().tolist() == x.abs().tolist()
    assert dots.get_xdata().tolist() == kept.nonzero().flatten().tolist()
    assert dots.get_ydata().tolist() == kept[kept > 0].tolist()
    assert crosses.get_xdata().tolist() == (kept == 0).nonzero().flatten().tolist()
    zeros = int((kept == 0).sum())
    assert (f"{zeros} of 64 become zero" if zeros else "nothing becomes zero") in axes.get_title("left")


def test_every_stored_number_of_a_row_is_one_of_its_grey_lines():
    for recipe, axes in zip(("current", "mxfp8", "nvfp4"), formats.draw_row(row()).axes, strict=True):
        segments = [path.vertices for lines in axes.collections for path in lines.get_paths()]
        flat = [(v[0][0], v[1][0], v[0][1]) for v in segments if v[0][1] == v[1][1]]
        for place, value in enumerate(stored(row()[None], recipe)[0].abs().tolist()):
            near = [y for start, end, y in flat if start <= place <= end and y == pytest.approx(value, rel=1e-6)]
            assert near or value == 0, (recipe, place, value)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("value", [1.004 * 256, 3e-7, 1e6])
def test_the_number_line_points_to_the_rounded_number(name, value):
    shape = FLOAT_FORMATS[name]
    axes = formats.draw_number_line(shape, value).axes[0]
    arrows = [text.xy[0] for text in axes.texts if getattr(text, "arrow_patch", None)]
    nearest = float(shape.rounded(value))
    assert arrows == ([nearest] if np.isfinite(nearest) else [])
    assert ("too large" in axes.get_title("left")) == (not np.isfinite(nearest))


def test_the_windows_are_green_where_a_scale_is_usable():
    powers = np.arange(-8, 9)
    share = np.stack((np.where(powers < 0, 50.0, 0.0), np.where(powers > 4, 50.0, 0.0)), axis=1)
    figure = formats.draw_windows(powers, {"a": share, "b": share}, {"a": share.sum(1) == 0, "b": powers > 100})
    lines = [[c for c in axes.collections if len(c.get_edgecolor())] for axes in figure.axes]
    green = [[c for c in some if to_hex(c.get_edgecolor()[0]) == palette.green] for some in lines]
    assert green[0][0].get_paths()[0].vertices[:, 0].tolist() == [0.0, 4.0] and green[1] == []


def test_losses_are_named_at_the_ends_of_their_lines_without_overlap():
    losses = {"float32": [2.0, 1.0] * 20, "yours": [2.0, 1.0] * 20, "no masters": [2.0, 1.2] * 20}
    axes = formats.draw_losses(losses, 2, "title").axes[0]
    texts = sorted((text.get_position()[1], text.get_text()) for text in axes.texts)
    assert [text for _, text in texts] == ["float32: 1.500", "yours: 1.500", "no masters: 1.600"]
    assert min(np.diff([place for place, _ in texts])) > 0


def test_pictures_follow_the_page_and_are_small():
    run = formats.Training([2.0, 1.0] * 60, [1024.0] * 60 + [512.0] * 60, [59])
    pictures = (
        formats.draw_bits(tuple(FLOAT_FORMATS.values()), "Why?"),
        formats.draw_gradients({"a": np.logspace(-9, -2, 99), "b": np.logspace(-6, -1, 99)}, {"end": 6e-8}),
        formats.draw_row(row()),
        formats.draw_scale([2.0**30, 2.0**29, 2.0**29], [0]),
        formats.draw_training({"float32": run, "yours": run}, "yours", 22),
    )
    for picture in pictures:
        text = style.svg(picture, "picture")
        assert not [colour for colour in (palette.ink, "#000000", "#ffffff") if colour in text]
        assert len(text) < 300_000
    animate(formats.draw_master, range(0, 65, 8))
