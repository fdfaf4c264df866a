"""The benchmark of a newcomer's first minutes: every step is timed, and only a green card ends it."""

import json
from pathlib import Path

import pytest
from threeloops.hardware.capability import probe
from threeloops_grader.machine.child_process import CODE
from threeloops_grader.machine.provenance import provenance

from benchmarks import first_hour
from benchmarks.result import Unmeasured


@pytest.fixture(scope="module")
def about():
    return provenance(probe(), "cpu")


@pytest.fixture
def chromium():
    """Skips, with the reason, where the browser is missing."""
    try:
        first_hour._browser()
    except Unmeasured as missing:
        pytest.skip(str(missing))


@pytest.mark.browser
def test_a_newcomer_with_an_environment_gets_a_green_card_and_every_step_is_timed(about, chromium):
    written = json.loads(first_hour.measure(about, quick=True).to_json())
    seconds = {row["what"]: row["samples"][0] for row in written["series"]}
    total = seconds.pop(first_hour._TOTAL)
    assert set(seconds) == {first_hour._CLONE, first_hour._ADDRESS, first_hour._OPEN, first_hour._CARD}
    assert all(value > 0 for value in seconds.values()) and total == pytest.approx(sum(seconds.values()))
    assert "making one is not in the sum" in written["notes"][0]
    assert str(CODE) not in json.dumps(written) and str(Path.home()) not in json.dumps(written)


@pytest.mark.browser
def test_a_red_card_is_no_time(about, chromium, monkeypatch):
    wrong = "def saxpy_bytes(n, element_bytes):\n    return 7\n"
    monkeypatch.setattr(first_hour, "_answer", lambda lab, exercise: wrong)
    with pytest.raises(Unmeasured, match="the check of saxpy_bytes shows: ✗"):
        first_hour.measure(about, quick=True)


def test_the_environment_is_complete_at_the_last_step_that_make_venv_ends():
    begun, ended = (
        (1.0, "installing torch from https://an.index …"),
        [(50.0, "  done in 49 s"), (90.5, "  done in 40 s")],
    )
    started = first_hour._Started(100.0, "", [begun, *ended, (95.0, "[I ServerApp] …")])
    assert started.environment_seconds == 90.5
    assert started.steps == ["1.0 s: installing torch", "50.0 s: done in 49 s", "90.5 s: done in 40 s"]
    assert f'print(f"{first_hour._MADE}' in (CODE / "scripts/make_venv.py").read_text()


def test_what_is_missing_is_named_before_anything_is_fetched(about, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unmeasured, match="git and make: not installed"):
        first_hour.measure(about, quick=False)
    for name in ("git", "make"):
        (tmp_path / name).touch(mode=0o755)
    with pytest.raises(Unmeasured, match="apt install chromium|playwright is not installed"):
        first_hour.measure(about, quick=False)
