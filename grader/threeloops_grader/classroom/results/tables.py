"""Tables for other grade books: Canvas, Moodle, and the columns of Gradescope's own exports."""

from collections.abc import Callable, Sequence

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.classroom.results.scores import Row, on_roster

__all__ = ["FORMATS", "lateness_table"]

_Table = list[list[str]]


def _canvas(lab: Lab, rows: Sequence[Row], exercises: bool) -> _Table:
    """Return the gradebook for Canvas. An import needs Canvas's own number or the SIS id of a student, which both come
    from the roster."""
    rows = on_roster(rows)
    columns, most, points = _columns(lab, rows, exercises)
    head = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
    table = [[*head, *columns], ["    Points Possible", "", "", "", "", *most]]
    for row, scores in zip(rows, points, strict=True):
        s = row.student
        name = f"{s.last_name}, {s.first_name}" if s.first_name else s.last_name or s.id
        table.append([name, s.canvas_id, s.sis_id, s.id, s.section, *scores])
    return table


def _moodle(lab: Lab, rows: Sequence[Row], exercises: bool) -> _Table:
    rows = on_roster(rows)
    columns, _, points = _columns(lab, rows, exercises)
    table = [["Username", "ID number", "First name", "Surname", "Email address", *columns]]
    for row, scores in zip(rows, points, strict=True):
        s = row.student
        table.append([s.id, s.sis_id, s.first_name, s.last_name, s.email, *scores])
    return table


def _gradescope(lab: Lab, rows: Sequence[Row], exercises: bool) -> _Table:
    rows = on_roster(rows)
    columns, most, points = _columns(lab, rows, exercises)
    more = [f"{number}: {name} ({of} pts)" for number, (name, of) in enumerate(_pairs(columns, most)[1:], start=1)]
    head = ["First Name", "Last Name", "SID", "Email", "Sections", lab.slug, f"{lab.slug} - Max Points"]
    table = [[*head, f"{lab.slug} - Submission Time", f"{lab.slug} - Lateness (H:M:S)", *more]]
    for row, scores in zip(rows, points, strict=True):
        s = row.student
        late = int(row.seconds_late)
        when = f"{row.handed_in:%Y-%m-%d %H:%M:%S +0000}" if row.handed_in else ""
        lateness = f"{late // 3600:02d}:{late // 60 % 60:02d}:{late % 60:02d}"
        table.append(
            [s.first_name, s.last_name, s.id, s.email, s.section, scores[0], most[0], when, lateness, *scores[1:]]
        )
    return table


def lateness_table(lab: Lab, rows: Sequence[Row]) -> _Table:
    """Return what decides each student's late penalty, for an instructor who is asked about it. Times are in UTC."""
    head = "student,section,group,handed in by,due,extension,handed in,hours late,slip days spent,slip days left"
    table = [[*head.split(","), "percent lost", "points lost", "score"]]
    for row in on_roster(rows):
        late = row.lateness
        hand_in = row.hand_in
        times = [f"{time:%Y-%m-%d %H:%M:%S}" if time else "" for time in (late.due, row.handed_in)]
        lost = ["", ""] if row.score is None else [_number(100 * late.share), _number(row.penalty)]
        table.append(
            [
                row.student.id,
                row.student.section,
                hand_in.group if hand_in else "",
                hand_in.student if hand_in else "",
                times[0],
                late.extension,
                times[1],
                _number(late.seconds / 3600),
                str(late.slip_days),
                str(row.slip_days_left),
                *lost,
                _number(row.score),
            ]
        )
    return table


def _pairs(columns: list[str], most: list[str]) -> list[tuple[str, str]]:
    return list(zip(columns, most, strict=True))


FORMATS: dict[str, Callable[[Lab, Sequence[Row], bool], _Table]] = {
    "gradescope": _gradescope,
    "canvas": _canvas,
    "moodle": _moodle,
}
"""The table for each name, from the lab, the rows and whether there is a column per exercise."""


def _columns(lab: Lab, rows: Sequence[Row], exercises: bool) -> tuple[list[str], list[str], list[list[str]]]:
    """Return the names, maximum points, and each row's scores of the lab, each exercise, and other cells with
    points."""
    trusted = manifest(lab)
    of_tests = {part.test for part in trusted.parts}
    names = [lab.slug]
    most = [_number(rows[0].max_score if rows else trusted.max_score)]
    points = [[_number(row.score)] for row in rows]
    if exercises:
        for exercise in trusted.exercises:
            names.append(f"{lab.slug} {exercise.id}")
            most.append(_number(exercise.points))
            for cells, row in zip(points, rows, strict=True):
                cells.append(_number(_sum(row, exercise.tests)))
        others = {name for row in rows for name in row.parts} - of_tests
        rubric = [criterion for criterion in lab.rubric if criterion.cell in others]
        columns: list[tuple[str, float, tuple[str, ...]]]
        columns = [(f"reflection {c.name}", c.points, (c.cell,)) for c in rubric]
        if rest := others - {criterion.cell for criterion in rubric}:
            left = max(0.0, rows[0].max_score - trusted.max_score - sum(c.points for c in rubric))
            columns.append(("reflection", left, tuple(rest)))
        for name, maximum, of in columns:
            names.append(f"{lab.slug} {name}")
            most.append(_number(maximum))
            for cells, row in zip(points, rows, strict=True):
                cells.append(_number(_sum(row, of)))
    return names, most, points


def _sum(row: Row, names: tuple[str, ...]) -> float | None:
    return None if row.score is None else sum(row.parts.get(name, 0.0) for name in names)


def _number(value: float | None) -> str:
    """Return a score with at most two decimals. Without a score the cell is empty, so no import changes it."""
    return "" if value is None else f"{value:.2f}".rstrip("0").rstrip(".")
