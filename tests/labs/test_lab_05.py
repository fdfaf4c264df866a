"""Lab 05: its digits, the numbers of its prose, its emulated recipes, and the old names that it mentions."""

import numpy as np
import pytest
import torch
from lab_source import execute, load
from threeloops.inner.precision.formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT16, FLOAT32


def test_the_digits_are_all_there():
    with np.load(load("05_mixed_precision").folder / "data" / "digits.npz") as stored:
        images, labels = stored["images"], stored["labels"]
    assert (images.shape, images.min(), images.max()) == ((1797, 8, 8), 0, 16)
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_what_the_text_says_about_numbers():
    assert FLOAT16.epsilon / FLOAT32.epsilon == 8192
    assert BFLOAT16.rounded(1 + 2**-12) == FLOAT16.rounded(1 + 2**-12) == 1.0
    assert (float(BFLOAT16.spacing(1.0)), float(FLOAT16.spacing(1.0))) == (1 / 128, 1 / 1024)
    assert BFLOAT16.rounded([256, 257, 258]).tolist() == [256, 256, 258]
    assert 0 < FLOAT16.rounded(1e-5) < FLOAT16.smallest_normal
    assert FLOAT16.rounded(FLOAT16.smallest_subnormal / 2) == 0.0
    assert round(175e9 * 4 / 3e12 * 1e3) == 233
    assert float(BFLOAT16.spacing(0.1)) == 2**-11
    assert FLOAT8_E4M3FN.encode([0.3]).tolist() == [0x2A]


@pytest.fixture(scope="module")
def setup() -> dict:
    """What the setup cell of the lab defines."""
    names = {"__name__": "lab_05"}
    execute(load("05_mixed_precision").setup, "<lab 05 setup>", names)
    return names


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_e2m1_is_the_nearest_of_its_eight_magnitudes(setup):
    table = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]  # code 0 to 7: of two equally near ones the even code wins

    def nearest(size: float) -> float:
        return min(enumerate(table), key=lambda entry: (abs(entry[1] - size), entry[0] % 2))[1]

    values = torch.cat((torch.arange(0, 9, 0.125), -torch.arange(0.125, 9, 0.125), 3 * drawn(500)))
    expected = [float(np.copysign(nearest(abs(v)), v)) for v in values.tolist()]
    assert setup["in_e2m1"](values).tolist() == expected


def test_mxfp8_has_a_power_of_two_per_32_neighbours_and_clips_nothing(setup):
    x = drawn(5, 96) * 10.0 ** drawn(5, 96, seed=1)
    kept = setup["stored"](x, "mxfp8")
    for block, rounded in zip(x.reshape(-1, 32).double(), kept.reshape(-1, 32).double(), strict=True):
        power = np.ceil(np.log2(block.abs().max().item() / 448))
        assert torch.equal(rounded, torch.from_numpy(FLOAT8_E4M3FN.rounded(block.numpy() / 2**power)) * 2**power)
        assert rounded.abs().max() >= block.abs().max() * (1 - 2**-4)


def test_nvfp4_keeps_the_largest_of_each_block_to_within_its_scale(setup):
    x = drawn(4, 64)
    kept = setup["stored"](x, "nvfp4")
    off = (kept - x).abs().reshape(-1, 16).amax(1) / x.abs().reshape(-1, 16).amax(1)
    assert off.max() < (1 / 6) * (1 + 2**-4) + 2**-4  # half of e2m1's widest gap, and the rounding of an e4m3 scale
    assert setup["stored"](torch.zeros(2, 32), "nvfp4").abs().max() == 0


@pytest.mark.parametrize("recipe", ["nvfp4", "delayed", "current", "mxfp8", "bfloat16", "float32"])
def test_a_recipe_keeps_shapes_and_signs_and_no_recipe_makes_nan(setup, recipe):
    x = torch.cat((drawn(3, 64), 1e-30 * drawn(2, 64), torch.zeros(1, 64)))
    kept = setup["stored"](x, recipe, (3.0,))
    assert kept.shape == x.shape and kept.dtype == torch.float32 and bool(kept.isfinite().all())
    assert bool((kept * x >= 0).all())
    assert list(setup["RECIPES"].values()) == sorted(setup["RECIPES"].values())


def test_a_delayed_scale_clips_what_is_larger_than_its_history(setup):
    x = torch.tensor([[1.0, -8.0] + [0.5] * 30])
    assert setup["stored"](x, "delayed", (1.0, 2.0)).tolist()[0][:2] == [1.0, -2.0]
    assert setup["stored"](x, "current").tolist()[0][:2] == [1.0, -8.0]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_old_amp_names_still_exist_and_are_deprecated():
    with pytest.warns(FutureWarning, match="torch.amp.GradScaler"):
        torch.cuda.amp.GradScaler(enabled=False)
