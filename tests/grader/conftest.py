"""Lets these tests import their toy course: pytest's importlib mode adds no folder to the path."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def toy(tmp_path):
    """The sources of a course of one lab, in a folder of this test's own; nothing is released yet."""
    from toy_course import make_course

    return make_course(tmp_path)
