"""`reports/silicon.json`: every predicted kernel beside the present predictor and the nearest neighbour."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.silicon_intervals import INTERVALS, from_other_devices, intervals_text
from benchmarks.silicon_report import REPORTS, lines, markdown, write_report
from benchmarks.silicon_scatter import least_error, scatter

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


def test_a_line_says_how_far_a_party_is_off(report):
    (line,) = [line for line in lines(report) if line.startswith("product bf16, H100 SXM, held-out")]
    of = report["kernels"]["product bf16, H100 SXM"]["held-out"]
    assert line.endswith(f"n 440, MAPE {of['MAPE']:.1%}, p90 {of['p90']:.1%}, bias {of['bias']:.2f}")
    assert sum("inside its interval" in line for line in lines(report)) == 30


def test_the_readme_names_the_best_and_the_worst(report):
    def ends(kind):
        errors = [100 * of["held-out"]["MAPE"] for of in report["kernels"].values() if of["kind"].startswith(kind)]
        return f"{min(errors):.0f} to {max(errors):.0f}%"

    text = " ".join((PAGE.parents[1] / "README.md").read_text().split())
    worst = max(of["held-out"]["MAPE"] for of in report["kernels"].values())
    assert f"products are {ends('product')} off, attention {ends('attention')}, and" in text
    assert f"the worst kernels](docs/predictions.md) {worst:.0%}." in text


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


def test_published_exchanges_scatter_as_the_page_says():
    """By hand: between 3 and 2, a time that never falls is at best 3 or 2, and 2 is off by a third of 3."""
    assert least_error([1.0, 2.0, 3.0]) == pytest.approx([0, 0, 0], abs=1e-9)
    assert sum(least_error([1.0, 3.0, 2.0])) == pytest.approx(1 / 3)
    off = scatter()
    later = [off["H100 SXM", "deepep_v2_generation", phase] for phase in ("dispatch", "combine")]
    combined = [off[device, "deepep_ll", "combine"] for device in ("H100 SXM", "B200")]
    page = " ".join(PAGE.read_text().split())
    assert f"is {later[0]:.0%} and {later[1]:.0%} off for the second version while decoding" in page
    assert f"{combined[0]:.0%} and {combined[1]:.0%} when it combines for low latency" in page
