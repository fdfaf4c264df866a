"""`reports/silicon.json`: every predicted kernel beside the present predictor and the nearest neighbour."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.silicon_intervals import INTERVALS, from_other_devices, intervals_text
from benchmarks.silicon_report import REPORTS, markdown, write_report

COVERED = 0.8
PAGE = Path(__file__).parents[5] / "docs/predictions.md"


@pytest.fixture(scope="module")
def report():
    return write_report(REPORTS)


def test_it_is_written_and_says_who_measured(report):
    assert json.loads((REPORTS / "silicon.json").read_text()) == report
    assert report["times"] == "measured by NVIDIA (aiconfigurator-core 0.12.0), not by us"
    assert len(report["kernels"]) == 71


def test_the_page_shows_its_errors(report):
    """If it does not, the errors have changed: replace the table by the one that the failure prints."""
    shown = PAGE.read_text().partition("<!-- errors")[2].partition("-->")[2].partition("<!-- end of errors")[0]
    assert shown.strip() == markdown(report).strip()


def test_each_party_has_its_errors(report):
    for name, kernel in report["kernels"].items():
        for party in ("in-sample", "held-out", "present predictor", "nearest neighbour"):
            assert {"n", "MAPE", "p90", "bias"} <= kernel[party].keys(), name
        assert kernel["in-sample"]["n"] + kernel["held-out"]["n"] > kernel["held-out"]["n"] > 0


def test_the_fitted_models_beat_the_present_predictor(report):
    for kind, parties in report["kinds"].items():
        assert parties["held-out"]["MAPE"] < 0.6 * parties["present predictor"]["MAPE"], kind


def test_an_h200_is_predicted_by_its_data_sheet_and_the_constants_of_an_h100(report):
    assert report["kernels"]["product bf16, H200 SXM"]["constants of another device"]["MAPE"] <= 0.09


def test_the_intervals_of_predict_hold_four_of_five_held_out_rows(report):
    kernels = {name: of for name, of in report["kernels"].items() if "inside its interval" in of["present predictor"]}
    own = {
        name: of
        for name, of in kernels.items()
        if of["kind"] in ("product", "attention of prompts", "attention while decoding", "layer of experts")
    }
    assert len(own) == 27
    for name, kernel in own.items():
        assert kernel["present predictor"]["inside its interval"] >= COVERED, name
    rows = [of["present predictor"]["n"] for of in kernels.values()]
    shares = [of["present predictor"]["inside its interval"] for of in kernels.values()]
    assert np.average(shares, weights=rows) >= COVERED


def test_the_intervals_are_what_a_fit_gives():
    pytest.importorskip("scipy")
    fitted = json.loads(intervals_text())
    shipped = json.loads(INTERVALS.read_text())
    assert fitted.keys() == shipped.keys()
    for device, kinds in shipped.items():
        assert fitted[device].keys() == kinds.keys()
        for kind, numbers in kinds.items():
            assert fitted[device][kind] == pytest.approx(numbers, rel=0.02, abs=1e-7), (device, kind)


def test_intervals_carry_over_to_a_device_that_they_were_not_fitted_on():
    """They do for products and prompts; decoding is on the device that differs most, the L40S, mostly from the L2."""
    pytest.importorskip("scipy")
    shares = from_other_devices()
    assert shares["product bf16"] >= COVERED and shares["attention bf16"] >= COVERED
    assert shares["decoding bf16"] >= 0.7
