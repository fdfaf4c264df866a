"""What fits on a bar."""

import pytest
from threeloops.figures import fitting, text_inches


@pytest.mark.parametrize(
    ("text", "inches", "shown"),
    [
        ("layer 17", 1.0, "layer 17"),
        ("layer 17", 0.5, "17"),
        ("layer 17", 0.1, ""),
        ("layer 3 of 12", 0.3, "12"),
        ("all_reduce", 0.5, ""),
        ("", 0.0, ""),
    ],
)
def test_a_bar_has_its_name_or_its_number_or_nothing(text, inches, shown):
    assert fitting(text, inches, 9.0) == shown


def test_a_text_grows_with_its_length_and_its_size():
    assert text_inches("abcd", 10.0) == pytest.approx(2 * text_inches("ab", 10.0)) == pytest.approx(4 * 0.6 * 10 / 72)
