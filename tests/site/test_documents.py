"""Links of the site: to its own pages, and to the repository if its address is known."""

import pytest
from threeloops_grader.site import documents, explorers

REPOSITORY = "https://github.com/owner/course"
TEXT = (
    "[run a class](docs/teaching/README.md#roster), [all](docs/teaching), [code](lib/threeloops/units.py), "
    "[ask](../../issues)"
)


def linked(tmp_path, name="README.md"):
    return documents._linked(TEXT, name, name, {"docs/teaching/README.md", "index.md"}, tmp_path)


def test_a_link_to_a_file_leads_to_the_repository(tmp_path, monkeypatch):
    monkeypatch.setenv("THREELOOPS_REPOSITORY", REPOSITORY)
    assert linked(tmp_path) == (
        "[run a class](docs/teaching/README.md#roster), [all](docs/teaching/README.md), "
        f"[code]({REPOSITORY}/blob/main/lib/threeloops/units.py), [ask]({REPOSITORY}/issues)"
    )


def test_without_an_address_such_a_link_is_its_text(tmp_path, monkeypatch):
    monkeypatch.delenv("THREELOOPS_REPOSITORY", raising=False)
    assert linked(tmp_path).endswith("[all](docs/teaching/README.md), code, ask")


def test_links_in_code_stay(tmp_path, monkeypatch):
    monkeypatch.delenv("THREELOOPS_REPOSITORY", raising=False)
    text = "```\n[a](b.md)\n```\n\n[a](LICENSE)\n"
    assert documents._linked(text, "x.md", "x.md", set(), tmp_path) == "```\n[a](b.md)\n```\n\na\n"


def test_a_page_has_buttons_if_the_repository_has_an_address(monkeypatch):
    monkeypatch.delenv("THREELOOPS_REPOSITORY", raising=False)
    assert documents.colab_links(["01_roofline"]) == {} == documents.edit_links(["index"])
    monkeypatch.setenv("THREELOOPS_REPOSITORY", REPOSITORY)
    pages = ["labs/01_roofline/01_roofline_dives", "docs/learning", "index", "api/lab"]
    assert documents.colab_links(["01_roofline_dives"]) == {
        pages[0]: "https://colab.research.google.com/github/owner/course/blob/colab/01_roofline_dives.ipynb"
    }
    files = ["solutions/01_roofline/01_roofline_dives.py", "docs/learning.md", "docs/site/index.md"]
    edited = {page: f"{REPOSITORY}/edit/main/{file}" for page, file in zip(pages, files, strict=False)}
    assert documents.edit_links(pages) == edited


@pytest.mark.parametrize(("size", "width"), [("12", 432), ("6", 864)])
def test_a_drawing_is_as_wide_as_its_smallest_text_needs(size, width):
    drawing = (
        '<svg style="max-width:100%;min-width:min(576pt,34rem)" viewBox="0 0 576 200" role="img">'
        f'<text style="font-size: {size}px">a</text><text style="font: 14px sans-serif">b</text></svg>'
    )
    assert f"min-width:{width}px" in explorers.legible(drawing)
