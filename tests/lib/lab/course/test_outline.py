"""The course on one page: every lab, in an order in which it can be taken, with the notation that labs share."""

import re

from threeloops.lab import labs
from threeloops.lab.course import outline

MINUTES = {lab.name: 170 for lab in labs()}


def test_every_lab_has_a_row_and_needs_only_earlier_labs():
    rows = outline.rows(MINUTES)
    assert [row[0] for row in rows] == [f"{lab.number:02} · {lab.title}" for lab in labs()]
    for number, (_, question, measures, needs, hours) in enumerate(rows):
        assert question.endswith("?") and len(measures) > 20 and hours == "2 h 50"
        assert all(int(each) < number for each in re.findall(r"\d\d", needs))
        assert needs == "—" if number == 0 else re.fullmatch(r"\d\d(, \d\d)*", needs)


def test_a_lab_that_does_not_exist_yet_has_no_row():
    some = {lab.name: 60 for lab in labs() if lab.number < 19} | {"90_toy": 5}
    table = outline.readme_table(some)
    assert "capstone_plan" not in table and "90_toy" not in table
    assert len(table.splitlines()) == 2 + 19
    assert "| 03 triton_fusion | Why do fewer, fatter kernels win? |" in table
    assert "| 19 capstone_plan | Can you plan all of it? |" in outline.readme_table(MINUTES)


def test_the_page_has_loops_hours_and_notation():
    page = outline.page({"00_start_here": 60, "16_continuous_batching": 95})
    assert "| 1 h |" in page and "| 1 h 35 |" in page and "Together: 3 hours" in page
    assert "## Start" in page and "## The product loop" in page and "## The training loop" not in page
    for written, meaning, where in outline.notation():
        assert f"| {written} | {meaning} | {where} |" in page


def test_no_cell_breaks_its_table():
    for row in [*outline.rows(MINUTES), *outline.notation()]:
        assert all(cell.strip() and "|" not in cell and "\n" not in cell for cell in row), row


def test_a_page_of_no_labs_is_a_page():
    assert outline.rows({}) == [] and "Together: 0 hours" in outline.page({})
