"""Lab 05: its digits, the numbers of its prose, and the old names that it mentions."""

import numpy as np
import pytest
import torch
from lab_source import load
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


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_old_amp_names_still_exist_and_are_deprecated():
    with pytest.warns(FutureWarning, match="torch.amp.GradScaler"):
        torch.cuda.amp.GradScaler(enabled=False)
