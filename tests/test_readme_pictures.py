"""What the README shows: its length, charts and recording; and the forms beside it for people who ask or cite."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import draw_readme_pictures as drawing

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 120


@pytest.mark.parametrize("name", drawing.pictures())
def test_a_chart_is_what_the_evidence_gives(name):
    text = (ROOT / ".github/images" / name).read_text(encoding="utf-8")
    assert text == drawing.pictures()[name], f"run `python scripts/draw_readme_pictures.py`: {name} is out of date"
    ElementTree.fromstring(text)


@pytest.mark.parametrize("name", drawing.CHARTS)
def test_the_readme_quotes_the_number_of_its_chart(name):
    assert drawing.CHARTS[name]().sentence in README
    assert f".github/images/{name}.svg" in README


def test_bars_are_as_long_as_their_values():
    chart = drawing.Chart("t", (drawing.Bar("a", 1.0, "1"), drawing.Bar("b", 4.0, "4")), "a <b> & c")
    bars = ElementTree.fromstring(chart.svg()).findall("{*}rect")
    widths = [float(bar.get("width")) for bar in bars]
    assert widths[1] == pytest.approx(4 * widths[0], rel=0.01)
    assert widths[1] + drawing.NAMES + drawing.VALUES <= drawing.WIDTH


def test_the_recording_is_short_small_and_moves():
    file = ROOT / ".github/images/first_exercise.gif"
    assert file.stat().st_size <= 1_500_000
    with Image.open(file) as recording:
        assert recording.n_frames > 20
        milliseconds = 0
        for frame in range(recording.n_frames):
            recording.seek(frame)
            milliseconds += recording.info["duration"]
    assert 10_000 < milliseconds < 60_000


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/*_TEMPLATE/*.yml")), ids=lambda path: path.name)
def test_a_template_asks_for_something(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.name == "config.yml":
        return
    assert all(field["attributes"]["label"] for field in form["body"])
    if path.parent.name == "ISSUE_TEMPLATE":
        assert form["name"] and form["description"]


def test_the_citation_has_the_version_that_is_released():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = drawing.tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["version"] == project["version"]
    assert " AND ".join(citation["license"]) == project["license"]
