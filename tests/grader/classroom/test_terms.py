"""The rules of a class about time, for all times, policies and extensions: nobody loses by getting more time."""

from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.classroom.commands.handing_in import _in_one_group
from threeloops_grader.classroom.deadlines.terms import Terms
from threeloops_grader.classroom.register.clock import read_time, require_zone
from threeloops_grader.classroom.register.extensions import (
    EVERY_LAB,
    Extension,
    merged,
    read_extensions,
    save_extensions,
    saved_extensions,
)
from threeloops_grader.classroom.register.groups import Groups, Member, read_groups
from threeloops_grader.classroom.register.roster import Student
from threeloops_grader.classroom.register.settings import LatePolicy, Settings

LABS = ("01_roofline", "02_memory_hierarchy", "03_triton_fusion")
START = datetime(2030, 1, 1)
CLASS = [Student("ada"), Student("Bob")]
DUE = {"01_roofline": "2030-01-31T22:59:00+00:00"}
OPENED = {"01_roofline": "2030-01-21T22:59:00+00:00"}


def hours(most):
    return st.integers(0, most * 60).map(lambda minutes: timedelta(minutes=minutes))


POLICIES = st.builds(
    LatePolicy,
    percent_per_day=st.sampled_from([0.0, 5.0, 10.0, 33.0, 100.0]),
    most_percent=st.sampled_from([0.0, 50.0, 100.0]),
    grace_minutes=st.sampled_from([0.0, 15.0, 1440.0]),
    closes_days=st.sampled_from([None, 0.0, 2.0, 5.0]),
    slip_days=st.integers(0, 6),
    slip_most=st.sampled_from([None, 0, 1, 3]),
)
EXTENSIONS = st.lists(
    st.one_of(
        st.builds(Extension, st.just("ada"), st.sampled_from([*LABS, EVERY_LAB]), hours=st.floats(0.1, 200)),
        st.builds(Extension, st.just("ada"), st.sampled_from([*LABS, EVERY_LAB]), factor=st.floats(1.01, 4)),
        st.builds(
            Extension,
            st.just("ada"),
            st.sampled_from([*LABS, EVERY_LAB]),
            due=hours(40 * 24).map(lambda after: f"{(START + after).isoformat()}+00:00"),
        ),
    ),
    max_size=4,
)
TIMES = st.fixed_dictionaries({}, optional={lab: st.none() | hours(60 * 24).map(START.__add__) for lab in LABS})
DUES = st.fixed_dictionaries({}, optional={lab: hours(40 * 24).map(START.__add__) for lab in LABS})
SCORES = st.floats(-5, 130)


@given(POLICIES, DUES, EXTENSIONS, TIMES, SCORES)
def test_a_penalty_is_never_negative_and_never_above_the_score(policy, due, extensions, times, score):
    for late in Terms(policy, due, dict.fromkeys(LABS, START), extensions).lateness("ada", times).values():
        assert 0.0 <= late.penalty(score) <= max(0.0, score)


@given(POLICIES, DUES, EXTENSIONS, TIMES)
def test_slip_days_are_within_the_budget_of_the_term_and_of_each_lab(policy, due, extensions, times):
    results = Terms(policy, due, dict.fromkeys(LABS, START), extensions).lateness("ada", times).values()
    assert sum(late.slip_days for late in results) <= policy.slip_days
    assert all(late.slip_days <= policy.slip_days if policy.slip_most is None else late.slip_days <= policy.slip_most
               for late in results)  # fmt: skip
    assert all(late.slip_days <= policy.days_late(late.seconds) for late in results), "no day is spent in time"


@given(POLICIES, DUES, EXTENSIONS, EXTENSIONS, TIMES)
def test_an_extension_never_makes_anybody_worse_in_any_lab(policy, due, before, more, times):
    opened = dict.fromkeys(LABS, START)
    without = Terms(policy, due, opened, before).lateness("ada", times)
    extended = Terms(policy, due, opened, [*before, *more]).lateness("ada", times)
    assert all(extended[lab].share <= without[lab].share for lab in times)
    assert sum(late.slip_days for late in extended.values()) <= sum(late.slip_days for late in without.values())


DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("late", "extra"),
    [((3, 3), 1), ((20, 2), 14)],
    ids=["the extended lab is due after the other then", "slip days would save points only with the extension"],
)
def test_an_extension_does_not_change_where_slip_days_go(late, extra):
    """The first lab is due 12 hours before the second."""
    due = {LABS[0]: START, LABS[1]: START + DAY / 2}
    times = {lab: time + days * DAY for (lab, time), days in zip(due.items(), late, strict=True)}
    policy = LatePolicy(10, 50, slip_days=3)
    usual = Terms(policy, due).lateness("ada", times)
    extended = Terms(policy, due, extensions=[Extension("ada", LABS[0], hours=24 * extra)]).lateness("ada", times)
    assert all(extended[lab].share <= usual[lab].share for lab in times)


@given(POLICIES, DUES, EXTENSIONS, TIMES, st.sampled_from(LABS), hours(100))
def test_who_hands_in_later_never_loses_less(policy, due, extensions, times, lab, later):
    if times.get(lab) is None:
        return
    terms = Terms(policy, due, dict.fromkeys(LABS, START), extensions)
    first = terms.lateness("ada", times)
    second = terms.lateness("ada", {**times, lab: times[lab] + later})
    assert all(second[name].share >= first[name].share for name in times)


@given(DUES, TIMES, st.integers(0, 6))
def test_slip_days_never_make_anybody_worse_and_are_kept_where_nothing_is_lost(due, times, days):
    usual = Terms(LatePolicy(10, 50), due).lateness("ada", times)
    slipped = Terms(LatePolicy(10, 50, slip_days=days), due).lateness("ada", times)
    assert all(slipped[lab].share <= usual[lab].share for lab in times)
    free = Terms(LatePolicy(slip_days=days), due).lateness("ada", times)
    assert not any(late.slip_days for late in free.values())


def test_slip_days_are_spent_in_the_order_of_due_dates():
    day = timedelta(days=1)
    due = {LABS[0]: START + 20 * day, LABS[1]: START + 10 * day, LABS[2]: START + 30 * day}
    times = {lab: time + 2 * day for lab, time in due.items()}
    results = Terms(LatePolicy(10, slip_days=4, slip_most=2), due).lateness("ada", times)
    assert {lab: (late.slip_days, late.share) for lab, late in results.items()} == {
        LABS[1]: (2, 0.0), LABS[0]: (2, 0.0), LABS[2]: (0, 0.2),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("extension", "due"),
    [
        (Extension("ada", "01_roofline", hours=24), "2030-01-12"),
        (Extension("ada", EVERY_LAB, factor=1.5), "2030-01-16"),
        (Extension("ada", "01_roofline", due="2030-01-20T00:00:00+00:00"), "2030-01-20"),
        (Extension("ada", "01_roofline", due="2030-01-05T00:00:00+00:00"), "2030-01-11"),
        (Extension("Ada", "01_roofline", hours=24), "2030-01-11"),
        (Extension("ada", "02_memory_hierarchy", hours=24), "2030-01-11"),
    ],
)
def test_a_factor_counts_from_the_opening_and_nothing_is_shorter_than_for_the_class(extension, due):
    terms = Terms(LatePolicy(), {"01_roofline": datetime(2030, 1, 11)}, {"01_roofline": START}, [extension])
    assert terms.due_for("ada", "01_roofline")[0] == datetime.fromisoformat(due)
    assert terms.due_for("bob", "01_roofline") == (datetime(2030, 1, 11), "")


def test_of_several_extensions_the_latest_counts():
    extensions = [Extension("ada", EVERY_LAB, factor=2.0), Extension("ada", "01_roofline", hours=24)]
    terms = Terms(LatePolicy(), {"01_roofline": datetime(2030, 1, 11)}, {"01_roofline": START}, extensions)
    assert terms.due_for("ada", "01_roofline") == (datetime(2030, 1, 21), "2 times the time")


HEAD = "student,lab,due,hours,factor\n"


def read(tmp_path, text, zone="Europe/Berlin"):
    (tmp_path / "table.csv").write_text(text)
    return read_extensions(tmp_path / "table.csv", CLASS, Settings(due=DUE, opened=OPENED, timezone=zone))


def test_a_table_of_extensions_is_read_stored_and_merged(tmp_path):
    rows = read(tmp_path, HEAD + "ada,01,2030-02-02,,\nbob,*,,,1.5\n")
    assert rows == [
        Extension("ada", "01_roofline", "2030-02-02T22:59:59+00:00"), Extension("Bob", EVERY_LAB, factor=1.5),
    ]  # fmt: skip
    save_extensions(tmp_path / "class/extensions.json", rows)
    assert saved_extensions(tmp_path / "class/extensions.json") == rows
    more = read(tmp_path, "student;lab;hours\nada;roofline;12\n")
    assert merged(rows, more) == [Extension("Bob", EVERY_LAB, factor=1.5), Extension("ada", "01_roofline", hours=12.0)]
    assert merged(rows, read(tmp_path, "student,lab,due\nADA,1,none\n")) == rows[1:]
    spelled = [Extension("n\u200cami", EVERY_LAB, hours=12.0), Extension("nami", EVERY_LAB)]
    assert merged(spelled[:1], spelled[1:]) == [], "also for an id that an earlier roster spelled in another way"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has the columns (none); expected student, lab, and any of due, hours, factor"),
        ("student,lab,days\nada,01,2\n", "has the columns student, lab, days"),
        (HEAD, "it has no rows"),
        (HEAD + "eve,01,2030-02-02,,\n", "line 2: 'eve' is not on the roster"),
        (HEAD + "ada,77,2030-02-02,,\n", "no lab '77'"),
        (HEAD + "ada,02,,24,\n", "02_memory_hierarchy has no due date to extend"),
        (HEAD + "ada,01,,,\n", "it gives no time; expected one of due, hours, factor"),
        (HEAD + "ada,01,,24,2\n", "it gives hours and factor"),
        (HEAD + "ada,01,,-1,\n", "hours are '-1', expected a number above 0"),
        (HEAD + "ada,01,,nan,\n", "hours are 'nan'"),
        (HEAD + "ada,01,,,150%\n", "the factor is '150%', expected a number above 1"),
        (HEAD + "ada,01,,,0.5\n", "the factor is '0.5'"),
        (HEAD + "ada,01,2030-01-31,,\n", ""),
        (HEAD + "ada,01,2030-01-30,,\n", "is not later than 2030-01-31 23:59 CET"),
        (HEAD + "ada,01,2030-10-27 02:30,,\n", "happens twice in Europe/Berlin"),
        (HEAD + "ada,01,,24,\nada,01,,12,\n", "line 3: an earlier row gives ada another extension"),
        (HEAD + "ada,01,,24,,x\n", "6 cells, but the heading has 5"),
    ],
)
def test_a_table_with_a_fault_is_refused_as_a_whole(tmp_path, text, told):
    if not told:
        assert read(tmp_path, text)
        return
    with pytest.raises(LabError) as refused:
        read(tmp_path, text)
    assert told in str(refused.value)


def test_all_faults_of_a_table_are_named_at_once(tmp_path):
    with pytest.raises(LabError, match=r"(?s)line 2: 'eve'.*line 4: 'mal'"):
        read(tmp_path, HEAD + "eve,01,,24,\nada,01,,24,\nmal,01,,24,\n")


def test_a_factor_for_every_lab_needs_to_know_when_released_labs_were_opened(tmp_path):
    """A class that was set up before openings were noted."""
    (tmp_path / "table.csv").write_text("student,lab,factor\nada,*,1.5\n")
    with pytest.raises(LabError, match=r"which students got 01_roofline.*--opened 01="):
        read_extensions(tmp_path / "table.csv", CLASS, Settings(due=DUE, released=("01_roofline",)))
    assert Settings(released=("01_roofline",)).with_released("01_roofline", START).opened == {}
    assert Settings().with_released("01_roofline", START).with_released("01_roofline", datetime.max).opened == {
        "01_roofline": "2030-01-01T00:00:00"
    }


def test_a_factor_of_no_time_is_refused(tmp_path):
    """The lab was opened when it was due, so there is nothing to multiply."""
    (tmp_path / "table.csv").write_text("student,lab,factor\nada,01,1.5\n")
    with pytest.raises(LabError, match=r"a factor gives no more time: 01_roofline was opened at 2030-01-31 22:59 UTC"):
        read_extensions(tmp_path / "table.csv", CLASS, Settings(due=DUE, opened=DUE))


def test_groups_hold_for_every_lab_or_for_one(tmp_path):
    (tmp_path / "groups.csv").write_text("group,student,lab\nA,ada,\nA,bob,\nB,ada,02\n")
    members = read_groups(tmp_path / "groups.csv", CLASS)
    assert Groups(members).of("ada", "01_roofline") == ("A", ["ada", "Bob"])
    assert Groups(members).of("ada", "02_memory_hierarchy") == ("B", ["ada"])
    assert Groups(members).of("Bob", "02_memory_hierarchy") == ("A", ["Bob"]), "ada works with others there"
    assert Groups(members).of("eve", "01_roofline") == ("", ["eve"])
    (tmp_path / "groups.csv").write_text("group,student\nA,ada\nB,ada\nA,eve\n,bob\n")
    with pytest.raises(LabError, match=r"(?s)line 3: ada is in group 'A'.*'eve' is not on the roster.*is empty"):
        read_groups(tmp_path / "groups.csv", CLASS)
    assert Member("A", "ada").lab == EVERY_LAB


@pytest.mark.parametrize(
    ("second", "is_of_class", "together"),
    [("Bob", True, True), ("Bob", False, False), ("eve", True, False), ("Jose\u0301", True, True)],
)
def test_equal_answers_of_one_group_are_expected(second, is_of_class, together):
    """`Bob` may also be a source outside of the class, and a folder may spell `José` with a separate accent."""
    pair = SimpleNamespace(
        first=SimpleNamespace(owner="ada"), second=SimpleNamespace(owner=second, is_of_class=is_of_class)
    )
    groups = Groups([Member("A", "ada"), Member("A", "Bob"), Member("A", "Jos\u00e9")])
    assert _in_one_group(pair, groups, SimpleNamespace(slug="01_roofline")) is together


@pytest.mark.parametrize(
    ("text", "zone", "utc"),
    [
        ("2030-01-31 23:59", "Europe/Berlin", "2030-01-31T22:59:00"),
        ("2030-01-31", "Europe/Berlin", "2030-01-31T22:59:59"),
        ("2030-01-31-07:00", "Europe/Berlin", "2030-02-01T06:59:59"),
        ("2030-01-31 UTC", "Europe/Berlin", "2030-01-31T23:59:59"),
        ("2030-01-31T10:00Z", "Europe/Berlin", "2030-01-31T10:00:00"),
        ("2030-01-31 10:00+0530", "UTC", "2030-01-31T04:30:00"),
        ("2030-07-31 10:00 CEST", "Europe/Berlin", "2030-07-31T08:00:00"),
        ("2030-10-27 02:30 CEST", "Europe/Berlin", "2030-10-27T00:30:00"),
        ("2030-10-27 02:30 CET", "Europe/Berlin", "2030-10-27T01:30:00"),
        ("2030-10-27 02:30+02:00", "Europe/Berlin", "2030-10-27T00:30:00"),
        ("2030-10-26", "Atlantic/Azores", "2030-10-26T23:59:59"),
        ("2018-02-17", "America/Sao_Paulo", "2018-02-18T02:59:59"),
    ],
)
def test_a_time_is_read_as_its_writer_means_it(text, zone, utc):
    """In São Paulo's summer of 2018 the last hour of 17 February came twice: the day ends with the second one."""
    assert read_time(text, zone).isoformat() == f"{utc}+00:00"


def test_a_day_begins_with_the_first_of_two_midnights():
    """In Havana the clocks go from 1:00 back to 0:00."""
    assert read_time("2023-11-05", "America/Havana", begins=True).isoformat() == "2023-11-05T04:00:00+00:00"


@pytest.mark.parametrize(
    ("text", "zone", "told"),
    [
        ("2030-10-27 02:30", "Europe/Berlin", "2030-10-27 02:30+02:00 (CEST) for the first time or"),
        ("2030-11-03 01:30", "America/New_York", "2030-11-03 01:30-04:00 (EDT) for the first"),
        ("2030-03-31 02:30", "Europe/Berlin", "write 2030-03-31 01:30+01:00 (CET) or 2030-03-31 03:30+02:00 (CEST)"),
        ("2030-01-31 10:00 CEST", "Europe/Berlin", "Europe/Berlin is at CET then; write the offset, as in"),
        ("2030-01-31 10:00 PST", "Europe/Berlin", "--timezone America/Los_Angeles"),
        ("2030-01-31 10:00", "CEST", "use the name of a place, such as Europe/Berlin"),
        ("2030-01-31 10:00", "EST", "such as America/New_York"),
        ("2030-01-31 10:00", "cet", "such as Europe/Berlin"),
        ("2030-01-31 10:00", "europe/berlin", "did you mean Europe/Berlin?"),
        ("2030-01-31 10:00", "Etc/GMT+5", "has its sign reversed"),
        ("2030-01-31 10:00+25:00", "UTC", "is not a time"),
        ("2030-01-31 24:00", "UTC", "is not a time"),
        ("31.01.2030", "UTC", "expected YYYY-MM-DD HH:MM"),
        ("0001-01-01 00:00+14:00", "UTC", "is not a time"),
    ],
)  # fmt: skip
def test_a_time_that_has_no_reading_or_two_is_refused_with_the_next_step(text, zone, told):
    with pytest.raises(LabError) as refused:
        read_time(text, zone)
    assert told in str(refused.value)


@given(hours(24 * 365), st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"]))
def test_a_time_with_its_offset_is_read_back_in_every_hour_of_a_year(after, zone):
    local = (START + after).replace(tzinfo=require_zone("UTC")).astimezone(require_zone(zone))
    assert read_time(local.isoformat(timespec="minutes"), zone) == local
    try:
        assert read_time(f"{local:%Y-%m-%d %H:%M}", zone) == local
    except LabError as refused:
        assert "happens twice" in str(refused)
