"""The whole chain on a toy course: released, executed, graded three times, reported."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import nbformat
import pytest
from threeloops.lab.recording.states import MIME
from threeloops_grader.course.course import Progress, run_course, submissions
from threeloops_grader.course.course_report import write
from threeloops_grader.course.execute import Executed, seconds_to_record
from threeloops_grader.pages import pages
from threeloops_grader.release.release import release
from threeloops_grader.sandbox.pool import close_pools
from toy_course import DIVES, add_dives, make_course


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    lab = make_course(tmp_path_factory.mktemp("course"))
    add_dives(lab)
    yield lab
    close_pools()


@pytest.fixture(scope="module")
def chain(toy):
    steps: list[Progress] = []
    report = run_course([toy], toy.root / "reports", "cpu", steps.append)
    write(report, toy.root / "reports")
    return report, steps, toy.root / "reports"


def test_reference_full_untouched_nothing_half_done_exactly_its_half(chain):
    report, _, _ = chain
    (lab,) = report.to_dict()["labs"]
    assert lab["reference"] == {"score": 100.0, "max_score": 100.0}
    assert lab["untouched"] == {"score": 0.0, "max_score": 100.0}
    assert lab["half_done"] == {"score": 40.0, "max_score": 100.0}
    assert report.faults == []


def test_deep_dives_are_executed_beside_the_core_and_have_a_page(chain):
    report, steps, reports = chain
    core, dives = report.labs[0].executed
    assert "the median is 2.0" in json.dumps(dives.notebook) and "the median is" not in json.dumps(core.notebook)
    assert "the median is 2.0" in (reports / "labs" / "90_toy_dives.html").read_text()
    assert {step.lab for step in steps} == {"90_toy", "90_toy_dives"}


@pytest.mark.parametrize(("seconds", "rest"), [((), 40.0), ((8.5, 20.0), 11.5), ((30.0, 11.0), 0.0)])
def test_the_dives_get_the_seconds_that_the_core_left_for_pictures_of_explorers(seconds, rest):
    outputs = [nbformat.v4.new_output("display_data", {MIME: {"seconds": time}}) for time in seconds]
    outputs.append(nbformat.v4.new_output("stream", text="42"))
    core = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(outputs=outputs), nbformat.v4.new_markdown_cell()])
    assert seconds_to_record([Executed(core, 60.0)]) == rest


def test_a_lab_that_could_not_be_graded_has_a_row_that_says_so(chain, tmp_path):
    report, _, _ = chain
    outcome = replace(report.labs[0], grades={}, faults=["reference could not be graded: the machine is at fault"])
    write(replace(report, labs=[outcome]), tmp_path)
    page = (tmp_path / "course.html").read_text()
    assert page.count("not graded") == 3 and "the machine is at fault" in page


def test_a_fault_in_the_dives_is_a_fault_of_the_lab(tmp_path):
    lab = make_course(tmp_path)
    add_dives(lab, DIVES.replace("len(samples) // 2", "99"))
    report = run_course([lab], tmp_path / "reports", "cpu")
    close_pools()
    assert any("90_toy_dives failed: cell 1: IndexError" in fault for fault in report.faults), report.faults


def test_json_says_where_it_was_verified_and_how_isolated(chain):
    _, _, reports = chain
    data = json.loads((reports / "course.json").read_text())
    assert data["device"] == "cpu"
    assert data["sandbox"] in ("bwrap", "none")
    assert set(data["labs"][0]) >= {"lab", "seconds", "verified_on", "reference", "untouched", "half_done"}
    assert data["labs"][0]["verified_on"] == "cpu"


def test_pages_load_nothing_from_elsewhere(chain):
    _, _, reports = chain
    for page in [reports / "course.html", *(reports / "labs").glob("*.html")]:
        text = page.read_text()
        assert pages.remote_references(text) == []
        assert "A toy with two exercises" in text


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://example.org/x.js"></script>',
        "<link rel='stylesheet' href='//example.org/x.css'>",
        "<style>@import url(https://example.org/x.css)</style>",
        "<style>a { background: url('http://example.org/x.png') }</style>",
        "<img alt='' src=http://example.org/x.png>",
        "<script type='module'>import x from 'https://example.org/x.mjs'</script>",
    ],
)
def test_a_remote_reference_is_found(page):
    assert pages.remote_references(page)


def test_a_link_to_click_is_no_remote_reference():
    assert pages.remote_references("<a href='https://example.org'>paper</a>") == []


def test_a_cell_whose_source_is_hidden_is_folded_in_its_page():
    cells = [nbformat.v4.new_code_cell("drawing = 1", metadata={"jupyter": {"source_hidden": True}})]
    cells.append(nbformat.v4.new_code_cell("answer = 2"))
    page = pages.notebook_page(nbformat.v4.new_notebook(cells=cells), "two cells")
    assert page.count("<details") == 1
    assert page.index("<details") < page.index("drawing") < page.index("</details>") < page.index("answer")


def test_the_cell_that_draws_the_opening_picture_is_not_shown_again():
    title = nbformat.v4.new_markdown_cell("# Lab\n\n![a picture](attachment:opening.png)")
    title.attachments = {"opening.png": {"image/png": "aGVsbG8="}}
    drawing = nbformat.v4.new_code_cell("draw()", metadata={"tags": ["opening"]})
    page = pages.notebook_page(nbformat.v4.new_notebook(cells=[title, drawing]), "a lab")
    assert page.count("data:image/png;base64,aGVsbG8=") == 1 and "draw" not in page


def test_junit_names_every_step(chain):
    _, _, reports = chain
    cases = {c.get("name"): c for c in ElementTree.parse(reports / "junit.xml").getroot().iter("testcase")}
    assert set(cases) == {"executed 90_toy", "executed 90_toy_dives", "reference", "untouched", "half_done"}
    assert all(c.find("failure") is None for c in cases.values())


def test_progress_names_cells_and_points(chain):
    _, steps, _ = chain
    assert any(s.what == "executing" and s.of > 0 for s in steps)
    assert [s.points for s in steps if s.what == "half done" and s.done] == [40.0]


def test_a_fault_in_a_solution_is_reported_everywhere_and_not_raised(tmp_path):
    lab = make_course(tmp_path)
    last = "    return sum(values) / len(values)"
    fault = "    values = [len(values) * value for value in values]\n"
    lab.source.write_text(lab.source.read_text().replace(last, fault + last))
    report = run_course([lab], tmp_path / "reports", "cpu")
    write(report, tmp_path / "reports")
    assert any("reference scored 60, expected 100" in f for f in report.faults)
    assert any("the solution notebook 90_toy failed" in f for f in report.faults)
    assert "<failure" in (tmp_path / "reports" / "junit.xml").read_text()
    assert "reference scored 60" in (tmp_path / "reports" / "course.html").read_text()


def test_the_students_file_is_graded_never_the_reference(toy):
    """A planted edit in a student's notebook changes the student's score, and only through that edit."""
    from threeloops_grader.grading.grade import Options, grade_notebook

    release([toy])
    notebook, full = submissions(toy)["reference"]
    planted = nbformat.from_dict(notebook)
    for cell in planted.cells:
        if cell.id == "mean":
            cell.source = cell.source.replace("/ len(values)", "/ (len(values) + 1)")
    before = grade_notebook(notebook, toy, "before", Options("none"))
    after = grade_notebook(planted, toy, "after", Options("none"))
    assert (before.score, after.score) == (full, 60.0)
