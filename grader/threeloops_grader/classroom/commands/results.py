"""`threeloops class feedback` and `export`: what leaves the gradebook."""

from typing import Annotated

import typer
from threeloops.files import replace_text

from threeloops_grader.authoring.labs import LabError, course_root, find_lab
from threeloops_grader.classroom.commands.steps import LabName, account_of, nbgrader, print_account, scores_of
from threeloops_grader.classroom.register import log
from threeloops_grader.classroom.register import settings as register
from threeloops_grader.machine.terminal import encodable

__all__ = ["export", "feedback"]


def feedback(lab: LabName) -> None:
    """Write the feedback pages to feedback/, and hand them back to those who used the exchange."""
    from threeloops_grader.classroom.autograde import SECRET
    from threeloops_grader.classroom.results.account import write_refusals, write_shared
    from threeloops_grader.submissions.folder import TIMESTAMP

    target = find_lab(lab)
    if any((course_root() / "autograded").glob(f"*/{target.slug}/{target.slug}.ipynb")):
        nbgrader("generate_feedback", target.slug, "--force")
    folder = course_root() / "feedback"
    pages = sorted(folder.glob(f"*/{target.slug}/{target.slug}.html"))
    sealed = [p for p in pages if (p.parent / SECRET).is_file() and (p.parent / TIMESTAMP).is_file()]
    others = [page.parents[1].name for page in pages if page not in sealed]
    if sealed:
        nbgrader("release_feedback", target.slug, f"--CourseDirectory.student_id_exclude={','.join(others)}")
    rows = account_of(target)
    refused = write_refusals(target, rows)
    shared = write_shared(target, rows)
    everyone = {*pages, *shared, *refused}
    if not everyone:
        step = "grade" if any((course_root() / "submitted").glob(f"*/{target.slug}")) else "collect"
        raise LabError(
            f"nobody's {target.slug} is graded, so there are no pages to write; run `threeloops class {step} "
            f"{target.number:02d}` first"
        )
    print(f"{folder} holds {len(everyone)} pages; {len(sealed)} were handed back through the exchange.")
    if shared:
        print(f"pages for the other members of a group: {len(shared)}; hand those back yourself.")
    if refused:
        print(f"pages that say why a submission was refused: {len(refused)}; hand those back yourself.")


def export(
    lab: LabName,
    exercises: Annotated[bool, typer.Option(help="A column for each exercise beside the total.")] = True,
) -> None:
    """Write the scores for Gradescope, Canvas and Moodle, and the class report, to class/."""
    from threeloops_grader.classroom.results.report import class_csv, class_page
    from threeloops_grader.classroom.results.tables import FORMATS, lateness_table
    from threeloops_grader.classroom.results.wrong_answers import common_mistakes, signatures
    from threeloops_grader.pages.spreadsheet import to_csv
    from threeloops_grader.sandbox import bwrap

    target = find_lab(lab)
    folder = register.class_folder()
    rows, strangers = scores_of(target)
    texts = {f"{target.slug}_{name}.csv": to_csv(make(target, rows, exercises)) for name, make in FORMATS.items()}
    wrong = {}
    if any(row.messages for row in rows):
        cache = folder / f"wrong_answers_{target.number:02d}.json"
        wrong = signatures(target, "none" if bwrap.why_not() else "bwrap", cache)  # our own answers
    mistakes = common_mistakes(target, rows, wrong)
    texts[f"{target.slug}_report.html"] = class_page(target, rows, mistakes)
    texts[f"{target.slug}_lateness.csv"] = to_csv(lateness_table(target, rows))
    texts[f"{target.slug}_report.csv"] = class_csv(target, rows, mistakes)
    for name, text in texts.items():
        replace_text(folder / name, encodable(text))
        print(folder / name)
    exported = {row.student.id: row.score for row in rows if row.status in ("graded", "ungraded")}
    log.append(f"class export {target.number:02d}", target.slug, points=exported)
    print_account(target, rows, strangers)
