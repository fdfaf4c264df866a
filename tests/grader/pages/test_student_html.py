"""What a student wrote as HTML: Jupyter's markdown without anything that runs, and no text that takes long to show."""

import time

import pytest
from nbconvert.filters.markdown_mistune import MathBlockParser, MathInlineParser
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, new_raw_cell
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from threeloops_grader.pages import student_html
from threeloops_grader.pages.page_policy import formgrader_page, static_page
from threeloops_grader.pages.student_html import (
    _MAX_RENDERED,
    Highlight,
    _highlight,
    _markdown_to_html,
    page_markdown,
    text_to_html,
)
from threeloops_grader.pages.student_page import StudentPage

SLOW = (
    "\\begin{a}", "\\\\[", "\\\\(", "$a ", "$$a ", "[", "![", "[a](", "*a **b ", "*_", "`", "> ", "- ", "<", "<!-- ",
    "<div>\n", "|a|b|\n|-|-|\n", "# a\n", "a\n: b\n", "[a]: b\n", "&", "~~a ", "https://", "```\n", "\\",
)  # fmt: skip
"""Texts of which a renderer of markdown has to try many readings when they are repeated."""


class Page(dict):
    """The part of jinja's context that the filter reads."""


def shown(source: str, resources: dict | None = None) -> str:
    return page_markdown(Page(resources={} if resources is None else resources), source)


def test_what_markdown_is_for_is_there():
    page = _markdown_to_html(
        "# A *heading*\n\n> quoted\n\n1. one\n2. two\n\n- [x] done\n\n|a|b|\n|:-|-:|\n|1|2|\n\n`a < b` ~~no~~ **yes**"
        "\n\n```python\nreturn 1\n```\n\n$$a<b$$ ![p](data:image/png;base64,AAAA)"
    )
    for part in (
        '<h1 id="text-A-heading">A <em>heading</em><a class="anchor-link" href="#text-A-heading">',
        "<blockquote>\n<p>quoted</p>",
        "<ol>\n<li>one</li>",
        'type="checkbox"',
        '<td style="text-align:left">1</td>',
        "<code>a &lt; b</code> <del>no</del> <strong>yes</strong>",
        '<span class="k">return</span>',
        "$$a&lt;b$$",
        '<img src="data:image/png;base64,AAAA" alt="p">',
    ):
        assert part in page


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("[paper](https://example.org/a?b=1&c=2)", "paper (https://example.org/a?b=1&amp;c=2)"),
        ("<https://example.org/>", "https://example.org/"),
        ("https://example.org/", "https://example.org/"),
        ("[x](/formgrader?path=submitted/mallory)", "x (/formgrader?path=submitted/mallory)"),
        ("[x](javascript:alert(1))", "x (javascript:alert(1))"),
        ("![a plot](attachment:plot.png)", "[picture: a plot]"),
        ("![](https://example.org/a.png)", "[picture: without a description]"),
        ("a <b onclick=x>c</b>", "a &lt;b onclick=x&gt;c&lt;/b&gt;"),
    ],
)
def test_an_address_stands_as_text(source, text):
    assert _markdown_to_html(source).strip() == f"<p>{text}</p>"


def test_a_link_within_the_text_leads_to_its_heading():
    page = _markdown_to_html("# mean_test\n\n[up](#mean_test)")
    assert '<a href="#text-mean_test">up</a>' in page
    assert 'id="mean_test"' not in page


def test_a_text_beyond_the_limit_is_shown_as_it_was_typed():
    assert shown("*a*" + " " * (_MAX_RENDERED - 3)).startswith("<p><em>a</em>")
    assert shown("*<b>*" + " " * _MAX_RENDERED).startswith("<pre>*&lt;b&gt;* ")


def test_a_page_that_took_long_shows_the_rest_as_it_was_typed():
    resources = {}
    assert shown("*a*", resources).startswith("<p><em>a")
    resources["markdown_until"] = time.thread_time() - 1
    assert shown("*a*", resources) == "<pre>*a*</pre>"


@pytest.mark.parametrize("text", SLOW)
def test_repeated_openings_are_read(text):
    """The longest such cell that is rendered at all; without bounds some would take minutes."""
    assert shown((text * _MAX_RENDERED)[:_MAX_RENDERED])


def test_no_formula_is_sought_without_end():
    rules = {**student_html._Block.SPECIFICATION, **student_html._Inline.SPECIFICATION}
    formulas = [name for name in rules if "math" in name or "latex" in name]
    assert len(formulas) == 6
    assert [name for name in formulas if ".*?" in rules[name] or ".+?" in rules[name]] == []
    stock = {**MathBlockParser.SPECIFICATION, **MathInlineParser.SPECIFICATION}
    assert all(".*?" in stock[name] or ".+?" in stock[name] for name in formulas), "nbconvert's own patterns changed"


def test_code_whose_colours_take_long_is_shown_plain():
    lexer, formatter = PythonLexer(), HtmlFormatter()
    assert '<span class="k">return</span>' in _highlight("return 1", formatter, lexer, time.thread_time() + 60)
    assert "<pre>return &lt;1</pre>" in _highlight("return <1", formatter, lexer, time.thread_time() - 1)
    late = Highlight()
    late.deadline = time.thread_time() - 1
    assert "<span" not in late("return 1")


@pytest.mark.parametrize("code", ["38", "48", "38;2", "38;5", "38;5;999", "1;31", ""])
def test_terminal_colours_do_not_reach_a_page(code):
    assert text_to_html(f"\x1b[{code}m<b>\x1b[0m") == "&lt;b&gt;"


def test_a_page_keeps_cells_text_and_pictures_alone():
    data = {"text/html": "<script>", "text/latex": "$x$", "text/markdown": "*x*", "image/svg+xml": "<svg/>"}
    wide = {"image/png": {"width": "1 onerror=x"}}
    outputs = [
        new_output("display_data", data=data),
        new_output("display_data", data={"image/png": "AAAA", "text/plain": "a"}, metadata=wide),
        new_output("stream", text="b"),
    ]
    notebook = new_notebook(metadata={"title": "</title>", "widgets": {}, "language_info": {"name": "x'>"}})
    notebook.cells = [
        new_code_cell("c", outputs=outputs, metadata={"nbgrader": {"grade_id": "d"}, "tags": ['">']}),
        new_markdown_cell("e", attachments={"x": {"image/svg+xml": "AAAA"}}),
        new_raw_cell("<script>", metadata={"raw_mimetype": "text/html"}),
    ]
    page, resources = StudentPage().preprocess(notebook, {"nbgrader": {}})
    assert page.metadata == {}
    assert [c.cell_type for c in page.cells] == ["code", "markdown", "markdown"]
    assert page.cells[0].metadata == {"nbgrader": {"grade_id": "d"}}
    assert [o.get("data", o.get("text")) for o in page.cells[0].outputs] == [
        {"image/png": "AAAA", "text/plain": "a"},
        "b",
    ]
    assert page.cells[0].outputs[0].metadata == {}
    assert "attachments" not in page.cells[1]
    assert resources["policy"] == static_page()


def test_formgraders_page_has_a_nonce_of_its_own_and_names_as_text():
    page = {"submission_id": "1", "student": "<img src=x>", "last_name": None}
    first = StudentPage().preprocess(new_notebook(), dict(page))[1]
    second = StudentPage().preprocess(new_notebook(), dict(page))[1]
    assert first["nonce"] != second["nonce"]
    assert first["policy"] == formgrader_page(first["nonce"])
    assert (first["student"], first["last_name"]) == ("&lt;img src=x&gt;", None)


def test_a_policy_names_no_other_machine_and_lets_no_inline_script_run():
    for policy in (static_page(), formgrader_page("n")):
        assert "default-src 'none'; base-uri 'none'; form-action 'none'" in policy
        assert "http" not in policy.partition("content=")[2]
    assert "script-src" not in static_page()
    scripts = formgrader_page("n").partition("script-src ")[2].partition(";")[0]
    assert "'unsafe-inline'" not in scripts
    assert "'self'" not in scripts
