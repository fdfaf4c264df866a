"""Where a person sits before a notebook: each front end as its kernels look, and the same kernels with nobody there."""

import sys
from types import ModuleType

import pytest
from threeloops.lab import check
from threeloops.lab.widgets import display

VARIABLES = ("JPY_SESSION_NAME", "KAGGLE_KERNEL_RUN_TYPE", "NBGRADER_EXECUTION", "COLAB_RELEASE_TAG")
NOBODY = {
    "papermill": {},
    "papermill on a machine of Colab's": {"COLAB_RELEASE_TAG": "release-colab-2026"},
    "Kaggle saves a version": {"KAGGLE_KERNEL_RUN_TYPE": "Batch", "JPY_SESSION_NAME": "x.ipynb"},
    "nbgrader": {"JPY_SESSION_NAME": "x.ipynb", "NBGRADER_EXECUTION": "autograde"},
}
SOMEBODY = {
    "JupyterLab": {"JPY_SESSION_NAME": "01_roofline/01_roofline.ipynb"},
    "Kaggle": {"KAGGLE_KERNEL_RUN_TYPE": "Interactive"},
}


@pytest.fixture
def kernel(monkeypatch):
    """A kernel with these variables, and with what a front end has loaded into it."""

    def make(variables, *, colab=False):
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(display, "in_kernel", lambda: True)
        monkeypatch.delitem(sys.modules, "google.colab", raising=False)
        if colab:
            monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))

    return make


@pytest.mark.parametrize("name", SOMEBODY)
def test_somebody_sits_before_it(kernel, name):
    kernel(SOMEBODY[name])
    assert display.live()


@pytest.mark.parametrize("name", NOBODY)
def test_nobody_does(kernel, name):
    kernel(NOBODY[name])
    assert not display.live()


def test_colab_is_known_by_what_its_page_loads_into_the_kernel(kernel):
    kernel({}, colab=True)
    assert display.live()
    kernel({"KAGGLE_KERNEL_RUN_TYPE": "Batch"}, colab=True)
    assert not display.live(), "Kaggle's machines are Colab's"


def test_in_colab_run_all_goes_on_past_a_wrong_and_an_unwritten_answer(kernel, capsys):
    def wrong():
        check.equal(1, 2, what="the sum")

    def unwritten():
        raise NotImplementedError()

    kernel({}, colab=True)
    for answer in (wrong, unwritten):
        with check("mean", "the mean"):
            answer()
    said = capsys.readouterr().out
    assert "the sum" in said and "mean is not written yet" in said
    kernel({})
    with pytest.raises(AssertionError), check("mean", "the mean"):
        wrong()
