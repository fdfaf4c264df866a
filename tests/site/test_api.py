"""The pages of the library's packages, written from signatures and docstrings."""

import re

from threeloops_grader.site import api


def test_every_public_name_has_a_signature_or_a_text(tmp_path):
    assert api.write(tmp_path) == ["api/index"]
    pages = sorted((tmp_path / "api").glob("*.md"))
    assert len(pages) > 50
    empty = []
    for path in pages:
        if path.name != "index.md":
            sections = re.split(r"^## ", path.read_text(), flags=re.MULTILINE)[1:]
            empty += [
                f"{path.stem}.{name}" for name, _, body in (s.partition("\n") for s in sections) if not body.strip()
            ]
    assert empty == []


def test_a_page_shows_signatures_members_and_sections_as_lists():
    page = api.page("threeloops.inner.meter")
    assert page.startswith("# inner.meter\n\nThe traffic meter")
    assert "## meter\n\n```python\ndef meter(" in page.replace("@contextmanager\n", "")
    assert "- `size_bytes: int" in page and "@classmethod\ndef of(" in page


def test_sections_of_a_docstring_become_lists_and_examples_code():
    text = api._text(
        "Do it.\n\n>>> do(1)\n1\n\nArgs:\n    n: how often, from\n        the first on.\n    *more: others.\n\n"
        "Raises:\n    ValueError: if n < 0."
    )
    assert text == (
        "Do it.\n\n```python\n>>> do(1)\n1\n```\n\n**Args**\n\n- `n`: how often, from the first on.\n"
        "- `*more`: others.\n\n**Raises**\n\n- `ValueError`: if n < 0."
    )
