"""The page of claims: every claim in it, each number from an executed cell, and a missing audit is a fault."""

import html
import re
from pathlib import Path

import nbformat
import pytest
from threeloops.lab.predictions.audit import MIME
from threeloops.lab.predictions.claims import claims, disagreements, sources
from threeloops_grader.authoring.labs import Lab
from threeloops_grader.course import claims_page
from threeloops_grader.course.course import unsettled
from threeloops_grader.course.course_report import junit
from threeloops_grader.course.execute import CourseReport, Executed, LabOutcome
from threeloops_grader.pages import pages

LAB_13 = ("ft-3", "ft-4")


def lab(slug: str, folder: Path) -> Lab:
    """A lab whose source holds a title and nothing else."""
    made = Lab(slug, folder)
    made.folder.mkdir(parents=True, exist_ok=True)
    header = ["# ---", "# jupyter:", "#   threeloops:", f"#     title: What is in {slug}?", "# ---"]
    made.source.write_text("\n".join([*header, "", "# %% [markdown]", "# Text", ""]))
    return made


def executed(*names: str, error: str = "", **fields) -> Executed:
    """A notebook with an audit per name, each in a cell `cell-<name>`."""
    cells = []
    for name in names:
        claim = claims()[name]
        record = {"id": name, "claim": claim.claim, "lab": claim.lab, "source": claim.source, "number": 16896}
        record |= {"unit": "FP32 lanes", "level": "model", "verdict": "corrected", "how": "counted"} | fields
        output = nbformat.v4.new_output("display_data", {"text/plain": "a card", MIME: record})
        cells.append(nbformat.v4.new_code_cell("audit(…)", outputs=[output], id=f"cell-{name}"))
    return Executed(nbformat.v4.new_notebook(cells=cells), 1.0, error)


def report(folder: Path, *notebooks: Executed, slug="13_durable_checkpoints", device="cpu") -> CourseReport:
    outcome = LabOutcome(lab(slug, folder), list(notebooks), device)
    return CourseReport(device, "none", [outcome], 1.0)


def of(listed: list[claims_page.ClaimRow], name: str) -> claims_page.ClaimRow:
    (row,) = [row for row in listed if row.claim.id == name]
    return row


def test_a_claim_without_an_audit_is_a_fault_that_names_it(tmp_path):
    tried = lab("13_durable_checkpoints", tmp_path)
    assert unsettled(tried, [executed(*LAB_13)]) == []
    (fault,) = unsettled(tried, [executed("ft-3")])
    assert "claim ft-4 has no audit" in fault and "13_durable_checkpoints" in fault and claims()["ft-4"].claim in fault


def test_an_audit_in_the_dives_counts(tmp_path):
    assert unsettled(lab("13_durable_checkpoints", tmp_path), [executed("ft-3"), executed("ft-4")]) == []


def test_only_labs_that_were_run_owe_audits(tmp_path):
    assert unsettled(lab("90_toy", tmp_path), [executed()]) == []
    assert [fault[:11] for fault in unsettled(lab("19_capstone_plan", tmp_path), [executed()])] == ["claim plan-"] * 2


def test_a_claim_that_is_audited_twice_or_by_another_lab_is_a_fault(tmp_path):
    tried = lab("13_durable_checkpoints", tmp_path)
    assert unsettled(tried, [executed(*LAB_13), executed("ft-3")]) == ["claim ft-3 has 2 audits: keep one"]
    (fault,) = unsettled(tried, [executed(*LAB_13, "roof-1")])
    assert fault.startswith("claim roof-1 is audited here")


def test_after_a_failed_cell_missing_audits_are_not_reported_as_well(tmp_path):
    assert unsettled(lab("13_durable_checkpoints", tmp_path), [executed(error="cell 3: ValueError: …")]) == []


def test_junit_has_a_case_for_the_claims_of_a_lab(tmp_path):
    assert 'name="claims"' in junit(report(tmp_path, executed(*LAB_13)))
    assert "claim ft-4 has no audit" in junit(report(tmp_path, executed("ft-3")))
    assert 'name="claims"' not in junit(report(tmp_path, executed(), slug="90_toy"))


def test_every_claim_has_a_row_and_says_why_it_has_no_number(tmp_path):
    listed = claims_page.rows(report(tmp_path, executed("ft-3")))
    assert {row.claim.id for row in listed} == set(claims())
    assert [row.claim.lab for row in listed] == sorted(claim.lab for claim in claims().values())
    assert (of(listed, "ft-4").found, of(listed, "roof-1").found) == ("no audit", "lab 01 was not run")
    settled = of(listed, "ft-3")
    assert (settled.found, settled.level, settled.verdict) == ("16,896 FP32 lanes", "model", "corrected")


def test_a_row_links_to_the_cell_in_the_lab_s_page(tmp_path):
    run = report(tmp_path, executed(*LAB_13))
    row = of(claims_page.rows(run), "ft-3")
    page, _, fragment = row.href.partition("#")
    assert page == "labs/13_durable_checkpoints.html"
    assert f'id="{fragment}"' in pages.notebook_page(run.labs[0].executed[0].notebook, "x")


def test_a_measurement_on_a_gpu_names_the_device(tmp_path):
    run = report(tmp_path, executed("ft-3", level="GPU"), device="cuda:NVIDIA H100 80GB HBM3")
    assert of(claims_page.rows(run), "ft-3").level == "GPU, NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize("hostile", ["<script>x</script>", "a | b\n**c**", "' onclick='x"])
def test_words_of_an_audit_are_text(tmp_path, hostile):
    listed = claims_page.rows(report(tmp_path, executed("ft-3", unit=hostile, how=hostile)))
    page = claims_page.html_page(listed)
    assert page.count(html.escape(hostile)) == 2 and "<script" not in page and "' onclick" not in page
    (line,) = [line for line in claims_page.markdown(listed).splitlines() if line.startswith("| [ft-3]")]
    assert len(re.findall(r"(?<!\\)\|", line)) == 7 and "<script" not in line and "**c**" not in line


def test_page_and_twin_hold_all_claims_sources_and_contradictions(tmp_path):
    listed = claims_page.rows(report(tmp_path, executed(*LAB_13)))
    page, twin = claims_page.html_page(listed), claims_page.markdown(listed)
    assert pages.remote_references(page) == []
    for name in claims():
        assert page.count(f"<tr id='{name}'>") == 1
        assert len(re.findall(rf"^\| \[?{name}\b", twin, re.MULTILINE)) == 1
    for title in sources().values():
        assert title in html.unescape(page) and title in twin
    for each in disagreements():
        assert each.about in html.unescape(page) and each.about in twin
    assert "orrected: 2" in page and "orrected: 2" in twin
