"""No lab gives points for an answer that is copied from its visible cells or from the library."""

import subprocess
import sys

import pytest
from threeloops_grader.proposals.trial import why_not_alone


def search(source):
    """Run `threeloops leaks` over all labs."""
    command = [sys.executable, "-m", "threeloops_grader.cli", "leaks", "--source", source, "--jobs", "2"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_no_function_and_no_text_of_the_library_is_an_answer():
    if reason := why_not_alone():
        pytest.skip(f"the library's functions are tried in namespaces: {reason}")
    found = search("library")
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("source", ["notebook", "ranks"])
def test_no_visible_cell_spells_an_answer(source):
    found = search(source)
    assert found.returncode == 0, found.stdout + found.stderr
