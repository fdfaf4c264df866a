"""The scripts in examples/ run as they are, and docs/examples.md shows each of them with what it prints."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("write_examples", ROOT / "scripts/write_examples.py")
writer = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(writer)

MOST_LINES = 40
SECTIONS = re.split(r"(?m)^## ", writer.PAGE.read_text(encoding="utf-8"))[1:]


def test_every_example_is_on_the_page_in_its_order():
    assert sorted(f"{name}.py" for name in writer.EXAMPLES) == sorted(p.name for p in (ROOT / "examples").iterdir())
    assert [re.search(r"examples/(\w+)\.py", text)[1] for text in SECTIONS] == list(writer.EXAMPLES)


@pytest.mark.parametrize(("name", "shown"), list(zip(writer.EXAMPLES, SECTIONS, strict=True)), ids=writer.EXAMPLES)
def test_an_example_is_short_and_prints_what_the_page_shows(name, shown, tmp_path):
    assert len(writer.text_of(name).splitlines()) <= MOST_LINES
    printed = writer.run(name, tmp_path)
    pictures = sorted(path.name for path in tmp_path.glob("*.svg"))
    expected = writer.section(name, printed, pictures).removeprefix("\n## ")
    assert shown.strip() == expected.strip(), "python scripts/write_examples.py writes the page anew"
    for picture in pictures:
        assert (writer.IMAGES / f"example_{picture}").is_file()


def test_an_example_that_fails_says_what_it_said(tmp_path, monkeypatch):
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples/broken.py").write_text("raise SystemExit('no such GPU')")
    monkeypatch.setattr(writer, "ROOT", tmp_path)
    with pytest.raises(RuntimeError, match="broken.py ended with 1:\nno such GPU"):
        writer.run("broken", tmp_path)
