"""A plan's documents as other programs read them: LibreOffice opens, converts and recalculates, poppler reads pages."""

import openpyxl
import pytest
from hand_made_plan import hand_made_plan
from office import Office, pages, text, words_outside
from threeloops.capstone import make_plan, read_prices, read_scenario
from threeloops.capstone.documents import write

PRICE, GPUS = 5.25, 48
CHEAPER = 0.8
"""The example rents, so a lower price of clouds changes no decision."""


def edited(path, target, **cells):
    """The workbook with other numbers in its named input cells."""
    book = openpyxl.load_workbook(path)
    for name, value in cells.items():
        ((sheet, place),) = book.defined_names[name].destinations
        book[sheet][place.replace("$", "")] = value
    book.save(target)
    return target


def named_values(path):
    """Every named cell of a workbook with the value that its last program calculated."""
    book = openpyxl.load_workbook(path, data_only=True)
    found = {}
    for name, defined in book.defined_names.items():
        for sheet, place in defined.destinations:
            found[name] = book[sheet][place.replace("$", "")].value
    return found


@pytest.fixture(scope="module")
def office(tmp_path_factory):
    return Office(tmp_path_factory.mktemp("office"))


@pytest.fixture(scope="module")
def example():
    scenario = read_scenario("7b_finetuning")
    return make_plan(scenario), make_plan(scenario, read_prices().with_cloud(CHEAPER))


@pytest.fixture(scope="module")
def recalculated(office, example, tmp_path_factory):
    """Workbooks after LibreOffice has calculated them: by name, the values of their named cells."""
    folder = tmp_path_factory.mktemp("workbooks")
    (hand_made,) = write(hand_made_plan(), folder / "hand made", ["xlsx"])
    (real,) = write(example[0], folder / "real", ["xlsx"])
    files = (
        hand_made.rename(folder / "hand_made.xlsx"),
        edited(folder / "hand_made.xlsx", folder / "hand_made_edited.xlsx", h100_=PRICE, gpus=GPUS),
        real.rename(folder / "real.xlsx"),
        edited(
            folder / "real.xlsx", folder / "real_edited.xlsx", cloud_list_price=CHEAPER * example[0]["cloud_list_price"]
        ),
    )
    (folder / "out").mkdir()
    return folder, office.convert("xlsx", folder / "out", *files)


def expect(values, plan):
    renamed = {"h100": "h100_", "R2": "R2_"}
    found = {each.name: values[renamed.get(each.name, each.name)] for each in plan.quantities}
    assert found == pytest.approx({each.name: each.value for each in plan.quantities}, rel=1e-9, abs=0)


def test_every_named_cell_is_a_quantity_of_the_plan_also_after_a_recalculation(recalculated, example):
    folder, files = recalculated
    for name, plan in (("hand_made.xlsx", hand_made_plan()), ("real.xlsx", example[0])):
        expect(named_values(folder / name), plan)  # as written, for programs that do not calculate
        expect(named_values(files[name]), plan)


def test_a_changed_price_or_number_of_gpus_gives_the_plan_of_the_changed_scenario(recalculated, example):
    _, files = recalculated
    expect(named_values(files["hand_made_edited.xlsx"]), hand_made_plan(PRICE, GPUS))
    expect(named_values(files["real_edited.xlsx"]), example[1])
    assert example[1]["total_cost"] < 0.95 * example[0]["total_cost"]


def test_what_other_sheets_show_follows_too(recalculated):
    folder, files = recalculated
    formulas = openpyxl.load_workbook(folder / "hand_made.xlsx")
    values = openpyxl.load_workbook(files["hand_made_edited.xlsx"], data_only=True)
    named = named_values(files["hand_made_edited.xlsx"])
    followed = set()
    for sheet in formulas:
        for row in sheet.iter_rows():
            for cell in row:
                if cell.data_type == "f" and cell.value[1:] in named and sheet.title != "Calculation":
                    assert values[sheet.title][cell.coordinate].value == named[cell.value[1:]]
                    followed.add((sheet.title, cell.value[1:]))
    assert {("Summary", "total_cost"), ("Summary", "gpus"), ("Cost", "energy_cost")} <= followed
    bill = [
        row
        for row in values["Summary"].iter_rows(values_only=True)
        if row[0] in ("Cost of training", "Electricity", "Cost of serving", "Total")
    ]
    amounts = [next(each for each in row[1:] if each is not None) for row in bill]
    assert sum(amounts[:-1]) == pytest.approx(amounts[-1], rel=1e-12)


def test_documents_have_their_pages_and_texts_and_nothing_leaves_a_page(office, tmp_path):
    plan = hand_made_plan()
    docx, pdf, pptx = write(plan, tmp_path, ["docx", "pdf", "pptx"], date="1. May 2026")
    files = (docx.rename(tmp_path / "document.docx"), pptx.rename(tmp_path / "slides.pptx"))
    found = office.convert("pdf", tmp_path, *files)
    for path in (found["document.docx"], pdf):
        said = text(path)
        assert 5 <= pages(path) <= 10
        assert plan.scenario.title in said and "1. May 2026" in said
        for section in (
            "Summary",
            "Decisions",
            "Training",
            "Serving",
            "Cost",
            "Sensitivity",
            "Appendix B: all quantities",
        ):
            assert section in said
        assert "Stacked bars: 48.5 of 80 GiB" in said  # what a figure shows, in words
        assert f"${plan['total_cost']:,.0f}" in said and "Lambda, instances" in said
        assert not words_outside(path)
    slides = found["slides.pptx"]
    assert pages(slides) == 11
    assert not words_outside(slides)
    said = text(slides)
    for part in ("What is decided", "Replicas over the day", "checkpoint interval", "no longer feasible"):
        assert part in said
