"""A course of one lab for the tests of the grader."""

import pytest


@pytest.fixture
def toy(tmp_path):
    """The sources of a course of one lab, in a folder of this test's own; nothing is released yet."""
    from toy_course import make_course  # needs nbformat: without it, the GPU tests beside these must still be collected

    return make_course(tmp_path)
