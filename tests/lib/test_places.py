"""Names of files of source text in messages."""

import pytest
from threeloops.places import is_cell, source_name


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("/tmp/ipykernel_3176/3933860996.py", "cell"),
        ("<ipython-input-1-79dfae78ef5a>", "cell"),
        ("/home/me/train.py", "train.py"),
        ("C:\\me\\train.py", "train.py"),
        ("train.py", "train.py"),
    ],
)
def test_a_message_names_no_folder_and_no_temporary_file(file, name):
    assert source_name(file) == name
    assert is_cell(file) == (name == "cell")
