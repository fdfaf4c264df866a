"""What stands in a plan's documents, read by their own libraries, and what happens when they cannot be written."""

import resource
from dataclasses import replace

import docx
import openpyxl
import pptx
import pytest
from hand_made_plan import hand_made_plan, with_title
from markdown_it import MarkdownIt
from pptx.util import Pt
from threeloops.capstone.documents import FORMATS, write
from threeloops.capstone.documents.contents import document
from threeloops.capstone.documents.formats.outline import Number, Paragraph, Picture, Table


@pytest.fixture(scope="module")
def plan():
    return hand_made_plan()


@pytest.fixture(scope="module")
def bare(plan):
    """The same plan without figures, which take most of the time."""
    return replace(plan, figures=())


@pytest.fixture(scope="module")
def outline(plan):
    return document(plan, "25 November 2026")


@pytest.fixture(scope="module")
def written(plan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan") / "a new" / "folder"
    files = write(plan, folder, date="25 November 2026")
    return {file.name: file for file in files}


def blocks(outline, kind):
    return [block for section in outline.sections for block in section.blocks if isinstance(block, kind)]


def test_all_formats_come_in_their_order_and_then_the_figures(written):
    assert list(written) == [f"plan.{kind}" for kind in FORMATS] + [
        f"plan-{name}.png" for name in ("memory", "schedule", "goodput", "replicas", "ownership")
    ]
    assert {path.name for path in written["plan.md"].parent.iterdir()} == set(written)


def test_markdown_has_every_table_whole_and_every_image_beside_it(outline, written):
    tokens = MarkdownIt("commonmark").enable("table").parse(written["plan.md"].read_text())
    rows, images, headings = [], [], []
    for at, token in enumerate(tokens):
        if token.type in ("thead_open", "tr_open"):
            rows.append([])
        if token.type == "inline" and tokens[at - 1].type in ("th_open", "td_open"):
            rows[-1].append("".join(each.content for each in token.children))
        if token.type == "inline" and tokens[at - 1].type == "heading_open":
            headings.append("".join(each.content for each in token.children))
        images += [each for each in token.children or () if each.type == "image"]
    expected = [list(map(str, row)) for table in blocks(outline, Table) for row in (table.header, *table.rows)]
    assert [row for row in rows if row] == expected
    assert headings == [outline.title, *(section.title for section in outline.sections)]
    pictures = blocks(outline, Picture)
    assert [image.content for image in images] == [picture.alt for picture in pictures]
    for image, picture in zip(images, pictures, strict=True):
        assert (written["plan.md"].parent / image.attrs["src"]).read_bytes() == picture.png


def test_a_word_document_has_headings_repeated_header_rows_and_alternative_texts(outline, written):
    found = docx.Document(written["plan.docx"])
    headings = [each.text for each in found.paragraphs if each.style.name == "Heading 1"]
    assert headings == [section.title for section in outline.sections]
    tables = blocks(outline, Table)
    assert [[[cell.text for cell in row.cells] for row in table.rows] for table in found.tables] == [
        [list(map(str, row)) for row in (table.header, *table.rows)] for table in tables
    ]
    for table in found.tables:
        assert table.rows[0]._tr.trPr.xpath("w:tblHeader") and not table.rows[1]._tr.trPr.xpath("w:tblHeader")
    alts = [shape._inline.docPr.get("descr") for shape in found.inline_shapes]
    assert alts == [picture.alt for picture in blocks(outline, Picture)]
    page = found.sections[0]
    room = page.page_width - page.left_margin - page.right_margin
    assert all(shape.width <= room for shape in found.inline_shapes)


def test_slides_are_large_short_and_on_the_page(outline, written):
    deck = pptx.Presentation(written["plan.pptx"])
    assert len(deck.slides) == 1 + len(outline.slides)
    sizes, alts = [], []
    for slide in deck.slides:
        assert slide.shapes.title.text_frame.text
        for shape in slide.shapes:
            assert shape.left >= 0 and shape.top >= 0
            assert shape.left + shape.width <= deck.slide_width and shape.top + shape.height <= deck.slide_height
            frames = [shape.text_frame] if shape.has_text_frame else []
            if shape.has_table:
                assert len(shape.table.rows) <= 1 + 7
                frames += [cell.text_frame for row in shape.table.rows for cell in row.cells]
            sizes += [run.font.size for frame in frames for each in frame.paragraphs for run in each.runs]
            assert all(len(frame.paragraphs) <= 7 for frame in frames)
            if shape.shape_type == 13:
                alts.append(shape._element.nvPicPr.cNvPr.get("descr"))
    assert min(sizes) >= Pt(16)
    assert alts == [slide.picture.alt for slide in outline.slides if slide.picture]


def test_many_and_long_decisions_get_more_slides_and_are_cut_at_a_word(bare, tmp_path):
    long = tuple(replace(each, topic=f"topic {n}", choice="word " * 200) for n, each in enumerate(bare.decisions * 4))
    (path,) = write(replace(bare, decisions=long), tmp_path, ["pptx"])
    deck = pptx.Presentation(path)
    tables = [s for slide in deck.slides for s in slide.shapes if s.has_table and s.name == "Decisions"]
    assert len(tables) == 4
    topics = [row.cells[0].text for table in tables for row in list(table.table.rows)[1:]]
    assert topics == [each.topic for each in long]
    for shape in tables:
        assert shape.top + shape.height <= deck.slide_height
        assert shape.table.cell(1, 1).text.endswith("word …")


def test_a_workbook_calculates_from_named_inputs_of_which_computed_ones_are_grey(plan, written):
    book = openpyxl.load_workbook(written["plan.xlsx"])
    inputs = [each for each in plan.quantities if not each.formula]
    places = {}
    for name, defined in book.defined_names.items():
        ((sheet, place),) = defined.destinations
        places[name] = (sheet, book[sheet][place.replace("$", "")])
    fills = set()
    for each in inputs:
        sheet, cell = places[{"h100": "h100_", "R2": "R2_"}.get(each.name, each.name)]
        assert (sheet, cell.value) == ("Inputs", each.value)
        fills.add((each.evidence == "model", cell.fill.fgColor.rgb))
    assert len(fills) == 2
    sheet, cost = places["training_cost"]
    assert (sheet, cost.value) == ("Calculation", "=gpu_hours * h100_") and "$" in cost.number_format
    assert places["useful_share"][1].number_format == "0.0%"
    for sheet in book:
        assert sheet.page_setup.paperSize == 9
    assert len(book["Figures"]._images) == len(plan.figures)


@pytest.mark.parametrize(
    "title", ["=1+1", "a\x0bb\ufffe", "*a* _b_ | <b>c</b> [d](e) `f` \\", "# no heading", "漢字 🙂"]
)
def test_a_title_is_text_whatever_it_looks_like(bare, title, tmp_path):
    outline = document(with_title(bare, title))
    formats = [each for each in FORMATS if each != "pdf" or not title.isascii()]  # which takes the longest
    files = {path.suffix: path for path in write(with_title(bare, title), tmp_path, formats)}
    assert openpyxl.load_workbook(files[".xlsx"])["Summary"]["A1"].data_type == "s"
    assert docx.Document(files[".docx"]).paragraphs[0].text == outline.title
    heading = MarkdownIt().parse(files[".md"].read_text())[1]
    assert "".join(each.content for each in heading.children) == outline.title
    assert pptx.Presentation(files[".pptx"]).slides[0].shapes.title.text_frame.text == outline.title


def test_a_plan_of_one_part_has_no_empty_sections(plan, tmp_path):
    kept = tuple(each for each in plan.quantities if each.topic != "serving" and each.name != "total_cost")
    total = replace(plan.quantities[-1], formula="training_cost + energy_cost")
    alone = replace(plan, quantities=(*kept, total), figures=(), options=(), sensitivity=(), costs=plan.costs[:2])
    titles = [section.title for section in document(alone).sections]
    assert "Serving" not in titles and "Sensitivity" not in titles and "Training" in titles
    assert all(section.blocks for section in document(alone).sections)
    assert len(write(alone, tmp_path)) == len(FORMATS)


def test_cells_say_numbers_as_a_person_prints_them(outline):
    tables = {table.caption: table for table in blocks(outline, Table)}
    numbers = {row[0]: str(row[1]) for row in tables["The plan in numbers"].rows}
    assert numbers == {
        "GPUs that train": "64 GPUs", "Days of training": "3.763 days", "Useful share of the time": "97.31%",
        "Total cost": "$28,333",
    }  # fmt: skip
    hours = 2e11 / 9876.5 / 3600 / 0.9731  # of all GPUs
    total = hours * (3.99 + 0.7 * 0.083) + 1234.5 * 3.99 + 7
    assert tables["What it costs"].rows[-1] == ("Total", Number(pytest.approx(total, rel=1e-12), "USD", "total_cost"))
    how = {row[0]: row[3] for row in tables["Every number of the plan"].rows}
    assert how["Electricity"] == "GPU-hours of training × Power of a GPU × Price of electricity"
    assert how["Price of electricity"] == "EIA, 2026-08-25"
    assert any("llama-2-7b" in each.text for each in blocks(outline, Paragraph))


@pytest.mark.parametrize(
    ("formats", "says"),
    [
        (["doc"], "did you mean 'docx'"), (["PDF"], "did you mean 'pdf'"), ([], "at least one of md, docx"),
        ("md", "expected a sequence"), (["md", "qqqq"], "expected one of md, docx, xlsx, pdf, pptx"),
    ],
)  # fmt: skip
def test_an_unknown_format_is_named_and_nothing_is_written(plan, tmp_path, formats, says):
    with pytest.raises(ValueError, match=says):
        write(plan, tmp_path / "new", formats)
    assert not (tmp_path / "new").exists()


def test_a_format_that_is_asked_for_twice_is_written_once(bare, tmp_path):
    assert [path.name for path in write(bare, tmp_path, ["xlsx", "xlsx"])] == ["plan.xlsx"]


def test_a_file_in_place_of_the_folder_is_named(bare, tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="could not be written into .*file.*no file was changed"):
            write(bare, folder, ["md"])
    assert (tmp_path / "file").read_text() == "mine"


def test_a_full_disk_leaves_all_earlier_files_as_they_were(bare, tmp_path):
    before = {path.name: path.read_bytes() for path in write(with_title(bare, "the earlier plan"), tmp_path)}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(map(len, before.values()))
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest - 4096, hard))  # only the largest document does not fit
        with pytest.raises(OSError, match="no file was changed"):
            write(with_title(bare, "the later plan"), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_one_document_that_cannot_be_replaced_stops_all(bare, tmp_path):
    (tmp_path / "plan.pdf").mkdir()
    (tmp_path / "plan.md").write_text("the earlier one")
    with pytest.raises(FileExistsError, match="no file was changed"):
        write(bare, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.md", "plan.pdf"]
    assert (tmp_path / "plan.md").read_text() == "the earlier one"
