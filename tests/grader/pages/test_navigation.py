"""Links of report pages: back to the others, to each section, light and dark, without a script."""

import re

import nbformat
import pytest
from threeloops_grader.authoring.labs import find_lab
from threeloops_grader.course import course_report
from threeloops_grader.pages import pages
from threeloops_grader.pages.navigation import PageLink, anchored, navigation

MARKDOWN = nbformat.v4.new_markdown_cell


@pytest.fixture(scope="module")
def lab_page():
    """A notebook with headings that look alike, one with code and one with markup, as `make course` renders it."""
    cells = [MARKDOWN(f"## {text}\n\nprose") for text in ("Why?", "Why?", "α < β & `γ`", "The *end*")]
    notebook = nbformat.v4.new_notebook(cells=[*cells, nbformat.v4.new_code_cell("1 + 1")])
    return pages.notebook_page(
        notebook, "03", [PageLink("All labs", "../course.html"), PageLink("Deep dives", "x.html")]
    )


def test_a_labs_page_leads_back_and_to_each_of_its_sections(lab_page):
    (found,) = re.findall(r'<nav class="pages".*?</nav>', lab_page, re.DOTALL)
    targets = re.findall(r'href="([^"]*)">([^<]*)</a>', found)
    assert targets[:2] == [("../course.html", "All labs"), ("x.html", "Deep dives")]
    assert [text for _, text in targets[2:]] == ["Why?", "Why?", "α &lt; β &amp; γ", "The end"]
    assert all(f'id="{target.removeprefix("#")}"' in lab_page for target, _ in targets[2:])


def test_a_labs_page_is_dark_where_its_reader_is_and_loads_nothing(lab_page):
    (dark,) = re.findall(r'<style media="\(prefers-color-scheme: dark\)">(.*?)</style>', lab_page, re.DOTALL)
    assert re.search(r"--jp-layout-color0: (#111|var\(--md-grey-900|black)", dark)
    assert "color-scheme: light dark" in lab_page and "max-width: 62rem" in lab_page
    assert pages.remote_references(lab_page) == [] and "<script" not in lab_page


def test_headings_get_ids_of_their_own():
    same = "<h2>Notation and units</h2>"
    body = anchored(f'{same}<h2 id="x">Kept</h2>{same}<h2>…</h2>')
    ids = re.findall(r'id="([^"]*)"', body)
    assert len(set(ids)) == len(ids) == 4 and ids[0] == "notation-and-units"
    assert anchored(body) == body


def test_a_short_page_without_neighbours_has_no_navigation():
    assert navigation(anchored("<h2>One</h2>"), []) == ""
    assert "nav" not in pages.page("A page", "lead", "<h2>One</h2>").partition("<body>")[2]
    assert navigation("", [PageLink("All <labs>", 'a"b')]).count("&") == 3, "texts and addresses are escaped"


def test_each_page_of_a_lab_names_the_others():
    lab = find_lab("03")
    core, dives = (course_report._beside(each, lab.notebooks) for each in lab.notebooks)
    assert [link.href for link in core] == ["../course.html", "../claims.html", "03_triton_fusion_dives.html"]
    assert [link.href for link in dives] == ["../course.html", "../claims.html", "03_triton_fusion.html"]
