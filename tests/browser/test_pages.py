"""The pages that the course writes fit a phone and a laptop, also with the table of a class."""

import pytest
from threeloops_grader.pages import pages

pytestmark = pytest.mark.browser

EXERCISES = [f"level_bandwidth (part {number})" for number in range(14)]


@pytest.fixture(params=[390, 1280])
def page(chromium, request):
    """A class of one student in a lab of many exercises."""
    row = ["ada", *(pages.Cell(str(number), "number") for number in range(14))]
    page = chromium.new_page(viewport={"width": request.param, "height": 800})
    page.set_content(pages.page("Lab", "One submission", pages.table(["Student", *EXERCISES], [row])))
    yield page
    page.close()


def test_the_page_is_as_wide_as_the_window(page):
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_phone_names_each_number_and_a_laptop_scrolls_the_table(page):
    phone = page.viewport_size["width"] < 500
    label = "getComputedStyle(document.querySelectorAll('td')[14], '::before').content"
    assert (EXERCISES[-1] in page.evaluate(label).replace("\\", "")) is phone
    assert page.locator("thead").is_visible() is not phone
    scrolls = page.locator(".wide").evaluate("e => e.scrollWidth > e.clientWidth")
    assert scrolls is not phone


def test_backticks_of_a_cell_set_code():
    assert pages.Cell("the width (`a < b`)").html() == "<td class=''>the width (<code>a &lt; b</code>)</td>"
    assert "`as it was`" in pages.Cell("`as it was`", "pre").html()
